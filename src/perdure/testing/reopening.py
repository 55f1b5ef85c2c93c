"""A storage that is closed and opened again after every commit, without its user noticing.

What a backend keeps only in memory does not survive it: a contract that holds through this holds for what was stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from perdure.errors import SessionOwned
from perdure.records import Seq
from perdure.storage import Batch, Claim, Opened, Storage

OpenStorage = Callable[[], Awaitable[Storage]]
Place = tuple[asyncio.Future[None] | None, asyncio.Future[None]]


@asynccontextmanager
async def reopening(factory: OpenStorage) -> AsyncGenerator[Storage]:
    """Opens the same data with `factory` again after every commit, once the storage before was closed."""
    storage = Reopening(factory, await factory())
    try:
        yield cast(Storage, storage)
    finally:
        await storage.close()


class Reopening:
    """See the module. A claim stands for whichever one the present storage holds, until somebody else took it."""

    def __init__(self, factory: OpenStorage, inner: Storage) -> None:
        self._factory = factory
        self._inner = inner
        #: Done when the call that came last is over; a commit is over when the storage is open again.
        self._last: asyncio.Future[None] | None = None
        #: The newest claim given out for each session, and what it stands for in `_inner`.
        self._given: dict[str, Claim] = {}
        self._held: dict[str, Claim] = {}
        self._commits: list[asyncio.Task[None]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            async with self._turn(self._queue()):
                return await getattr(self._inner, name)(*args, **named)

        return call

    async def claim(self, session: str, *, take_over: bool = False, kill: bool = False) -> Opened:
        async with self._turn(self._queue()):
            opened = await self._inner.claim(session, take_over=take_over, kill=kill)
            self._given[session] = self._held[session] = opened.claim
            return opened

    async def release(self, claim: Claim) -> None:
        async with self._turn(self._queue()):
            await self._inner.release(self._standing_for(claim))
            if self._given.get(claim.session) == claim:
                del self._given[claim.session]

    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Seq] = loop.create_future()
        self._commits.append(loop.create_task(self._commit(claim, batch, done, self._queue())))
        return done

    async def close(self) -> None:
        await asyncio.gather(*self._commits)
        await self._inner.close()

    def _queue(self) -> Place:
        """A place behind every call so far: whom to wait for, and what to resolve when done."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before, self._last = self._last, mine
        return before, mine

    @asynccontextmanager
    async def _turn(self, place: Place) -> AsyncGenerator[None]:
        before, mine = place
        try:
            if before is not None:
                await asyncio.shield(before)
            yield
        finally:
            mine.set_result(None)

    def _standing_for(self, claim: Claim) -> Claim:
        return self._held[claim.session] if self._given.get(claim.session) == claim else claim

    async def _commit(self, claim: Claim, batch: Batch, done: asyncio.Future[Seq], place: Place) -> None:
        async with self._turn(place):
            try:
                seq = await self._inner.commit(self._standing_for(claim), batch)
            except Exception as refusal:
                await self._reopen()
                if not done.done():
                    done.set_exception(refusal)
            else:
                await self._reopen()
                if not done.done():
                    done.set_result(seq)

    async def _reopen(self) -> None:
        await self._inner.close()
        self._inner = await self._factory()
        for session in self._given:
            stale = self._held[session]
            try:
                opened = await self._inner.claim(session)
            except SessionOwned:
                continue  # taken over meanwhile: the stale claim stays, and is fenced
            if opened.claim.epoch == stale.epoch + 1:
                self._held[session] = opened.claim
            else:  # somebody held it in between
                await self._inner.release(opened.claim)
