"""`perdure answer`: answer a question that work waits for."""

from __future__ import annotations

import asyncio
import getpass
from typing import Any

import click

from perdure.commands.acting import acting
from perdure.commands.options import Place, id_of, named, placed
from perdure.commands.text import argument
from perdure.errors import InvalidValue
from perdure.records import decode_json


@click.command()
@click.argument("question", callback=id_of("question"))
@click.argument("value")
@placed
@click.option("--by", metavar="NAME", callback=named, help="Who answers; the name of this user by default.")
def answer(question: int, value: str, place: Place, by: str | None) -> int:
    """Answer QUESTION with VALUE, which is JSON; what is no JSON is taken as text. The first answer counts."""

    async def act() -> bool:
        async with acting(place, lambda session: session.answer(question, _json(value), by=by or _user())) as acted:
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
