"""A full disk heals by itself (K5): until it does, outcomes wait in memory and no new effect starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from perdure.errors import PerdureError, StorageRejected
from perdure.session.transaction import Transaction

if TYPE_CHECKING:
    from perdure.session.line import Commit, Line

Tx = TypeVar("Tx", bound=Transaction)

#: Between two tries to write while the disk is full, in seconds.
TRY_EVERY = 0.5


class Space:
    """Whether the storage has room. While somebody waits for it, one task tries a commit of nothing again and again."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.full = False
        #: Outcomes that were refused for want of space, and who waits until they are written.
        self._owed = 0
        self._settled: list[asyncio.Future[None]] = []
        self._prober: asyncio.Task[None] | None = None

    def note(self, *, full: bool) -> None:
        """The newest write landed, or found no room."""
        self.full = full

    @property
    def short(self) -> bool:
        """No new effect may start: there is no room, or outcomes that waited for it go first."""
        return self.full or self._owed > 0

    async def wait(self) -> None:
        """Wait until there is room. Returns as well when the line ends: the next commit says so."""
        if self.full:
            if self._prober is None or self._prober.done():
                self._prober = asyncio.get_running_loop().create_task(self._probe(), name="perdure space")
            await asyncio.wait([self._prober])

    async def wait_to_start(self) -> None:
        """Wait until a new effect may start, or the line ends."""
        await self.wait()
        if self._owed:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(settled)
            await settled

    @contextmanager
    def owing(self) -> Generator[None]:
        """While an outcome waits to be written."""
        self._owed += 1
        try:
            yield
        finally:
            self._owed -= 1
            if not self._owed:
                for settled in self._settled:
                    if not settled.done():
                        settled.set_result(None)
                self._settled.clear()

    async def _probe(self) -> None:
        line = self._line
        while self.full and line.fault is None and not line.closing:
            await line.clock.sleep(TRY_EVERY)
            try:
                async with line.commit(Transaction) as tx:
                    tx.forced = self.full
            except StorageRejected:
                continue
            except PerdureError:
                return

    async def record(self, make: Callable[[], Commit[Tx]], body: Callable[[Tx], Awaitable[None]]) -> None:
        """Commit what `body` stages, made anew when it is refused, and first when space returns (K5, K8).

        `body` may run more than once and must only stage.
        """
        try:
            async with make() as tx:
                await body(tx)
            return
        except StorageRejected:
            pass
        with self.owing():
            while True:
                await self.wait()
                try:
                    async with make() as tx:
                        await body(tx)
                    return
                except StorageRejected:
                    continue

    async def close(self) -> None:
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait([self._prober])
            self._prober = None
