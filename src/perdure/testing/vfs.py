"""Where SQLite meets the file system: count its writes and syncs, and be killed, fail or lose power at the n-th.

`CrashingVFS` ends the process as SIGKILL does: everything that was written stays, as the kernel has it.
`PowerLossVFS` ends the machine: of what was written since a file's last sync nothing stays, or the first part, or any.
Only one process may have the store open meanwhile.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Literal, NoReturn

import apsw
import msgspec

from perdure.errors import UsageError

On = Literal["write", "sync"]
#: What happens at the n-th write or sync: the end before it, after it or in its middle; or it fails, or finds no space.
Action = Literal["before", "after", "torn", "error", "full"]
#: What a power loss leaves of the writes that were not synced.
Keep = Literal["drop", "prefix", "any"]

#: What a disk writes whole or not at all.
SECTOR = 512
_LOGS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


def kill_self() -> NoReturn:
    """SIGKILL to this very process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable: nobody survives SIGKILL")


class File(apsw.VFSFile):
    """A file of the database, its log or its journal. Tells its VFS before it does something."""

    def __init__(self, vfs: CrashingVFS, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        #: None for temporary files, which no crash leaves behind.
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._vfs = vfs
        #: SQLite syncs the directory with the first sync of a log or journal.
        self.syncs_directory = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _LOGS)
        super().__init__(vfs.base, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._vfs.write(self, bytes(data), offset)

    def xSync(self, flags: int) -> None:
        self._vfs.sync(self, flags)

    def xTruncate(self, newsize: int) -> None:
        self._vfs.truncate(self, newsize)

    def write(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)  # pyright: ignore[reportUnknownMemberType]

    def sync(self, flags: int) -> None:
        super().xSync(flags)

    def truncate(self, size: int) -> None:
        super().xTruncate(size)


class CrashingVFS(apsw.VFS):
    """Passes everything to the system's own VFS, counts, and acts at the `at`-th write or sync (from 1, of all files).

    Without `at` it only counts. `tally`, a path, gets the counts after every step, for a parent to read.
    """

    def __init__(
        self,
        name: str,
        *,
        at: int | None = None,
        on: On = "write",
        action: Action = "before",
        crash: Callable[[], object] = kill_self,
        tally: str | None = None,
        breath: float = 0.0,
        base: str = "",
    ) -> None:
        if at is not None and at < 1:
            raise UsageError(f"writes and syncs are counted from 1; at={at!r} never comes")
        self.name = name
        self.base = base
        self.writes = 0
        self.syncs = 0
        self._at = at
        self._on: On = on
        self._action: Action = action
        self._crash = crash
        #: Before the end other threads go on for so many seconds: what they were told too early, they pass on.
        self._breath = breath
        self._tally = None if tally is None else os.open(tally, os.O_WRONLY | os.O_CREAT, 0o600)
        #: Holds for the whole of a step: what another thread does waits for the end.
        self._lock = threading.RLock()
        super().__init__(name, base, maxpathname=0)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> File:
        return File(self, name, flags)

    def write(self, file: File, data: bytes, offset: int) -> None:
        with self._lock:
            self.writes += 1
            self._count()
            action = self._due("write", self.writes)
            if action == "torn":
                self.do_write(file, data[: len(data) // 2], offset)
            self._act(action, apsw.SQLITE_IOERR_WRITE, "before", "torn")
            self.do_write(file, data, offset)
            self._act(action, apsw.SQLITE_IOERR_WRITE, "after")

    def sync(self, file: File, flags: int) -> None:
        with self._lock:
            self.syncs += 1
            self._count()
            action = self._due("sync", self.syncs)
            self._act(action, apsw.SQLITE_IOERR_FSYNC, "before", "torn")
            self.do_sync(file, flags)
            self._act(action, apsw.SQLITE_IOERR_FSYNC, "after")

    def truncate(self, file: File, size: int) -> None:
        with self._lock:
            self.do_truncate(file, size)

    def do_write(self, file: File, data: bytes, offset: int) -> None:
        file.write(data, offset)

    def do_sync(self, file: File, flags: int) -> None:
        file.sync(flags)

    def do_truncate(self, file: File, size: int) -> None:
        file.truncate(size)

    def _due(self, on: On, number: int) -> Action | None:
        if on == self._on and number == self._at:
            return self._action
        return None

    def _act(self, action: Action | None, failed: int, *crashes: Action) -> None:
        if action is None:
            return
        if action in crashes:
            if self._breath:
                threading.Event().wait(self._breath)
            self._crash()
        elif action == "error" and "before" in crashes:
            raise apsw.exception_for(failed)
        elif action == "full" and "before" in crashes:
            raise apsw.exception_for(apsw.SQLITE_FULL)

    def _count(self) -> None:
        if self._tally is not None:
            os.pwrite(self._tally, f"{self.writes} {self.syncs}\n".encode(), 0)


# -- power --------------------------------------------------------------------------------------


class Change(msgspec.Struct, frozen=True):
    """One change of a file: `new` bytes at an offset, or (None) a truncation to it. `old` is what was there."""

    offset: int
    old: bytes
    new: bytes | None
    size: int  #: of the file before


def undo(content: bytes, changes: list[Change]) -> bytes:
    """What a file held before the changes, which led to `content`."""
    buffer = bytearray(content)
    for change in reversed(changes):
        if len(buffer) < change.size:
            buffer.extend(bytes(change.size - len(buffer)))
        buffer[change.offset : change.offset + len(change.old)] = change.old
        del buffer[change.size :]
    return bytes(buffer)


def redo(content: bytes, changes: list[Change]) -> bytes:
    """What a file holds after the changes; a gap that nobody wrote is zeros."""
    buffer = bytearray(content)
    for change in changes:
        if change.new is None:
            del buffer[change.offset :]
            buffer.extend(bytes(max(0, change.offset - len(buffer))))
        else:
            end = change.offset + len(change.new)
            buffer.extend(bytes(max(0, end - len(buffer))))
            buffer[change.offset : end] = change.new
    return bytes(buffer)


def survivors(changes: list[Change], keep: Keep, chance: Random) -> list[Change]:
    """Those of the changes that a power loss leaves: none; the first few and a torn one; or any sectors of any."""
    if keep == "drop" or not changes:
        return []
    if keep == "prefix":
        count = chance.randrange(len(changes) + 1)
        kept, torn = changes[:count], changes[count : count + 1]
        return kept + [_cut(change, 0, chance.randrange(len(change.new) + 1)) for change in torn if change.new]
    pieces = [piece for change in changes for piece in _sectors(change)]
    return [piece for piece in pieces if chance.random() < 0.5]


def _sectors(change: Change) -> list[Change]:
    """A write in the pieces that a disk writes whole."""
    if change.new is None:
        return [change]
    first = SECTOR - change.offset % SECTOR
    edges = [0, *range(first, len(change.new), SECTOR), len(change.new)]
    return [_cut(change, start, end) for start, end in pairwise(edges)]


def _cut(change: Change, start: int, end: int) -> Change:
    assert change.new is not None
    return Change(change.offset + start, change.old[start:end], change.new[start:end], change.size)


class PowerLossVFS(CrashingVFS):
    """Remembers what was changed since the last sync of each file, so that `lose_power` can take it back.

    Names are as mortal as contents: a file that was made or deleted since the directory was last synced may be missing
    or there again. SQLite syncs the directory with the first sync of a log or journal that it made.
    """

    def __init__(
        self,
        name: str,
        *,
        keep: Keep = "drop",
        seed: int = 0,
        at: int | None = None,
        on: On = "write",
        breath: float = 0.0,
        base: str = "",
    ) -> None:
        self._keep: Keep = keep
        self._chance = Random(seed)
        #: By path: what changed since the last sync, oldest first.
        self._changes: dict[str, list[Change]] = {}
        #: Files made since their directory was last synced.
        self._made: dict[str, None] = {}
        #: Databases that were opened: each has an index in shared memory beside it, which no power loss leaves whole.
        self._databases: dict[str, None] = {}
        #: Files deleted since their directory was last synced, with what was synced of them.
        self._deleted: dict[str, bytes] = {}
        super().__init__(name, at=at, on=on, crash=self.lose_power, breath=breath, base=base)

    def lose_power(self) -> NoReturn:
        """Make the files what they are after a power loss now, and kill this process."""
        with self._lock:
            for path in sorted({**self._changes, **self._made, **self._deleted}):
                self._crash_file(path)
            for path in self._databases:
                _remove(f"{path}-shm")
            kill_self()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> File:
        with self._lock:
            path = name.filename() if isinstance(name, apsw.URIFilename) else name
            fresh = path is not None and not os.path.exists(path)
            file = super().xOpen(name, flags)
            if path is not None and fresh and os.path.exists(path):
                self._made[path] = None
            if path is not None and flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
                self._databases[path] = None
            return file

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self._lock:
            synced = self._synced(filename) if os.path.exists(filename) else b""
            super().xDelete(filename, syncdir)
            self._changes.pop(filename, None)
            if filename in self._made:
                del self._made[filename]
            elif filename not in self._deleted:
                self._deleted[filename] = synced
            if syncdir:
                self._sync_directory(filename)

    def do_write(self, file: File, data: bytes, offset: int) -> None:
        self._remember(file, Change(offset, file.xRead(len(data), offset), data, file.xFileSize()))
        super().do_write(file, data, offset)

    def do_truncate(self, file: File, size: int) -> None:
        before = file.xFileSize()
        old = file.xRead(before - size, size) if before > size else b""
        self._remember(file, Change(size, old, None, before))
        super().do_truncate(file, size)

    def do_sync(self, file: File, flags: int) -> None:
        super().do_sync(file, flags)
        if file.path is not None:
            self._changes.pop(file.path, None)
            if file.syncs_directory:
                file.syncs_directory = False
                self._sync_directory(file.path)

    def _remember(self, file: File, change: Change) -> None:
        if file.path is not None:
            self._changes.setdefault(file.path, []).append(change)

    def _sync_directory(self, path: str) -> None:
        directory = os.path.dirname(path)
        for names in (self._made, self._deleted):
            for name in [name for name in names if os.path.dirname(name) == directory]:
                names.pop(name)

    def _synced(self, path: str) -> bytes:
        return undo(_read(path), self._changes.get(path, []))

    def _crash_file(self, path: str) -> None:
        flip = self._keep != "drop" and self._chance.random() < 0.5
        if path in self._deleted and not flip:
            _replace(path, self._deleted[path])
        elif path in self._made and not flip:
            _remove(path)
        elif path in self._changes:
            kept = survivors(self._changes[path], self._keep, self._chance)
            _replace(path, redo(self._synced(path), kept))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _replace(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


__all__ = [
    "SECTOR",
    "Action",
    "Change",
    "CrashingVFS",
    "File",
    "Keep",
    "On",
    "PowerLossVFS",
    "kill_self",
    "redo",
    "survivors",
    "undo",
]
