"""Opening a session to look at it, and finding in it what a person names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

from perdure.app.handing_in import HandInSession
from perdure.app.looking import ReadConversation
from perdure.app.opening import store
from perdure.commands.options import Place
from perdure.errors import NotFound, UsageError

C = TypeVar("C", bound=ReadConversation)


@asynccontextmanager
async def looking(place: Place) -> AsyncGenerator[HandInSession]:
    """The session, to look at and to hand things in to. Raises NotFound where the store or the session is not there."""
    async with store(place.store, mode="hand-in") as opened:
        session = opened.hand_in(place.session)
        await session.info()
        yield session


async def found(session: HandInSession, name: str) -> int:
    """The id of the conversation with that key, or else with that number. Raises NotFound."""
    try:
        return (await session.find_key(name)).id
    except NotFound:
        if name.isascii() and name.isdigit():
            return (await session.find(int(name))).id
    known = [each.key or str(each.id) for each in await session.conversations(limit=10)]
    listed = f"the newest are {', '.join(known)}" if known else "there is none yet"
    raise NotFound(f"no conversation {name!r} in session {session.key!r}: {listed} (perdure ls shows them)")


def number(value: str) -> int:
    """A record's id. Raises UsageError."""
    if not (value.isascii() and value.isdigit()) or not 0 < int(value) < 2**40:
        raise UsageError(f"{value!r} is no id: perdure inspect shows the ids of tasks, inputs and questions")
    return int(value)
