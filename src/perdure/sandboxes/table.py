"""The table of processes, and which of them a command started. Linux only: elsewhere only its group is known.

A process belongs to a command when it is in its group or session, descends from one that is, or carries its mark in the
environment. One that left the session, dropped its environment and lost its parent before anybody looked is not found.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import signal
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

#: The variable that carries the marks. Nested commands carry those of all that enclose them.
MARK_NAME = "PERDURE_CALL"
#: A mark: the process that ran the command (`owner`), a number for the guard in it and one for the command.
MARK = re.compile(r"/(\d+\.\d+\.\d+)\.\d+\.\d+/")

PROC = "/proc"
#: So much of a command line is told, in characters.
MOST_TOLD = 60
#: How many processes one wait watches, and how long it waits before it looks at the table again.
WATCHED = 64
GLANCE_MS = 50


class Process(NamedTuple):
    """A row of the table. A pid is used again; pid and start time together are not."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    started: int  #: in clock ticks since the machine started

    @property
    def alive(self) -> bool:
        """A zombie is not: it only waits to be read."""
        return self.state not in "ZX"


def parse_stat(line: bytes) -> Process:
    """A line of /proc/PID/stat. The name in parentheses may hold anything, also parentheses."""
    pid = int(line[: line.index(b" ")])
    fields = line[line.rindex(b")") + 2 :].split(None, 20)
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0].decode(), int(fields[19]))


def process(pid: int) -> Process | None:
    """None where no process is, or no /proc."""
    try:
        return parse_stat(_content(f"{PROC}/{pid}/stat"))
    except (OSError, ValueError):
        return None


def _content(path: str) -> bytes:
    """All of a file, without the layers of `open`: a look at the table opens some hundred, after each command."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(handle, 64 * 1024):
            content += piece
        return content
    finally:
        os.close(handle)


def processes() -> list[Process]:
    """All that can be seen."""
    try:
        names = os.listdir(PROC)
    except OSError:
        return []
    return [found for name in names if name.isdigit() and (found := process(int(name))) is not None]


def carries(pid: int, mark: str) -> bool:
    """Whether a process started with a mark in its environment. Not to be seen in those of other users."""
    try:
        return mark.encode() in _content(f"{PROC}/{pid}/environ")
    except OSError:
        return False


def command_of(pid: int) -> str:
    """What a process runs, for people; its name where that is all that can be seen, empty when it is gone."""
    for name in ("cmdline", "comm"):
        with contextlib.suppress(OSError):
            text = _content(f"{PROC}/{pid}/{name}").replace(b"\0", b" ").decode(errors="replace").strip()
            if text:
                return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}…"
    return ""


def children(pid: int) -> list[int]:
    """Of a process with a single thread."""
    try:
        return [int(child) for child in _content(f"{PROC}/{pid}/task/{pid}/children").split()]
    except OSError:  # a kernel that does not tell
        return [row.pid for row in processes() if row.parent == pid]


def owner(pid: int | None = None) -> str:
    """Names a process (this one) for as long as the machine runs: its pid namespace, its pid, its start time."""
    pid = os.getpid() if pid is None else pid
    row = process(pid)
    return f"{_namespace()}.{pid}.{row.started if row else 0}"


def owner_lives(name: str) -> bool | None:
    """Whether the process of that name lives; None where that cannot be told from here, as of another container."""
    namespace, pid, started = (int(part) for part in name.split("."))
    if namespace != _namespace() or not namespace:
        return None
    row = process(pid)
    return row is not None and row.alive and row.started == started


@functools.cache
def _namespace() -> int:
    """The number of this process's pid namespace; 0 where there are none."""
    try:
        return int(os.readlink(f"{PROC}/self/ns/pid").strip("pid:[]"))
    except (OSError, ValueError):
        return 0


def orphans() -> list[Process]:
    """Living processes of commands whose owner is gone. Those of other users are not seen, of other containers left."""
    found: list[Process] = []
    for row in processes():
        owners = MARK.findall(_marks(row.pid)) if row.alive and row.pid != os.getpid() else []
        if any(owner_lives(each) is False for each in owners):
            found.append(row)
    return found


def end_orphans(*, patience: float, limit: float) -> None:
    """End them, once they have had `patience` seconds to end by themselves; give up after `limit` seconds."""
    begin = time.monotonic()
    while (alive := orphans()) and (passed := time.monotonic() - begin) < limit:
        for each in alive if passed >= patience else ():
            send(each, signal.SIGKILL)
        wait_any_end(alive, GLANCE_MS)


