"""A command under the strategy `pgroup`: kept together by its process group, as far as its processes can be found."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence

from perdure.clock import Clock
from perdure.sandboxes import threads
from perdure.sandboxes.command import Child, hunt, within
from perdure.sandboxes.guard import ENTER, Guard
from perdure.sandboxes.pump import Pump
from perdure.sandboxes.strategies import SHELL
from perdure.sandboxes.table import Brood, process

#: Seconds in which what outlived the shell may end by itself, as the other end of a pipe does.
PATIENCE = 0.1


class Grouped:
    """Starts at once: the command enters the guard's list itself before it begins."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        guard: Guard,
        mark: str,
        pump: Pump,
        env: Mapping[str, str],
        cwd: str,
        clock: Clock,
    ) -> None:
        self.pump = pump
        self.running: dict[int, str] = {}
        self.stuck: set[int] = set()
        self._guard = guard
        self._clock = clock
        self._released = False
        self.child = Child([SHELL, "-c", ENTER, SHELL, *argv], stdin=guard.pipe(), pump=pump, env=env, cwd=cwd)
        pump.started()
        guard.entered(self.child.pid)
        row = process(self.child.pid)
        self.brood = Brood(self.child.pid, mark, row.started if row else 0)

    async def begin(self) -> None:
        return

    async def terminate(self, grace: float) -> None:
        given_up = threading.Event()

        def terminate() -> None:
            self.brood.terminate()
            self.brood.wait_gone(given_up)

        try:
            gone = threads.start(terminate, "terminate", or_here=False)
        except RuntimeError:  # the command has all the processes that this user may have
            self.brood.terminate()
            await within(self._clock, grace, self.child.exited)
            return
        try:
            await within(self._clock, grace, gone, self.child.exited, all_of_them=True)
        finally:
            given_up.set()

    async def end(self) -> None:
        patience = PATIENCE
        if not self.child.exited.done():
            self.brood.signal(signal.SIGKILL, ())
            patience = 0
        await hunt(self, self._clock, patience=patience)
        await within(self._clock, 0.1, self.child.exited)

    def release(self) -> None:
        if self._released:
            return
        self._released = True
        if not self.child.collected:
            self.brood.signal(signal.SIGKILL, ())
        self._guard.dismiss(self.child.pid)  # before the shell is reaped: from then on its number may be another's
        self.child.release()
        self.pump.close()
