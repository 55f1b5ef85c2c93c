"""One shell command, from its start until nothing of it is left.

The command is over when its shell is, not when its output is: a background job may hold the pipe for hours (I72).
Output is read in bounded pieces, so that a flood neither fills the memory nor starves the loop (I75).
Everything that waits for the kernel is bounded, and nothing here is interrupted by the caller's cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

from perdure.clock import Clock
from perdure.sandbox import Exit
from perdure.sandboxes import threads
from perdure.sandboxes.guard import ENTER, SHELL, Guard
from perdure.sandboxes.table import MARK_NAME, Brood, process

#: Seconds that a call waits for its last processes and the end of its output: it returns within 0.5 s of its shell.
LINGER = 0.45
#: Seconds in which what outlived the shell may end by itself, as the other end of a pipe does, and all of its ending.
PATIENCE, LIMIT = 0.1, 0.35
#: Bytes read in one turn of the loop, and what we ask the kernel to buffer meanwhile.
PIECE = 64 * 1024
PIPE_SIZE = 1024 * 1024

Sink = Callable[[bytes], None]


class Command:
    """A running command. Invariant: its shell is not reaped before `release`, so its pid and group stay its own."""

    def __init__(self, command: str, *, guard: Guard, env: Mapping[str, str], cwd: str, sink: Sink) -> None:
        """Starts it. Raises OSError, or ValueError where the command holds what no argument can."""
        self._loop = asyncio.get_running_loop()
        self._guard = guard
        self._sink = sink
        #: Done when the shell ended, when the last writer closed the output, when the sink raised.
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self.drained: asyncio.Future[None] = self._loop.create_future()
        self.broken: asyncio.Future[Exception] = self._loop.create_future()
        self._reader, writer = os.pipe()
        self._handle = -1
        try:
            mark = guard.next_mark()
            marked = {**env, MARK_NAME: env.get(MARK_NAME, "") + mark}
            self._process = _spawn(command, guard.pipe(), writer, marked, cwd)
        except BaseException:
            os.close(self._reader)
            raise
        finally:
            os.close(writer)
        self.pid = self._process.pid
        guard.entered(self.pid)
        row = process(self.pid)
        self.brood = Brood(self.pid, mark, row.started if row else 0)
        try:
            self._listen()
        except BaseException:
            self.release()
            raise

    def _listen(self) -> None:
        os.set_blocking(self._reader, False)
        with contextlib.suppress(
            OSError, AttributeError
        ):  # there is a limit for each user; other systems have no such call
            fcntl.fcntl(self._reader, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self._loop.add_reader(self._reader, self._read)
        try:
            self._handle = os.pidfd_open(self.pid)
        except (OSError, AttributeError):  # an old kernel, or another one
            threads.start(self._process.wait, "wait").add_done_callback(lambda _: _settle(self.exited, None))
        else:
            self._loop.add_reader(self._handle, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._handle)
        _settle(self.exited, None)

    def _read(self) -> None:
        try:
            piece = os.read(self._reader, PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._loop.remove_reader(self._reader)
            _settle(self.drained, None)
        elif not self.broken.done():
            try:
                self._sink(piece)
            except Exception as error:
                self.broken.set_result(error)

    @property
    def code(self) -> int:
        """After `release`: the exit status of the shell as a shell tells it. 137 for one that cannot be ended."""
        status = self._process.returncode
        if status is None:
            return 128 + signal.SIGKILL
        return status if status >= 0 else 128 - status

    def release(self) -> None:
        """Give back what the command held of this process; once is enough. What of its group still lives is killed."""
        if self._reader < 0:
            return
        if self._process.returncode is None:
            self.brood.signal(signal.SIGKILL, ())
        self._guard.dismiss(self.pid)  # before the shell is reaped: from then on its number may be another's
        self._reap()
        for end in (self._reader, self._handle):
            if end >= 0:
                self._loop.remove_reader(end)
                os.close(end)
        self._reader = self._handle = -1

    def _reap(self) -> None:
        """Collect the shell. It is dead unless the loop is being shut down, or it cannot be killed."""
        try:
            self._process.wait(0.1 if self._process.poll() is None else 0)
        except subprocess.TimeoutExpired:
            threading.Thread(target=self._process.wait, name="perdure-reap", daemon=True).start()


def _spawn(command: str, guard: int, writer: int, env: Mapping[str, str], cwd: str) -> subprocess.Popen[bytes]:
    """In a session of its own: no terminal to ask at, and a group that can be ended at once. Signals are restored."""
    bash = shutil.which("bash") or SHELL
    return subprocess.Popen(
        [SHELL, "-c", ENTER, SHELL, bash, "-c", command],
        stdin=guard,
        stdout=writer,
        stderr=writer,
        env=env,
        cwd=cwd,
        start_new_session=True,
        restore_signals=True,
    )


def _settle(future: asyncio.Future[None], value: None) -> None:
    if not future.done():
        future.set_result(value)


async def supervise(
    command: Command, *, timeout: float, grace: float, stopped: asyncio.Future[None], clock: Clock
) -> Exit:
    """See a command through: until its shell ends, the time is over, somebody stops it, or its output finds no taker.

    Returns at most `grace` + LINGER after that, whatever the processes do. To be run as a task that nobody cancels.
    """
    try:
        asked = await within(clock, timeout, command.exited, stopped, command.broken)
        if not command.exited.done():
            await _terminate(command.brood, command.exited, grace, clock)
        patience = PATIENCE
        if not command.exited.done():
            command.brood.signal(signal.SIGKILL, ())
            patience = 0
        killed: set[int] = set()
        ending = threads.start(lambda: command.brood.kill(killed, patience=patience, limit=LIMIT), "kill")
        await within(clock, LINGER, ending, command.exited, command.drained, all_of_them=True)
        stuck = ending.result() if ending.done() else set(killed)
    finally:
        command.release()
    if command.broken.done():
        raise command.broken.result()
    running = (killed | stuck) - {command.pid}
    return Exit(code=command.code, timed_out=not asked, running=tuple(sorted(running)), stuck=tuple(sorted(stuck)))


async def _terminate(brood: Brood, exited: asyncio.Future[None], grace: float, clock: Clock) -> None:
    """SIGTERM, and time to obey for all of them, not only for the shell."""
    given_up = threading.Event()

    def terminate() -> None:
        brood.signal(signal.SIGTERM)
        brood.wait_gone(given_up)

    gone = threads.start(terminate, "terminate")
    try:
        await within(clock, grace, gone, exited, all_of_them=True)
    finally:
        given_up.set()


async def within(clock: Clock, seconds: float, *awaited: asyncio.Future[Any], all_of_them: bool = False) -> bool:
    """Wait for one of the futures, or all of them, as long as `seconds` last; whether that happened."""
    enough = all if all_of_them else any
    sleeper = asyncio.ensure_future(clock.sleep(seconds))
    try:
        while not sleeper.done() and not enough(each.done() for each in awaited):
            pending = {each for each in awaited if not each.done()}
            await asyncio.wait({sleeper, *pending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeper.cancel()
    return enough(each.done() for each in awaited)