def _marks(pid: int) -> str:
    try:
        variables = _content(f"{PROC}/{pid}/environ").split(b"\0")
    except OSError:
        return ""
    begin = f"{MARK_NAME}=".encode()
    return next((each.decode(errors="replace") for each in variables if each.startswith(begin)), "")


def belonging(rows: Iterable[Process], group: int | None, marked: Iterable[int]) -> list[Process]:
    """Which of the rows are in the group, in the session of its name, or marked, and all that descend from those."""
    rows = list(rows)
    found = set(marked) | {row.pid for row in rows if group is not None and group in (row.group, row.session)}
    grew = True
    while grew:
        more = {row.pid for row in rows if row.parent in found and row.pid not in found}
        found |= more
        grew = bool(more)
    return [row for row in rows if row.pid in found]


class Brood(NamedTuple):
    """Everything that one command started: by its group (None when that may be another's by now) and its mark."""

    group: int | None
    mark: str
    since: int  #: start time of the first of them
    spared: frozenset[int] = frozenset()  #: what keeps them together, and is asked in its own way to end

    def alive(self) -> list[Process]:
        """Those that live now. Never this process itself."""
        rows = [row for row in processes() if row.pid != os.getpid()]
        marked = [row.pid for row in rows if row.started >= self.since and carries(row.pid, self.mark)]
        return [row for row in belonging(rows, self.group, marked) if row.alive and row.pid not in self.spared]

    def signal(self, number: signal.Signals, alive: Iterable[Process] | None = None) -> None:
        """To the whole group at once, and to each that left it."""
        if self.group is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.group, number)
        for each in self.alive() if alive is None else alive:
            if each.group != self.group:
                send(each, number)

    def terminate(self) -> None:
        """SIGTERM, also to those that are stopped."""
        alive = self.alive()
        self.signal(signal.SIGTERM, alive)
        self.signal(signal.SIGCONT, alive)

    def wait_gone(self, given_up: threading.Event) -> None:
        """Return when none lives, or soon after somebody gave up."""
        while not given_up.is_set() and (alive := self.alive()):
            wait_any_end(alive, GLANCE_MS)

    def kill(self, found: dict[int, str], *, patience: float, limit: float) -> set[int]:
        """End all that live; those that still do after `limit` seconds are returned.

        They have `patience` seconds to end by themselves; `found` gets each that had to be killed, and what it ran.
        The seconds are real ones: this waits for the kernel, not for a plan.
        """
        begin = time.monotonic()
        if not os.path.isdir(PROC):
            self._kill_group(begin + patience, begin + limit)
            return set()
        while (alive := self.alive()) and (passed := time.monotonic() - begin) < limit:
            if passed >= patience:
                found |= {each.pid: command_of(each.pid) for each in alive if each.pid not in found}
                self.signal(signal.SIGKILL, alive)
            wait_any_end(alive, GLANCE_MS)
        return {each.pid for each in alive}

    def _kill_group(self, begin: float, end: float) -> None:
        """Without a table only the group is known. It answers as long as a member is there, be it a zombie."""
        killed = False
        while self.group is not None and (now := time.monotonic()) < end:
            try:
                os.killpg(self.group, signal.SIGKILL if now >= begin and not killed else 0)
                killed = now >= begin
            except ProcessLookupError:
                return
            except PermissionError:  # as some systems say of zombies: they are waited for
                killed = killed or now >= begin
            select.select([], [], [], GLANCE_MS / 1000)


def send(target: Process, number: signal.Signals) -> None:
    """Signal exactly this process, never another one that got its pid. One that may not be signalled is left alone."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(target.pid)
        try:
            now = process(target.pid)
            if now is not None and now.started == target.started:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def wait_any_end(targets: list[Process], milliseconds: int) -> None:
    """Return when one of them ended, or the time is over: then somebody looks at the table again."""
    handles: list[int] = []
    try:
        for each in targets[:WATCHED]:
            with contextlib.suppress(OSError):
                handles.append(os.pidfd_open(each.pid))
        poll = select.poll()
        for handle in handles:
            poll.register(handle, select.POLLIN)
        poll.poll(milliseconds)
    finally:
        for handle in handles:
            os.close(handle)


@functools.cache
def boot_id() -> str:
    """Names this run of the machine; empty where there is no such name. Start times of two runs cannot be compared."""
    try:
        return _content(f"{PROC}/sys/kernel/random/boot_id").decode().strip()
    except OSError:
        return ""
