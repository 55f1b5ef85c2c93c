"""Stores in SQLite files: any number of sessions in a file, any number of processes on it, one owner for each session.

Commits of all sessions that wait are made durable with one flush, by the one thread of a process that writes the file.
Reads have a thread and a connection of their own, so they never wait for a flush.
What a returned commit survives is its `durability`: "power" (the default) syncs the log at each flush; "process" leaves
that to the system, so a power loss may take the last commits back, `begun` marks too, and so repeat an unsafe effect.
"""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Literal

import apsw

from perdure.backends import sqlite_claims
from perdure.backends.sqlite_claims import worker_of
from perdure.backends.sqlite_errors import opening_failed
from perdure.backends.sqlite_file import SqliteFile, share
from perdure.backends.sqlite_reader import Reader
from perdure.backends.sqlite_reads import SqliteReads
from perdure.backends.sqlite_rows import fetch
from perdure.backends.sqlite_schema import Durability
from perdure.backends.sqlite_writer import Writer
from perdure.backends.workers import this_process
from perdure.clock import Clock, SystemClock
from perdure.errors import PerdureError, StorageFailed, UsageError
from perdure.records import Inbound, Seq, decode_inbound, encode
from perdure.storage import Batch, Claim, Opened, SessionInfo, Worker
from perdure.telemetry import Telemetry

SESSIONS = """
SELECT session.key, epoch, head, worker.id, pid, started, host, since
FROM session LEFT JOIN worker ON worker.id = session.owner
WHERE session.key > ? ORDER BY session.key LIMIT ?
"""


async def open_sqlite(
    path: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    durability: Durability = "power",
    mode: Literal["own", "look"] = "own",
    vfs: str | None = None,
    telemetry: Telemetry | None = None,
) -> SqliteStorage:
    """Open a store file; "own" makes it, or migrates it, if need be.

    "look" is for reading and handing in beside a live owner: it claims nothing and makes nothing.
    Raises NotFound (look), SchemaTooNew, StorageCorrupt, StorageFull or StorageRejected, with the path and the remedy.
    """
    try:
        file = share(path, durability=durability, vfs=vfs, telemetry=telemetry or Telemetry(), create=mode == "own")
    except OSError as error:
        raise opening_failed(error, os.fspath(path)) from error
    clock = clock or SystemClock()
    worker = this_process(clock)
    storage = SqliteStorage(file, worker, mode=mode)
    try:
        if mode == "own":
            await file.writer.alone(_nothing, writes=False)
            file.workers.enter(worker)  # only now: beside what is no store, nothing is made
        else:
            await file.reader.ask(_nothing)
    except BaseException as error:
        file.workers.leave(worker.id)
        for stopped in file.leave():
            await asyncio.shield(stopped)
        if isinstance(error, OSError):
            raise opening_failed(error, file.path) from error
        raise
    return storage


def _nothing(connection: apsw.Connection) -> None:
    """Done when everything before it is, and only where the store could be opened."""


class SqliteStorage(SqliteReads):
    """One storage on a file. Storages of one process on the same file share its threads."""

    supports_processes = True

    def __init__(self, file: SqliteFile, worker: Worker, *, mode: Literal["own", "look"]) -> None:
        self.worker = worker
        self.durability: Literal["none", "process", "power"] = file.durability
        self.path = file.path
        self._file = file
        self._mode = mode
        #: Set by the first call of `close`.
        self._closing: asyncio.Future[None] | None = None
        #: Works that this storage admitted, to tell its own writes from those of its neighbours.
        self._admitted = 0
        #: What the file looked like at the last `change_count`, and how often that was something new.
        self._seen: tuple[bool, int, int] | None = None
        self._changes = 0

    # -- ownership
    async def claim(self, session: str, *, take_over: bool = False, kill: bool = False) -> Opened:
        if self._mode == "look":
            raise UsageError(f"{self.path} was opened to look: open it with mode='own' to claim a session")
        file, worker = self._file, self.worker

        def claim(connection: apsw.Connection) -> Opened:
            return sqlite_claims.claim(connection, file.path, file.workers, worker, session, take_over, kill)

        # It survives the process now, and a power loss with the first commit that is made under it: until that is
        # flushed nobody was told anything for which the claim would have to have happened.
        claimed = self._writer().alone(claim, flush=False)
        with suppress(PerdureError):  # the reader opens meanwhile; whoever reads is told what it cannot do
            await file.reader.ask(_nothing)
        return await claimed

    async def release(self, claim: Claim) -> None:
        await self._writer().together(lambda connection: sqlite_claims.release(connection, claim))

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[SessionInfo]:
        def read(connection: apsw.Connection) -> list[SessionInfo]:
            rows = fetch(connection, SESSIONS, (after, limit))
            found = [(row[:3], worker_of(row[3:]) if row[3] is not None else None) for row in rows]
            alive = {id: self._file.workers.alive(id) for id in dict.fromkeys(each.id for _, each in found if each)}
            return [
                SessionInfo(key=key, epoch=epoch, head=Seq(head), owner=owner if owner and alive[owner.id] else None)
                for (key, epoch, head), owner in found
            ]

        return await self._reader().ask(read)

    # -- the two writes
    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]:
        try:
            return self._writer().commit(claim, batch)
        except PerdureError as error:
            refused: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def hand_in(self, session: str, item: Inbound) -> Inbound:
        body = encode(item)
        first = await self._writer().together(
            lambda connection: sqlite_claims.hand_in(connection, session, item.id, body)
        )
        return decode_inbound(first)

    # -- hints
    async def change_count(self) -> int:
        self._check_open()
        written, admitted = self._file.is_written, self._admitted

        def look(connection: apsw.Connection) -> tuple[bool, int, int]:
            # The version moves when another connection commits; our own process's other storages share this one.
            neighbours = self._file.writer.finished - admitted if written else 0
            return written, connection.pragma("data_version"), neighbours

        seen = await (self._file.writer.alone(look, writes=False) if written else self._file.reader.ask(look))
        if seen != self._seen:
            self._seen = seen
            self._changes += 1
        return self._changes

    # -- care
    async def close(self) -> None:
        """See the port. Cancelling it cancels the wait only."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        file = self._file
        if file.is_written:
            with suppress(PerdureError):  # where the file failed, whoever wrote to it was told
                await file.writer.alone(_nothing, writes=False)
        file.workers.leave(self.worker.id)
        for stopped in file.leave():
            await stopped

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StorageFailed(f"this storage of {self.path} is closed: open it again")

    def _reader(self) -> Reader:
        self._check_open()
        return self._file.reader

    def _writer(self) -> Writer:
        self._check_open()
        writer = self._file.writer
        self._admitted += 1
        return writer


__all__ = ["SqliteStorage", "open_sqlite"]
