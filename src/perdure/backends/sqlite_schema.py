"""Connections to a store, and the schema that they find or make.

Migrations are the numbered files in `sql/sqlite`; all that are missing run in one exclusive transaction, forward only.
"""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import apsw

from perdure.backends.sqlite_errors import no_store
from perdure.backends.sqlite_locks import BUSY_MS, FIRST_MS, wait_for_locks
from perdure.backends.workers import Workers
from perdure.errors import NotFound, SchemaTooNew, StorageRejected, UsageError

Durability = Literal["process", "power"]

#: "perd": what tells our files from those of other applications.
APPLICATION_ID = 0x70657264
#: From this version on, SQLite has no known way to corrupt a log that two connections write.
SAFE_SQLITE = (3, 51, 3)
#: The log file is cut back to this when it begins anew.
LOG_BYTES = 8 << 20
CACHE_KIB = 8192


@cache
def migrations() -> dict[int, str]:
    """The scripts by number."""
    files = sorted((Path(__file__).parent / "sql" / "sqlite").glob("[0-9][0-9][0-9]_*.sql"))
    return {int(file.name[:3]): file.read_text(encoding="utf-8") for file in files}


def newest_schema() -> int:
    return max(migrations())


def connect_writer(path: str, *, durability: Durability, vfs: str | None, workers: Workers) -> apsw.Connection:
    """A connection to write with; makes or migrates the schema. The file exists, though it may be empty."""
    connection = _connect(path, vfs)
    try:
        if _schema(connection, path) < newest_schema() or connection.pragma("journal_mode") != "wal":
            with workers.setting_up():
                _set_up(connection, path)
        connection.pragma("synchronous", "full" if durability == "power" else "normal")
        connection.pragma("fullfsync", durability == "power")  # where a plain sync stops at the disk's cache (macOS)
        connection.pragma("checkpoint_fullfsync", durability == "power")
        connection.pragma("journal_size_limit", LOG_BYTES)
        connection.wal_autocheckpoint(0)  # the writer does it after it has acknowledged
        wait_for_locks(connection, FIRST_MS)
        connection.pragma("cache_size", -CACHE_KIB)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: str, *, vfs: str | None) -> apsw.Connection:
    """A connection to read with. Raises NotFound where nobody made a store yet.

    Who may not write beside the store reads it too: with its owner's log where there is one, else as it lies there.
    """
    try:
        return _checked(_connect(path, vfs), path)
    except (apsw.ReadOnlyError, apsw.CantOpenError):
        if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise
    if _is_empty(f"{path}-wal"):
        return _checked(_connect(f"file:{quote(path)}?immutable=1", vfs, _READ | apsw.SQLITE_OPEN_URI), path)
    try:
        return _checked(_connect(path, vfs, _READ), path)
    except (apsw.ReadOnlyError, apsw.CantOpenError):
        raise StorageRejected(
            f"{path} cannot be read from here: its newest commits are in {path}-wal, and to read that takes the right "
            "to write in its directory. Copy the store and its -wal to a place of your own, and look there"
        ) from None


_READ = apsw.SQLITE_OPEN_READONLY


def _is_empty(log: str) -> bool:
    """Whether there is nothing in a log that is not in its database."""
    try:
        return os.stat(log).st_size == 0
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _checked(connection: apsw.Connection, path: str) -> apsw.Connection:
    """The connection, to be read with only, where the file is a store of the present schema. Else it is closed."""
    try:
        found = _schema(connection, path)
        if found == 0:
            raise NotFound(f"no perdure store in {path} yet: open it to write first")
        if found < newest_schema():
            raise StorageRejected(
                f"{path} has schema {found}, this perdure reads {newest_schema()}: open it once to write, to migrate it"
            )
        connection.pragma("query_only", True)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: str, vfs: str | None, flags: int = apsw.SQLITE_OPEN_READWRITE) -> apsw.Connection:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < SAFE_SQLITE:
        raise UsageError(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a store that two connections use; "
            f"install an apsw that carries {'.'.join(map(str, SAFE_SQLITE))} or newer"
        )
    connection = apsw.Connection(path, flags=flags, vfs=vfs)
    wait_for_locks(connection, BUSY_MS)
    return connection


def _schema(connection: apsw.Connection, path: str) -> int:
    """The number of the schema in the file, 0 for an empty one."""
    found = connection.pragma("user_version")
    application = connection.pragma("application_id")
    if application != APPLICATION_ID:
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
        if application or found or tables:
            raise no_store(path, "it is the database of another application")
        return 0
    if found > newest_schema():
        raise SchemaTooNew(
            f"{path} has schema {found}, this perdure knows schemas up to {newest_schema()}: "
            "upgrade perdure, or name another store"
        )
    return found


def _set_up(connection: apsw.Connection, path: str) -> None:
    """Make the file a store of the newest schema. Another process may have done it while this one waited."""
    if connection.pragma("journal_mode") != "wal" and connection.pragma("journal_mode", "wal") != "wal":
        raise StorageRejected(f"{path} cannot keep a write-ahead log there: move the store to a local disk")
    connection.execute("BEGIN EXCLUSIVE")
    try:
        found = _schema(connection, path)
        for number, script in migrations().items():
            if number > found:
                connection.execute(script)
                connection.execute(f"PRAGMA user_version = {number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    sync_directory(Path(path).parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory as durable as what they name."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
