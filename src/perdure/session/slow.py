"""Bodies that hold the line for too long (K6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perdure.telemetry import Telemetry

if TYPE_CHECKING:
    from perdure.session.transaction import Transaction

#: A body that holds the line for longer is reported with its stack, in seconds.
SLOW_BODY = 1.0


class SlowBodies:
    """Looks once a second of the loop, while there are commits, whether the same body is still open."""

    def __init__(self, telemetry: Telemetry, session: str) -> None:
        self._telemetry = telemetry
        self._session = session
        self._timer: asyncio.TimerHandle | None = None
        self._holder: tuple[asyncio.Task[object] | None, Transaction] | None = None

    def entered(self, tx: Transaction) -> None:
        self._holder = (asyncio.current_task(), tx)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SLOW_BODY, self.look, tx)

    def left(self) -> None:
        self._holder = None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self, seen: Transaction) -> None:
        """Report the body that was open at the last look as well, with the stack that it waits in."""
        self._timer = None
        if self._holder is None:
            return
        task, tx = self._holder
        if tx is seen and task is not None:
            stack = list(_stack_of(task.get_coro()))
            metadata = {"stack": stack, "session": self._session}
            self._telemetry.emit("perdure.commit.slow", {"seconds": SLOW_BODY}, metadata)
        self._timer = asyncio.get_running_loop().call_later(SLOW_BODY, self.look, tx)


def _stack_of(coroutine: Any) -> Iterator[str]:
    """Where a coroutine waits, outermost first. Tasks know only their outermost frame."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
