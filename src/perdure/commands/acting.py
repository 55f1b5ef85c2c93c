"""Acting on a session whoever owns it: handed in, and taken by its owner, or by this process if there is none (K1a)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from perdure.app.handing_in import HandedIn, HandInSession, answer_of
from perdure.app.opening import open, store
from perdure.app.session import Session
from perdure.commands.options import Place
from perdure.errors import OwnerGone, SessionOwned
from perdure.harness.registry import Registry


class Acted(msgspec.Struct, frozen=True, kw_only=True):
    """What was handed in was taken. `own` is the session of this process that took it, None where the owner did."""

    answer: Any
    reader: HandInSession
    own: Session | None


@asynccontextmanager
async def acting(
    place: Place,
    hand_in: Callable[[HandInSession], Awaitable[HandedIn]],
    registry: Registry | None = None,
    *,
    model: Callable[[HandInSession], Awaitable[str]] | None = None,
) -> AsyncGenerator[Acted]:
    """Hand something in and wait until it is taken. Raises what it was refused with, NotTaken, NotFound.

    `model` says who answers where this process has to open the session; without it nobody does.
    """
    async with store(place.store, mode="hand-in") as opened:
        reader = opened.hand_in(place.session)
        await reader.info()
        handed = await hand_in(reader)
        while True:
            try:
                answer = await handed.taken()
            except OwnerGone:
                pass
            else:
                yield Acted(answer=answer, reader=reader, own=None)
                return
            name = None if model is None else await model(reader)
            try:
                async with open(place.store, session=place.session, registry=registry, model=name) as own:
                    answer = answer_of(await reader.inbound(handed.id))
                    yield Acted(answer=answer, reader=reader, own=own)
                    return
            except SessionOwned:
                continue  # somebody else was faster, and takes it
