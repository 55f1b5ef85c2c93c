"""Where a JSONL store meets the file system: count its writes and syncs, and be killed, fail or lose power at the n-th.

A write is an append, a truncation, or a change of a name; a sync is one of a file or of a directory.
`CrashingDisk` ends the process as SIGKILL does: everything that was written stays, as the kernel has it.
`PowerLossDisk` ends the machine: of what was written since a file's last sync nothing stays, or the first part, or any;
and of the names that changed since their directory was synced, so many of the first.
Only one process may have the store open meanwhile.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NoReturn

import msgspec

from perdure.backends.jsonl_disk import Disk
from perdure.errors import UsageError
from perdure.testing.vfs import Action, Change, Keep, On, kill_self, redo, survivors, undo


class CrashingDisk(Disk):
    """Passes everything on, counts, and acts at the `at`-th write or sync (from 1, of all files).

    Without `at` it only counts. `tally`, a path, gets the counts after every step, for a parent to read.
    """

    def __init__(
        self,
        *,
        at: int | None = None,
        on: On = "write",
        action: Action = "before",
        crash: Callable[[], object] = kill_self,
        tally: str | None = None,
        breath: float = 0.0,
    ) -> None:
        if at is not None and at < 1:
            raise UsageError(f"writes and syncs are counted from 1; at={at!r} never comes")
        self.writes = 0
        self.syncs = 0
        self._at = at
        self._on: On = on
        self._action: Action = action
        self._crash = crash
        self._breath = breath
        self._tally = None if tally is None else os.open(tally, os.O_WRONLY | os.O_CREAT, 0o600)
        #: Holds for the whole of a step: what another thread does waits for the end.
        self._lock = threading.RLock()

    # -- writes

    def create(self, path: Path) -> int:
        return self._write(lambda: self.do_create(path))

    def append(self, descriptor: int, data: bytes) -> int:
        return self._write(
            lambda: self.do_append(descriptor, data), lambda: self.do_append(descriptor, data[: len(data) // 2])
        )

    def truncate(self, descriptor: int, size: int) -> None:
        self._write(lambda: self.do_truncate(descriptor, size))

    def rename(self, old: Path, new: Path) -> None:
        self._write(lambda: self.do_rename(old, new))

    def remove(self, path: Path) -> None:
        if os.path.lexists(path):
            self._write(lambda: self.do_remove(path))

    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            self._write(lambda: self.do_make_directory(path))
            self.sync_directory(path.parent)

    # -- syncs

    def sync(self, descriptor: int) -> None:
        self._sync(lambda: self.do_sync(descriptor))

    def sync_directory(self, path: Path) -> None:
        self._sync(lambda: self.do_sync_directory(path))

    # -- what is done

    def do_create(self, path: Path) -> int:
        return super().create(path)

    def do_append(self, descriptor: int, data: bytes) -> int:
        return super().append(descriptor, data)

    def do_truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)

    def do_rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)

    def do_remove(self, path: Path) -> None:
        super().remove(path)

    def do_make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def do_sync(self, descriptor: int) -> None:
        super().sync(descriptor)

    def do_sync_directory(self, path: Path) -> None:
        super().sync_directory(path)

    # -- when

    def due(self, on: On, number: int) -> Action | None:
        """What happens at this write or sync."""
        return self._action if on == self._on and number == self._at else None

    def _write(self, do: Callable[[], int | None], half: Callable[[], object] | None = None) -> int:
        with self._lock:
            self.writes += 1
            self._count()
            action = self.due("write", self.writes)
            if action == "torn" and half is not None:
                half()
            self._act(action, "before", "torn")
            done = do()
            self._act(action, "after")
            return done or 0

    def _sync(self, do: Callable[[], None]) -> None:
        with self._lock:
            self.syncs += 1
            self._count()
            action = self.due("sync", self.syncs)
            self._act(action, "before", "torn")
            do()
            self._act(action, "after")

    def _act(self, action: Action | None, *crashes: Action) -> None:
        if action is None:
            return
        if action in crashes:
            if self._breath:
                threading.Event().wait(self._breath)
            self._crash()
        elif action == "error" and "before" in crashes:
            raise OSError(errno.EIO, "the disk was told to fail")
        elif action == "full" and "before" in crashes:
            raise OSError(errno.ENOSPC, "the disk was told to be full")

    def _count(self) -> None:
        if self._tally is not None:
            os.pwrite(self._tally, f"{self.writes} {self.syncs}\n".encode(), 0)


# -- power --------------------------------------------------------------------------------------


class Named(msgspec.Struct, frozen=True):
    """A change of a name in a directory: made, removed, or given to what was called `old`.

    `held`: what the disk had of the file that went.
    """

    path: Path
    what: str
    old: Path | None = None
    held: bytes | None = None


class PowerLossDisk(CrashingDisk):
    """Remembers what was changed since the last syncs, so that `lose_power` can take it back."""

    def __init__(
        self, *, keep: Keep = "drop", seed: int = 0, at: int | None = None, on: On = "write", breath: float = 0.0
    ) -> None:
        self._keep: Keep = keep
        self._chance = Random(seed)
        #: By path: what changed since the last sync, oldest first.
        self._changes: dict[str, list[Change]] = {}
        #: By directory: names that changed since it was synced, oldest first.
        self._names: dict[Path, list[Named]] = {}
        super().__init__(at=at, on=on, crash=self.lose_power, breath=breath)

    def lose_power(self) -> NoReturn:
        """Make the files what they are after a power loss now, and kill this process."""
        with self._lock:
            for path in sorted(self._changes):
                kept = survivors(self._changes[path], self._keep, self._chance)
                _replace(Path(path), redo(self._synced(Path(path)), kept))
            for directory in sorted(self._names, reverse=True):
                names = self._names[directory]
                count = 0 if self._keep == "drop" else self._chance.randrange(len(names) + 1)
                for change in reversed(names[count:]):
                    _take_back(change)
            kill_self()

    def do_create(self, path: Path) -> int:
        descriptor = super().do_create(path)
        self._remember_name(Named(path, "made"))
        return descriptor

    def do_make_directory(self, path: Path) -> None:
        super().do_make_directory(path)
        self._remember_name(Named(path, "made"))

    def do_append(self, descriptor: int, data: bytes) -> int:
        size = os.fstat(descriptor).st_size
        written = super().do_append(descriptor, data)
        self._remember(descriptor, Change(size, b"", data[:written], size))
        return written

    def do_truncate(self, descriptor: int, size: int) -> None:
        before = os.fstat(descriptor).st_size
        old = os.pread(descriptor, max(before - size, 0), size)
        super().do_truncate(descriptor, size)
        self._remember(descriptor, Change(size, old, None, before))

    def do_rename(self, old: Path, new: Path) -> None:
        held = self._synced(new) if new.exists() else None
        super().do_rename(old, new)
        self._changes.pop(str(new), None)
        if str(old) in self._changes:
            self._changes[str(new)] = self._changes.pop(str(old))
        self._remember_name(Named(new, "renamed", old, held))

    def do_remove(self, path: Path) -> None:
        held = self._synced(path)
        super().do_remove(path)
        self._changes.pop(str(path), None)
        self._remember_name(Named(path, "removed", None, held))

    def do_sync(self, descriptor: int) -> None:
        super().do_sync(descriptor)
        self._changes.pop(_path_of(descriptor), None)

    def do_sync_directory(self, path: Path) -> None:
        super().do_sync_directory(path)
        self._names.pop(path, None)

    def _remember(self, descriptor: int, change: Change) -> None:
        self._changes.setdefault(_path_of(descriptor), []).append(change)

    def _remember_name(self, change: Named) -> None:
        self._names.setdefault(change.path.parent, []).append(change)

    def _synced(self, path: Path) -> bytes:
        return undo(path.read_bytes(), self._changes.get(str(path), []))


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _take_back(change: Named) -> None:
    if change.what == "made":
        if change.path.is_dir():
            shutil.rmtree(change.path)
        elif change.path.exists():
            change.path.unlink()
    elif change.what == "renamed" and change.old is not None and change.path.exists():
        os.rename(change.path, change.old)
    if change.held is not None:
        _replace(change.path, change.held)


def _replace(path: Path, content: bytes) -> None:
    if path.parent.is_dir():
        path.write_bytes(content)


__all__ = ["CrashingDisk", "Named", "PowerLossDisk"]
