"""Taking in what others handed in while the session is open (K1a): wake-ups are hints, polling is the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from perdure.errors import PerdureError
from perdure.session.line import Line
from perdure.session.opening import InboundHandler, take_inbound
from perdure.session.transaction import Transaction

#: Between two looks for a change, and between two looks at the items themselves, in seconds.
HINT_EVERY = 0.1
LOOK_EVERY = 5.0


class Intake:
    """Polls for inbound items of one session and commits what its handlers make of them."""

    def __init__(self, line: Line, make: Callable[[Line], Transaction], handlers: Mapping[str, InboundHandler]) -> None:
        self._line = line
        self._make = make
        self._handlers = handlers
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll(), name="perdure intake")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def take(self) -> None:
        """Take what is there now, in one commit."""
        line = self._line
        if await line.storage.scan_inbound(line.session, limit=1):
            await take_inbound(line, self._make, self._handlers)

    async def _poll(self) -> None:
        clock = self._line.clock
        looked, seen = clock.monotonic(), 0
        while True:
            await clock.sleep(HINT_EVERY)
            try:
                count = await self._line.storage.change_count()
                if count == seen and clock.monotonic() - looked < LOOK_EVERY:
                    continue
                looked, seen = clock.monotonic(), count
                await self.take()
            except PerdureError as error:  # full or busy: the items stay where they are, the next look tries again
                if self._line.closing or self._line.fault is not None:
                    return
                self._line.telemetry.emit("perdure.inbound.failed", metadata={"error": type(error).__name__})
