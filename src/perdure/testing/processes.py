"""Real child processes for suites that stop, freeze and kill them, and a look at what they leave behind. Linux only.

What is left is looked up here and not through `perdure.sandboxes`, since that is what this judges.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import IO

import msgspec

from perdure.errors import PerdureError

#: The variable that marks a child and what it starts.
MARK_NAME = "PERDURE_CHILD"

_numbers = itertools.count(1)


class ChildTimeout(PerdureError):
    """A child did not do in time what it was waited for. The message has its standard error."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A row of /proc. `started` is in clock ticks since the machine started."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    started: int

    def read_command(self) -> str:
        """Its command line; empty when it is gone."""
        try:
            with open(f"/proc/{self.pid}/cmdline", encoding="utf-8", errors="replace") as file:
                return file.read().replace("\0", " ").strip()
        except OSError:
            return ""

    @property
    def living(self) -> bool:
        """A zombie is not: it waits to be collected."""
        return self.state not in "ZX"


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended: with an exit `code` or by `signal`.

    `left` are the commands of processes that outlived it and had to be killed.
    """

    code: int | None
    signal: int | None
    stdout: str
    stderr: str
    left: tuple[str, ...] = ()

    @property
    def killed(self) -> bool:
        """By SIGKILL."""
        return self.signal == signal.SIGKILL

    @property
    def lines(self) -> list[str]:
        """Standard output by whole lines: a last one that the end cut off is not among them."""
        return self.stdout.split("\n")[:-1]


class Child:
    """A process in a session of its own, killed with all that it started when the block ends.

    Its standard input and output are pipes, its standard error is kept for messages.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, cwd: str | os.PathLike[str] | None = None
    ) -> None:
        """`env` comes on top of this process's own."""
        self.mark = f"{os.getpid()}.{next(_numbers)}.{time.monotonic_ns()}"
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **(env or {}), MARK_NAME: self.mark},
            cwd=cwd,
            start_new_session=True,
            bufsize=0,
        )
        #: Read from standard output; what a `read_line` did not give away yet begins at `_given`.
        self._output = bytearray()
        self._given = 0
        self._ended = False  # standard output was closed by everyone who had it
        self._seen_off = False  # it ended, and so did what it started

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stderr(self) -> str:
        """What it wrote to standard error so far."""
        length = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), length, 0).decode(errors="replace")

    @property
    def running(self) -> bool:
        """Has not ended; a stopped one runs."""
        return self._popen.poll() is None

    def write_line(self, line: str) -> None:
        """To its standard input."""
        stdin = self._popen.stdin
        assert stdin is not None
        stdin.write(f"{line}\n".encode())

    def read_line(self, timeout: float = 30.0) -> str:
        """The next line of standard output. Raises ChildTimeout when none comes, and when there will be none."""
        deadline = time.monotonic() + timeout
        while (end := self._output.find(b"\n", self._given)) < 0:
            if not self._pump(deadline):
                raise ChildTimeout(self._tell("said nothing more" if self._ended else f"said nothing in {timeout} s"))
        line = self._output[self._given : end].decode(errors="replace")
        self._given = end + 1
        return line

    def stop(self, timeout: float = 10.0) -> None:
        """Freeze it (SIGSTOP) and return when the kernel says that all its threads are frozen."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + timeout
        while any(state not in "TZX" for state in thread_states(self.pid)):
            if time.monotonic() > deadline:
                raise ChildTimeout(self._tell(f"did not stop in {timeout} s"))
            _readable([], 0.001)

    def proceed(self) -> None:
        """Thaw it (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to the process alone; what it started lives on for a moment, as after any crash."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.kill()

    def descendants(self) -> list[Process]:
        """Living processes that it started, directly or not; not itself. Also those whose parents are gone.

        One that dropped its environment, left the session and lost its parent is not found.
        """
        rows = processes()
        roots = [row.pid for row in rows if row.session == self.pid or marked(row.pid, self.mark)]
        return [row for row in belonging(rows, [self.pid, *roots]) if row.pid != self.pid and row.living]

    def wait(self, timeout: float = 60.0, *, grace: float = 2.0) -> Exit:
        """How it ended. What it leaves behind may end by itself within `grace`; the rest is reported, and killed.

        Raises ChildTimeout, after killing it, when it does not end in time.
        """
        deadline = time.monotonic() + timeout
        if self._popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()
        handle = os.pidfd_open(self.pid) if self._popen.returncode is None else None
        try:
            while handle is not None and not _readable([handle], 0.0):
                if not self._pump(deadline, handle) and time.monotonic() >= deadline:
                    message = self._tell(f"did not end in {timeout} s")
                    self.close()
                    raise ChildTimeout(message)
        finally:
            if handle is not None:
                os.close(handle)
        code = self._popen.wait()
        left = self._see_off(grace)
        while self._pump(time.monotonic()):
            pass
        return Exit(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=self._output.decode(errors="replace"),
            stderr=self.stderr,
            left=left,
        )

    def close(self) -> None:
        """Kill it and all that it started, and collect it."""
        self.kill()
        self._popen.wait()
        if not self._seen_off:
            self._see_off(0.0)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        self._stderr.close()

    def _see_off(self, grace: float) -> tuple[str, ...]:
        """The commands of those that live after `grace`, in which they may end by themselves. They are killed."""
        deadline = time.monotonic() + grace
        while (left := self.descendants()) and time.monotonic() < deadline:
            _await_an_end(left, min(0.05, deadline - time.monotonic()))
        commands = tuple(row.read_command() for row in left)
        for _ in range(100):  # one that forks while it is looked at takes more than one look
            if not left:
                break
            for row in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(row.pid, signal.SIGKILL)
            _await_an_end(left, 0.05)
            left = self.descendants()
        self._seen_off = True
        return commands

    def _pump(self, deadline: float, *others: int) -> bool:
        """Take in what is on standard output, waiting for it (or for another descriptor) until the deadline."""
        stdout = self._popen.stdout
        assert stdout is not None
        waited = [*others] if self._ended else [stdout.fileno(), *others]
        ready = _readable(waited, deadline - time.monotonic())
        if not self._ended and stdout.fileno() in ready:
            piece = os.read(stdout.fileno(), 65_536)
            self._output += piece
            self._ended = not piece
            return bool(piece)
        return bool(ready)

    def _tell(self, what: str) -> str:
        return f"child {self.pid} {what}; its standard error:\n{self.stderr or '(nothing)'}"


def processes() -> list[Process]:
    """All rows of /proc."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return [row for pid in pids if (row := find_process(pid)) is not None]


def find_process(pid: int) -> Process | None:
    """The row of one process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except OSError:
        return None
    if ")" not in stat:
        return None
    state, *numbers = stat[stat.rindex(")") + 2 :].split()
    return Process(
        pid=pid,
        state=state,
        parent=int(numbers[0]),
        group=int(numbers[1]),
        session=int(numbers[2]),
        started=int(numbers[18]),
    )


def thread_states(pid: int) -> list[str]:
    """The state letter of each thread of a process; none when it is gone."""
    states: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
                states.append(file.read().rpartition(")")[2].split()[0])
    return states


def belonging(rows: Iterable[Process], roots: Iterable[int]) -> list[Process]:
    """The rows of the roots and of all that descend from them."""
    rows, found = list(rows), dict.fromkeys(roots)
    while more := [row.pid for row in rows if row.parent in found and row.pid not in found]:
        found.update(dict.fromkeys(more))
    return [row for row in rows if row.pid in found]


def descendants(pid: int) -> list[Process]:
    """Living processes that descend from a process through parents that are still there; not itself."""
    return [row for row in belonging(processes(), [pid]) if row.pid != pid and row.living]


def marked(pid: int, mark: str) -> bool:
    """Whether a process was started with this mark in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK_NAME}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def run_child(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    timeout: float = 60.0,
    grace: float = 2.0,
    cwd: str | os.PathLike[str] | None = None,
) -> Exit:
    """Run a child to its end, however it ends. `env` comes on top of this process's own. Raises ChildTimeout."""
    with Child(argv, env, cwd=cwd) as child:
        return child.wait(timeout, grace=grace)


def _await_an_end(rows: Sequence[Process], timeout: float) -> None:
    """Wait until one of them ended: then it is time to look again."""
    with contextlib.ExitStack() as stack:
        handles: list[int] = []
        for row in rows[:64]:
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(row.pid))
                stack.callback(os.close, handles[-1])
        _readable(handles, timeout)


def _readable(handles: Sequence[int], timeout: float) -> list[int]:
    """Those of the descriptors that can be read, or were closed by the other side, at the latest after `timeout`."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN | select.POLLHUP)
    return [handle for handle, _ in poll.poll(max(0.0, timeout) * 1000)]


__all__ = [
    "MARK_NAME",
    "Child",
    "ChildTimeout",
    "Exit",
    "Process",
    "belonging",
    "descendants",
    "find_process",
    "marked",
    "processes",
    "run_child",
    "thread_states",
]
