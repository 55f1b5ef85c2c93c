"""`perdure reset`: have the model's context of a conversation start anew."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.app.handing_in import HandedIn, HandInSession
from perdure.commands.acting import acting
from perdure.commands.looked_at import found
from perdure.commands.options import Place, as_json_option, named, placed
from perdure.commands.text import argument, as_json


@click.command()
@click.argument("conversation", callback=named)
@click.argument("handoff", required=False)
@placed
@as_json_option
def reset(conversation: str, handoff: str | None, place: Place, json: bool) -> int:
    """Start what the model is shown of CONVERSATION (a key or an id) anew, with HANDOFF as the first that it is told.

    Everything that was said stays in the store. While the conversation answers, the reset waits for the next boundary.
    """
    text = None if handoff is None else argument(handoff)

    async def hand_in(session: HandInSession) -> HandedIn:
        chat = await session.find(await found(session, conversation))
        return await chat.reset(text)

    async def act() -> tuple[dict[str, Any], str]:
        async with acting(place, hand_in) as acted:
            record = await acted.reader.submission(acted.answer["submission"]).record()
            return dict(acted.answer), type(record.state).__name__.lower()

    answer, state = asyncio.run(act())
    says = "starts anew" if state == "done" else "will start anew at the next boundary"
    print(as_json({**answer, "state": state}) if json else f"conversation {conversation} {says}")
    return 0
