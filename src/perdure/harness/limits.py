"""Time limits of running work, kept by one sleeper for a whole session."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable
from itertools import count

from perdure.clock import Clock


def _nobody() -> None:
    """Whom a limit tells that was ended."""


class Limit:
    """Calls `fire` once when its time is over, unless it was ended before. Made by `Watch.limit`."""

    __slots__ = ("_fire", "_watch", "deadline", "expired", "over", "scheduled")

    def __init__(self, watch: Watch, seconds: float, fire: Callable[[], None]) -> None:
        self._watch = watch
        self._fire = fire
        self.deadline = watch.clock.monotonic() + seconds
        #: The earliest time for which the watch has noted it.
        self.scheduled = self.deadline
        self.expired = False
        self.over = False

    def extend(self, seconds: float) -> None:
        """Its time is over that long from now, sooner or later than before."""
        self.deadline = self._watch.clock.monotonic() + seconds
        if self.deadline < self.scheduled and not self.over:
            self._watch.add(self)

    def end(self) -> None:
        """It does not fire any more, and whom it would have told may go."""
        self.over = True
        self._fire = _nobody

    def expire(self) -> None:
        fire = self._fire
        self.end()
        self.expired = True
        fire()


class Watch:
    """Fires limits. Invariant: while any is open, the sleeper wakes no later than the earliest deadline."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, Limit]] = []
        self._order = count()
        self._sleeper: asyncio.Task[None] | None = None
        self._until = 0.0
        self._sweep_at = 256
        self._closed = False

    def limit(self, seconds: float, fire: Callable[[], None]) -> Limit:
        """Begin a limit. `fire` must not raise and must not wait."""
        limit = Limit(self, seconds, fire)
        self.add(limit)
        return limit

    def add(self, limit: Limit) -> None:
        """Note the deadline of a limit."""
        if self._closed:
            return
        if len(self._heap) > self._sweep_at:  # most limits are ended long before their time
            self._heap = [item for item in self._heap if not item[2].over]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + 256
        limit.scheduled = limit.deadline
        heapq.heappush(self._heap, (limit.deadline, next(self._order), limit))
        if self._sleeper is None or limit.deadline < self._until:
            if self._sleeper is not None:
                self._sleeper.cancel()
            self._until = limit.deadline
            loop = asyncio.get_running_loop()
            self._sleeper = loop.create_task(self._sleep(), name="perdure limits", context=contextvars.Context())

    async def _sleep(self) -> None:
        while self._heap:
            deadline, _, limit = self._heap[0]
            now = self.clock.monotonic()
            if limit.over:
                heapq.heappop(self._heap)
            elif limit.deadline > deadline:  # it was extended meanwhile
                limit.scheduled = limit.deadline
                heapq.heapreplace(self._heap, (limit.deadline, next(self._order), limit))
            elif deadline > now:
                self._until = deadline
                await self.clock.sleep(deadline - now)
            else:
                heapq.heappop(self._heap)
                limit.expire()
        self._sleeper = None

    def close(self) -> None:
        """Nothing fires any more."""
        self._closed = True
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None
