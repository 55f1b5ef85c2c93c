"""Waiting for SQLite's locks: how long, how often, and when it is no use (I49)."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import apsw

#: How long a statement waits for another connection, and how often it looks meanwhile.
BUSY_MS = 5000
TICK_MS = 4
#: A transaction waits this long before it asks what the others are doing.
FIRST_MS = 800
#: How often it waits again while the others get on with theirs.
TURNS = 12


def wait_for_locks(connection: apsw.Connection, milliseconds: int) -> None:
    """How long the connection's statements wait for locks.

    It looks more often than SQLite's own waiting, which starves one of several that write all the time.
    """
    tick = threading.Event()

    def again(tries: int) -> bool:
        return tries * TICK_MS < milliseconds and not tick.wait(TICK_MS / 1000)

    connection.set_busy_handler(again)


def begin(connection: apsw.Connection, on_wait: Callable[[], None] | None = None) -> None:
    """Begin to write. The connection's statements wait for FIRST_MS.

    Waits while others commit; raises BusyError when none did for BUSY_MS: then one stands still in its transaction.
    `on_wait` is called once, when the wait gets long.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        pass
    else:
        return
    if on_wait is not None:
        on_wait()
    wait_for_locks(connection, BUSY_MS - FIRST_MS)
    try:
        version = connection.pragma("data_version")
        for turn in range(TURNS):
            try:
                connection.execute("BEGIN IMMEDIATE")
            except apsw.BusyError:
                before, version = version, connection.pragma("data_version")
                if before == version or turn == TURNS - 1:
                    raise
            else:
                return
    finally:
        wait_for_locks(connection, FIRST_MS)


#: Where SQLite locks the shared memory of a log: the byte of the writer.
_WRITE_LOCK = 120


def holder_of_write_lock(store: str) -> int | None:
    """The process that is writing: from the kernel's list of locks.

    Asking the file itself would mean to open and close it, which drops every lock that this process holds on it.
    """
    try:
        inode = os.stat(f"{store}-shm").st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    for line in locks.splitlines():
        match line.split():
            case [_, "POSIX", _, "WRITE", pid, file, first, last] if file.endswith(f":{inode}") and int(
                first
            ) <= _WRITE_LOCK <= (int(last) if last != "EOF" else _WRITE_LOCK):
                return int(pid)
            case _:
                continue
    return None
