"""`perdure rm`: delete a conversation."""

from __future__ import annotations

import asyncio

import click

from perdure.app.handing_in import HandedIn, HandInSession
from perdure.commands.acting import acting
from perdure.commands.looked_at import found
from perdure.commands.options import Place, as_json_option, named, placed
from perdure.commands.text import as_json


@click.command()
@click.argument("conversation", callback=named)
@placed
@as_json_option
def rm(conversation: str, place: Place, json: bool) -> int:
    """Delete CONVERSATION (a key or an id) and those that its tasks own, for good.

    Forks of it keep what they see. It is refused while there is work in it, or a queued input.
    """

    async def hand_in(session: HandInSession) -> HandedIn:
        return await (await session.find(await found(session, conversation))).delete()

    async def act() -> list[int]:
        async with acting(place, hand_in) as acted:
            gone: list[int] = acted.answer["deleted"]
            return gone

    gone = asyncio.run(act())
    if json:
        print(as_json({"deleted": gone}))
        return 0
    below = len(gone) - 1
    owned = f", with {below} that its tasks owned" if below else ""
    print(f"conversation {conversation} is deleted{owned}")
    return 0
