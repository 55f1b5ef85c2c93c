"""Time limits of running work, kept by one sleeper for a whole session."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from types import TracebackType
from typing import Literal

from perdure.clock import Clock


class Limit:
    """`async with watch.limit(seconds) as limit`: raises TimeoutError in the block when its time is over; `extend` gives it more."""

    __slots__ = ("_task", "_watch", "deadline", "expired")

    def __init__(self, watch: Watch, seconds: float) -> None:
        self._watch = watch
        self.deadline = watch.clock.monotonic() + seconds
        self.expired = False
        self._task: asyncio.Task[object] | None = None

    def extend(self, seconds: float) -> None:
        """The block may take that much longer from now."""
        self.deadline = self._watch.clock.monotonic() + seconds

    def expire(self) -> None:
        if self._task is not None and not self.expired:
            self.expired = True
            self._task.cancel()

    async def __aenter__(self) -> Limit:
        self._task = asyncio.current_task()
        self._watch.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        task, self._task = self._task, None
        if self.expired and task is not None:
            others = task.uncancel()
            if kind is asyncio.CancelledError and others == 0:
                raise TimeoutError("the time limit was reached") from error
        return False

    @property
    def over(self) -> bool:
        """The block was left."""
        return self._task is None


class Watch:
    """Expires limits. Invariant: while limits are open, the sleeper wakes no later than the earliest deadline known at its last look."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, Limit]] = []
        self._order = count()
        self._sleeper: asyncio.Task[None] | None = None
        self._until = 0.0
        self._sweep_at = 256

    def limit(self, seconds: float) -> Limit:
        return Limit(self, seconds)

    def add(self, limit: Limit) -> None:
        if len(self._heap) > self._sweep_at:  # most limits are left long before their time
            self._heap = [item for item in self._heap if not item[2].over]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + 256
        heapq.heappush(self._heap, (limit.deadline, next(self._order), limit))
        if self._sleeper is None or limit.deadline < self._until:
            if self._sleeper is not None:
                self._sleeper.cancel()
            self._until = limit.deadline
            self._sleeper = asyncio.get_running_loop().create_task(self._sleep(), name="perdure limits")

    async def _sleep(self) -> None:
        while self._heap:
            deadline, _, limit = self._heap[0]
            now = self.clock.monotonic()
            if limit.over:
                heapq.heappop(self._heap)
            elif limit.deadline > deadline:  # it was extended meanwhile
                heapq.heapreplace(self._heap, (limit.deadline, next(self._order), limit))
            elif deadline > now:
                self._until = deadline
                await self.clock.sleep(deadline - now)
            else:
                heapq.heappop(self._heap)
                limit.expire()
        self._sleeper = None

    def close(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None


