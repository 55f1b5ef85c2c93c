"""What SQLite's errors mean to a caller of the storage."""

from __future__ import annotations

import errno
import os

import apsw

from perdure.errors import (
    PerdureError,
    StorageCorrupt,
    StorageFailed,
    StorageFull,
    StorageRejected,
)

#: Extended results of a full disk that SQLite reports as an I/O error, before anything was written.
_NO_ROOM_TO_START = frozenset({apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP, apsw.SQLITE_IOERR_SHMOPEN})


def translated(error: Exception, path: str, *, doing: str, errno_of: int = 0) -> PerdureError:
    """The error to raise for what SQLite or Python raised. `errno_of` is the system's last error, where it is known."""
    what = f"{doing} {path}: {type(error).__name__}: {error}"
    match error:
        case PerdureError():
            return error
        case apsw.FullError():
            return StorageFull(f"no space left {what}. Nothing was kept; free some space and it goes on")
        case apsw.IOError() if errno_of == errno.EDQUOT and extended(error) == apsw.SQLITE_IOERR_WRITE:
            return StorageFull(f"the disk quota is used up {what}. Nothing was kept; free some space and it goes on")
        case apsw.IOError():
            return StorageFailed(f"the disk failed {what}. Check the disk, then open the store again")
        case apsw.NotADBError():
            return no_store(path, "file is not a database")
        case apsw.CorruptError():
            return corrupt(path, str(error))
        case apsw.CantOpenError() | apsw.PermissionsError() if not _readable(path):
            return StorageRejected(f"cannot read {what}. Make the file readable and writable for this user")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StorageRejected(f"cannot write {what}. Make the file and its directory writable for this user")
        case _:
            return StorageRejected(f"SQLite refused {what}")


def opening_failed(error: Exception, path: str, *, errno_of: int = 0) -> PerdureError:
    """The error for a store that could not be opened: nothing is in doubt yet."""
    no_room = extended(error) in _NO_ROOM_TO_START
    if no_room or (isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}):
        return StorageFull(f"no space left to open {path}: {error}. Free some space and open it again")
    if isinstance(error, OSError):
        return StorageRejected(
            f"cannot open {path}: {error}. Make its directory writable for this user, or name another store"
        )
    return translated(error, path, doing="while opening", errno_of=errno_of)


def extended(error: Exception) -> int:
    """SQLite's extended result; 0 for an error that is not SQLite's."""
    return getattr(error, "extendedresult", 0)


def corrupt(path: str, detail: str) -> StorageCorrupt:
    return StorageCorrupt(
        f"{path} is not a healthy perdure store ({detail}). Nothing was changed. Keep a copy of the file and its -wal, "
        "then restore a backup, or recover what can be read with `sqlite3 FILE .recover`"
    )


def no_store(path: str, detail: str) -> StorageCorrupt:
    return StorageCorrupt(
        f"{path} is no perdure store ({detail}): check the path; if it was one, restore a backup. Nothing was changed"
    )


def _readable(path: str) -> bool:
    """Whether this user may read the file, as SQLite would."""
    return os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def is_final(error: Exception) -> bool:
    """Whether the file is in doubt from now on (K5): nothing more may be read from it or written to it."""
    return isinstance(error, StorageFailed | StorageCorrupt)
