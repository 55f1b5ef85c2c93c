"""Throttled progress (H12, H39): what changed is committed at most once an interval, by one sleeper for a session."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from perdure.clock import Clock
from perdure.errors import HandleExpired, Revoked, StorageError
from perdure.errors import SessionClosed as Closed

#: Seconds between two progress commits of one thing.
INTERVAL = 0.1

Flush = Callable[[], Awaitable[None]]


class Progress:
    """Calls the flush of each thing that was noted, at most every interval.

    Invariant: a flush runs at most once at a time; what is noted while it runs is flushed an interval later.
    """

    def __init__(self, clock: Clock, interval: float = INTERVAL) -> None:
        self._clock = clock
        self.interval = interval
        #: What waits to be flushed.
        self._noted: dict[Flush, None] = {}
        self._running: dict[Flush, asyncio.Task[None]] = {}
        self._sleeper: asyncio.Task[None] | None = None

    def note(self, flush: Flush) -> None:
        """There is something to commit."""
        self._noted[flush] = None
        if self._sleeper is None:
            loop = (
                asyncio.get_running_loop()
            )  # without the context of whoever notes: it may be inside a commit just now
            self._sleeper = loop.create_task(self._sleep(), name="perdure progress", context=contextvars.Context())

    def forget(self, flush: Flush) -> None:
        """It is over: the final commit holds everything."""
        self._noted.pop(flush, None)

    def close(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None

    async def _sleep(self) -> None:
        while self._noted or self._running:
            await self._clock.sleep(self.interval)
            for flush in list(self._noted):
                if flush not in self._running:
                    del self._noted[flush]
                    task = asyncio.get_running_loop().create_task(self._flush(flush), name="perdure progress commit")
                    self._running[flush] = task
        self._sleeper = None

    async def _flush(self, flush: Flush) -> None:
        try:
            await flush()
        except (HandleExpired, Revoked, Closed, StorageError):
            return  # progress is never worth an error: the outcome commit says what happened
        finally:
            self._running.pop(flush, None)
