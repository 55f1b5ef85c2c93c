"""Locks on files of a JSONL store: held for moments, waited for within bounds, and who stands in the way.

An owner appends without any lock. Locks order those who claim a session, replace its files, or hand items in.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from perdure.backends.jsonl_disk import FILE_MODE
from perdure.backends.workers import Workers, end, is_stopped, state
from perdure.errors import StorageRejected

#: How long a lock is waited for, how often it is tried, and when a stopped holder may be ended.
PATIENCE = 5.0
TICK = 0.004
FIRST = 0.8


@contextmanager
def locked(path: Path, *, shared: bool = False, killing: Workers | None = None) -> Generator[None]:
    """Hold the lock of a file, which is made. Raises StorageRejected naming who holds it for too long.

    `killing`: a worker's process that is stopped while it holds the lock is ended.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        lock(descriptor, path, shared=shared, killing=killing)
        yield
    finally:
        unlock(descriptor)
        os.close(descriptor)


def lock(descriptor: int, path: Path, *, shared: bool = False, killing: Workers | None = None) -> None:
    """As `locked`, on a file that is open. `unlock` it before it is closed: a forked child may have it, too."""
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    tick = threading.Event()
    asked = False
    for turn in range(int(PATIENCE / TICK)):
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            tick.wait(TICK)
        else:
            return
        if killing is not None and not asked and turn * TICK > FIRST:
            asked = True
            _end_stopped(path, killing)
    holder = holder_of(path)
    by = "" if holder is None else f" by process {holder}, {state(holder)}"
    remedy = ": continue it, or take over with kill=True" if holder is not None and is_stopped(holder) else ""
    raise StorageRejected(f"{path} was locked for {PATIENCE:.0f} s{by}{remedy}. Nothing was kept; try again")


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def holder_of(path: Path) -> int | None:
    """The process that holds a file's lock alone, from the kernel's list of locks."""
    try:
        inode = path.stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    for line in locks.splitlines():
        match line.split():
            case [_, "FLOCK", _, "WRITE", pid, file, *_] if file.endswith(f":{inode}"):
                return int(pid)
            case _:
                continue
    return None


def _end_stopped(path: Path, workers: Workers) -> None:
    pid = holder_of(path)
    if pid is None or pid == os.getpid() or not is_stopped(pid):
        return
    for worker in workers.entered():
        if (worker.pid, worker.host) == (pid, socket.gethostname()):
            end(pid, worker.started)
            return
    raise StorageRejected(f"{path} is locked by process {pid} ({state(pid)}), which is no worker here: end it by hand")
