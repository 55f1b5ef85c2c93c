"""`perdure fork`: go another way from any entry of a conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.app.handing_in import HandedIn, HandInSession
from perdure.commands.acting import acting
from perdure.commands.looked_at import shown
from perdure.commands.options import Place, as_json_option, id_of, named, placed
from perdure.commands.text import as_json
from perdure.records import EntryId


@click.command()
@click.argument("conversation", required=False, callback=named)
@placed
@click.option(
    "--at", metavar="ENTRY", callback=id_of("entry"), help="See it through this entry; by default the newest."
)
@click.option("--key", metavar="KEY", callback=named, help="A key for the fork, that no other conversation has.")
@as_json_option
def fork(conversation: str | None, place: Place, at: int | None, key: str | None, json: bool) -> int:
    """Make a conversation that sees CONVERSATION (a key or an id; the root by default) through an entry.

    From there on each goes its own way. Where another process works in the session, it does it.
    """

    async def hand_in(session: HandInSession) -> HandedIn:
        chat = await session.find(await shown(session, conversation))
        return await chat.fork(None if at is None else EntryId(at), key=key)

    async def act() -> dict[str, Any]:
        async with acting(place, hand_in) as acted:
            return dict(acted.answer)

    made = asyncio.run(act())
    name = key or made["conversation"]
    print(as_json({**made, "key": key}) if json else f"conversation {name} goes on from entry {made['at']}")
    return 0
