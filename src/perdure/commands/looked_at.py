"""Opening a session to look at it, and finding in it what a person names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

from perdure.app.handing_in import HandInSession
from perdure.app.looking import ReadConversation
from perdure.app.opening import store
from perdure.commands.options import Place
from perdure.errors import NotFound
from perdure.records import ROOT

C = TypeVar("C", bound=ReadConversation)


@asynccontextmanager
async def looking(place: Place) -> AsyncGenerator[HandInSession]:
    """The session, to look at and to hand things in to. Raises NotFound where the store or the session is not there."""
    async with store(place.store, mode="hand-in") as opened:
        session = opened.hand_in(place.session)
        await session.info()
        yield session


async def shown(session: HandInSession, name: str | None) -> int:
    """The id of the conversation with that name; without one the root, where `run` works. Raises NotFound."""
    if name is not None:
        return await found(session, name)
    try:
        return (await session.find(ROOT)).id
    except NotFound:
        raise NotFound(
            f"the root conversation of session {session.key!r} has nothing to show: "
            "name one of those that perdure ls lists"
        ) from None


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
