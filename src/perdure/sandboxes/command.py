"""One shell command, from its start until nothing of it is left.

The command is over when its shell is, not when its output is: a background job may hold the pipe for hours (I72).
Everything that waits for the kernel is bounded, and nothing here is interrupted by the caller's cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from perdure.clock import Clock
from perdure.sandbox import Exit
from perdure.sandboxes import threads
from perdure.sandboxes.pump import Pump
from perdure.sandboxes.table import Brood

#: Seconds that a call waits for the end of its output once its processes are gone, as far as they were found.
LINGER = 0.2
#: Seconds that killing what was found may take: longer than the few hundredths it takes only where the kernel does.
LIMIT = 1.0
#: So many of the processes that outlived a command are told.
MOST_RUNNING = 20


class Child:
    """A process of ours. Invariant: it is not reaped before `release`, so its pid and its group stay its own."""

    def __init__(self, argv: Sequence[str], *, stdin: int, pump: Pump, env: Mapping[str, str], cwd: str) -> None:
        """Starts it, on the loop's thread: with that the kernel ties what must not outlive us.

        In a session of its own: no terminal to ask at, and a group that can be ended at once. Signals are restored.
        Raises OSError, or ValueError where an argument holds what none can.
        """
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self._handle = -1
        self._process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=pump.writer,
            stderr=pump.writer,
            env=env,
            cwd=cwd,
            start_new_session=True,
            restore_signals=True,
        )
        self.pid = self._process.pid
        try:
            self._handle = os.pidfd_open(self.pid)
        except (OSError, AttributeError):  # an old kernel, or another one
            threads.start(self._process.wait, "wait", or_here=False).add_done_callback(lambda _: settle(self.exited))
        else:
            self._loop.add_reader(self._handle, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._handle)
        settle(self.exited)

    @property
    def status(self) -> int | None:
        """After `release`: its exit code, or minus the signal that ended it. None for one that cannot be ended."""
        return self._process.returncode

    @property
    def collected(self) -> bool:
        return self._process.returncode is not None

    def kill(self) -> None:
        """SIGKILL to this process alone."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def peek(self) -> int | None:
        """Its status, collecting it if it has ended."""
        return self._process.poll()

    def release(self) -> None:
        """Collect it, and give back what it held of this process. It is dead unless the loop is being shut down."""
        try:
            self._process.wait(0.1 if self._process.poll() is None else 0)
        except subprocess.TimeoutExpired:
            threading.Thread(target=self._process.wait, name="perdure-reap", daemon=True).start()
        if self._handle >= 0:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1


class Command(Protocol):
    """A running command, however it is kept together."""

    child: Child
    pump: Pump
    brood: Brood
    #: What outlived the shell and was ended with it; pids that could not be ended.
    running: dict[int, str]
    stuck: set[int]

    async def begin(self) -> None:
        """Let it run. Raises SandboxError when it cannot."""
        ...

    async def terminate(self, grace: float) -> None:
        """SIGTERM, and time to obey for all of them, not only for the shell."""
        ...

    async def end(self) -> None:
        """Return when nothing of it is left that can be found and ended, at the latest some seconds later."""
        ...

    def release(self) -> None:
        """Give back what the command held of this process; once is enough. What of it still lives is killed."""
        ...


def settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def supervise(
    command: Command,
    *,
    timeout: float | None,
    grace: float,
    stopped: asyncio.Future[None],
    clock: Clock,
    strategy: str,
) -> Exit:
    """See a command through: until its shell ends, the time is over, somebody stops it, or its output finds no taker.

    To be run as a task that nobody cancels.
    """
    began, pump, exited = clock.monotonic(), command.pump, command.child.exited
    held = False
    try:
        in_time = await within(clock, timeout, exited, stopped, pump.broken, pump.capped)
        if not exited.done():
            await command.terminate(grace)
        await command.end()
        while not await within(clock, LINGER, pump.drained, pump.broken):
            held = not pump.paused
            if held:
                break
    finally:
        command.release()
    if pump.broken.done():
        raise pump.broken.result()
    spool, told = pump.spool, list(dict.fromkeys(name for name in command.running.values() if name))
    return Exit(
        code=_code(command.child.status),
        timed_out=not in_time,
        capped=pump.capped.done(),
        held=held,
        total_bytes=pump.total,
        seconds=clock.monotonic() - began,
        strategy=strategy,
        running=tuple(told[:MOST_RUNNING]),
        stuck=tuple(sorted(command.stuck)),
        spilled=0 if spool is None else await spool.kept(),
        spill=spool.path if spool is not None and spool.used else None,
    )


async def abandon(command: Command) -> None:
    """End one that nobody wants any more, without asking it."""
    try:
        await command.end()
    finally:
        command.release()


def _code(status: int | None) -> int:
    """As a shell tells it. 137 for one that cannot be ended."""
    if status is None:
        return 128 + signal.SIGKILL
    return status if status >= 0 else 128 - status


async def hunt(command: Command, clock: Clock, *, patience: float) -> None:
    """Find what is left of a command by its group and its mark, and end it."""
    found: dict[int, str] = {}
    ending = threads.start(lambda: command.brood.kill(found, patience=patience, limit=LIMIT), "kill")
    await within(clock, LIMIT + 0.05, ending)
    found.pop(command.child.pid, None)
    command.running |= found
    command.stuck |= ending.result() if ending.done() else set(found)


async def within(clock: Clock, seconds: float | None, *awaited: asyncio.Future[Any], all_of_them: bool = False) -> bool:
    """Wait for one of the futures, or all of them, as long as `seconds` last; whether that happened."""
    enough = all if all_of_them else any
    sleeper = None if seconds is None else asyncio.ensure_future(clock.sleep(seconds))
    try:
        while not (sleeper is not None and sleeper.done()) and not enough(each.done() for each in awaited):
            pending: set[asyncio.Future[Any]] = {each for each in awaited if not each.done()}
            if sleeper is not None:
                pending.add(sleeper)
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if sleeper is not None:
            sleeper.cancel()
    return enough(each.done() for each in awaited)
