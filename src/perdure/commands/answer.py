"""`perdure answer`: answer a question that work waits for."""

from __future__ import annotations

import asyncio
import getpass
from typing import Any

import click

from perdure.commands.acting import acting
from perdure.commands.installed import install
from perdure.commands.options import Place, id_of, named, placed
from perdure.commands.settings import GUARDED
from perdure.commands.text import argument
from perdure.errors import InvalidValue
from perdure.records import decode_json


@click.command()
@click.argument("question", callback=id_of("question"))
@click.argument("value", nargs=-1, required=True)
@placed
@click.option("--tools", multiple=True, metavar="MODULE:NAME", help="Where the tool is whose arguments are edited.")
@click.option("--by", metavar="NAME", callback=named, help="Who answers; the name of this user by default.")
def answer(question: int, value: tuple[str, ...], place: Place, tools: tuple[str, ...], by: str | None) -> int:
    """Answer QUESTION with VALUE, which is JSON; what is no JSON is taken as text. The first answer counts.

    \b
    Where a call is asked about:
      allow          it runs
      always         it runs, and calls like it are not asked about in this conversation any more
      deny [REASON]  it does not run, and the model is told why
      edit JSON      it runs with these arguments, an object as the tool takes it
    """
    given = _json(" ".join(value))
    registry = install(tools, GUARDED).registry  # what is edited is checked against the tools, which do not run here

    async def act() -> bool:
        async with acting(place, lambda session: session.answer(question, given, by=by or _user()), registry) as acted:
            return acted.own is None

    told = asyncio.run(act())
    print(f"question {question} is answered" + ("" if told else "; perdure resume goes on with the work"))
    return 0


def _json(value: str) -> Any:
    text = argument(value)
    try:
        return decode_json(text.encode())
    except (ValueError, InvalidValue):
        return text


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return None
