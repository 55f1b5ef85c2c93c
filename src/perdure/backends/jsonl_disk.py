"""What a JSONL store changes on a disk, call by call: the one seam through which tests fail it, and kill it."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from perdure.errors import PerdureError, StorageCorrupt, StorageFailed, StorageFull, StorageRejected

#: Nobody but the owner of a store may look at it (I78).
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Disk:
    """Every call is done when it returns, or raises OSError. Names are durable once their directory is synced."""

    def create(self, path: Path) -> int:
        """A new file, open to append and read. Raises FileExistsError."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def append(self, descriptor: int, data: bytes) -> int:
        """How much was written: it may be less than was given."""
        return os.write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def make_directory(self, path: Path) -> None:
        """Make it unless it is there, and make that durable."""
        with suppress(FileExistsError):
            path.mkdir(mode=DIRECTORY_MODE)
            self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(path)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append_all(disk: Disk, descriptor: int, data: bytes) -> None:
    """Append it all. Raises OSError when only a part is there."""
    rest = memoryview(data)
    while rest:
        written = disk.append(descriptor, bytes(rest) if len(rest) < len(data) else data)
        if written <= 0:
            raise OSError(errno.EIO, "nothing was written")
        rest = rest[written:]


def open_to_append(path: Path) -> int:
    """A file that is there. Raises FileNotFoundError."""
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)


def open_to_read(path: Path) -> int:
    """A file that is there. Raises FileNotFoundError."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


# -- what errors mean ---------------------------------------------------------------------------


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


def full(path: Path | str, error: BaseException) -> StorageFull:
    return StorageFull(f"no space left while writing {path}: {error}. Nothing was kept; free some space and it goes on")


def failed(path: Path | str, error: BaseException) -> StorageFailed:
    return StorageFailed(f"the disk failed while writing {path}: {error}. Check the disk, then open the store again")


def corrupt(path: Path | str, detail: str) -> StorageCorrupt:
    return StorageCorrupt(
        f"{path} is not healthy ({detail}). Nothing was changed. Keep a copy of the store's directory, "
        "then restore a backup; perdure db check says more"
    )


def opening_failed(error: Exception, path: Path | str) -> PerdureError:
    """The error for a store or session that could not be opened: nothing is in doubt yet."""
    if isinstance(error, PerdureError):
        return error
    if is_full(error):
        return StorageFull(f"no space left to open {path}: {error}. Free some space and open it again")
    return StorageRejected(f"cannot open {path}: {error}. Make it readable and writable for this user, or name another")


def reading_failed(error: Exception, path: Path | str) -> PerdureError:
    if isinstance(error, PerdureError):
        return error
    if isinstance(error, PermissionError):
        return StorageRejected(f"cannot read {path}: {error}. Make it readable for this user")
    return StorageFailed(f"the disk failed while reading {path}: {error}. Check the disk, then open the store again")
