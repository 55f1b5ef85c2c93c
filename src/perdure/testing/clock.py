"""Clocks that obey: one that a test moves by hand, and one that follows a simulated loop.

Both mint ids and chance from a seed. Two clocks of one seed mint the same ids:
share one clock among the owners of a store, or give each its own seed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from random import Random
from typing import Any

from perdure.clock import uuid7_of
from perdure.errors import UsageError

#: How often `settle` yields before it takes a loop for one that never rests.
_PATIENCE = 10_000


class _Seeded:
    """Ids and chance from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def now(self) -> float:
        raise NotImplementedError

    def random(self) -> float:
        return self._random.random()

    def token(self) -> bytes:
        return self._random.randbytes(16)

    def uuid7(self) -> str:
        return uuid7_of(int(self.now() * 1000), self._random.randbytes(10))


class ManualClock(_Seeded):
    """Stands still until `advance`.

    `start` is what `now` says at first; `monotonic` starts at 0.
    """

    def __init__(self, start: float = 0.0, seed: int = 0) -> None:
        super().__init__(seed)
        self._monotonic = 0.0
        self._offset = start
        self._order = itertools.count()
        #: Sleepers that were not woken: (deadline, order of arrival, future). A cancelled one leaves when it is first.
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._monotonic + self._offset

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by that much; for one pass of the loop if it is 0 or less."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers in the order of their deadlines; the loop settles before, between and after.

        Those who go to sleep on the way are woken too when their time comes within it.
        """
        if seconds < 0:
            raise UsageError(f"a clock cannot advance by {seconds!r}; to move only the wall clock back, use shift()")
        target = self._monotonic + seconds
        await settle()
        while (deadline := self.next_deadline()) is not None and deadline <= target:
            self._monotonic = max(self._monotonic, deadline)
            _, _, woken = heapq.heappop(self._sleepers)
            woken.set_result(None)
            await settle()
        self._monotonic = target
        await settle()

    def shift(self, seconds: float) -> None:
        """Set the wall clock (`now`) forward or back, as an administrator would; nobody wakes."""
        self._offset += seconds

    def next_deadline(self) -> float | None:
        """When (by `monotonic`) the next sleeper is due; None when nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None


class LoopClock(_Seeded):
    """Follows a loop's time, which is virtual on a `SimulatedLoop`; `now` is that plus `start`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int = 0, start: float = 0.0) -> None:
        super().__init__(seed)
        self._loop = loop
        self._offset = start

    def now(self) -> float:
        return self._loop.time() + self._offset

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def shift(self, seconds: float) -> None:
        """Set the wall clock (`now`) forward or back; timers do not notice."""
        self._offset += seconds


async def settle() -> None:
    """Let everything run on this loop that can without time passing. Threads and sockets are not waited for."""
    loop: Any = asyncio.get_running_loop()
    ready = getattr(loop, "_ready", None)
    if ready is None:  # not one of asyncio's own loops: it does not say, so give it a fair number of passes
        for _ in range(100):
            await asyncio.sleep(0)
        return
    for _ in range(_PATIENCE):
        await asyncio.sleep(0)
        if not ready:
            return
    raise UsageError(f"the loop did not settle in {_PATIENCE} passes; something on it goes round without waiting")


__all__ = ["LoopClock", "ManualClock", "settle"]
