"""Stores in directories of append-only text files: a person can read, search and copy what is in a session.

Any number of sessions in a directory, any number of processes on it, one owner for each session. Commits of a session
that wait are made durable with one write and one flush. See `jsonl_places` for the files, `jsonl_lines` for the lines.
What a returned commit survives is its `durability`: "power" (the default) syncs the file before a commit is
acknowledged; "process" leaves that to the system, so a power loss may take the last commits back, `begun` marks too,
and so repeat an unsafe effect. Claims are synced either way.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from perdure.backends.jsonl_compaction import SLACK
from perdure.backends.jsonl_disk import Disk, append_all, opening_failed
from perdure.backends.jsonl_lines import FORMAT
from perdure.backends.jsonl_places import ABOUT, SESSIONS, WORKERS
from perdure.backends.jsonl_reading import too_new
from perdure.backends.jsonl_reads import JsonlReads
from perdure.backends.jsonl_store import JsonlStore
from perdure.backends.jsonl_thread import Commit, HandIn, Release
from perdure.backends.workers import this_process
from perdure.clock import Clock, SystemClock
from perdure.errors import NotFound, PerdureError, StorageCorrupt, StorageFailed, UsageError
from perdure.records import Inbound, Seq
from perdure.storage import Batch, Claim, Opened, SessionInfo, Worker
from perdure.telemetry import Telemetry


class About(msgspec.Struct, frozen=True):
    """What `store.json` says."""

    perdure: str
    format: int


async def open_jsonl(
    path: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    durability: Literal["process", "power"] = "power",
    mode: Literal["own", "look"] = "own",
    disk: Disk | None = None,
    slack: int = SLACK,
    telemetry: Telemetry | None = None,
) -> JsonlStorage:
    """Open the directory of a store; "own" makes it if need be.

    "look" is for reading and handing in beside a live owner: it claims nothing and makes nothing.
    This backend tells `telemetry` nothing.
    The files of a session are rewritten when more than half of their bytes, and `slack` bytes more, are of no use.
    Raises NotFound (look), SchemaTooNew, StorageCorrupt, StorageFull or StorageRejected, with the path and the remedy.
    """
    name, disk = os.fspath(path), disk or Disk()
    loop, worker = asyncio.get_running_loop(), this_process(clock or SystemClock())
    try:
        where = await loop.run_in_executor(None, _look_around, name, disk, mode == "own")
        store = JsonlStore(where, worker, disk, durability=durability, writable=mode == "own", slack=slack)
        storage = JsonlStorage(store, durability=durability, mode=mode)
        if mode == "own":
            store.workers.enter(store.worker)
        store.open_changes()
    except OSError as error:
        raise opening_failed(error, name) from error
    return storage


def _look_around(path: str, disk: Disk, make: bool) -> Path:
    """Check that a directory is a store, or can become one, and make it one. Its real path."""
    name = Path(os.path.realpath(path))
    if name.exists() and not name.is_dir():
        raise UsageError(f"{name} is a file: a JSONL store is a directory; name another")
    about = name / ABOUT
    if about.exists():
        check_about(about)
    elif not make:
        raise NotFound(f"no store at {name}: check the path, or open it to write, that makes one")
    else:
        _make(name, disk)
    return name


def check_about(about: Path) -> None:
    """Raise StorageCorrupt or SchemaTooNew unless the file says that this is a store."""
    try:
        said = msgspec.json.decode(about.read_bytes(), type=About)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageCorrupt(f"{about} does not say that this is a perdure store ({error}): check the path") from error
    if said.perdure != "jsonl":
        raise StorageCorrupt(f"{about} does not say that this is a perdure store ({said.perdure!r}): check the path")
    if said.format > FORMAT:
        raise too_new(about, said.format)


def _make(name: Path, disk: Disk) -> None:
    above = next((each for each in name.parents if os.path.lexists(each)), None)
    if above is not None and not above.is_dir():
        raise UsageError(f"there can be no store at {name}: {above} is a file, not a directory; check the path")
    for directory in [*reversed([each for each in name.parents if not each.exists()]), name]:
        disk.make_directory(directory)
    strange = [each.name for each in name.iterdir() if not each.name.startswith(".")]
    if set(strange) - {SESSIONS, WORKERS}:
        raise StorageCorrupt(f"{name} is no perdure store, and not empty ({strange[0]}): name another directory")
    part = name / f".{ABOUT}.{os.getpid()}"
    disk.remove(part)
    descriptor = disk.create(part)
    try:
        append_all(disk, descriptor, msgspec.json.encode(About("jsonl", FORMAT)) + b"\n")
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
    disk.rename(part, name / ABOUT)
    disk.make_directory(name / WORKERS)
    disk.sync_directory(name)


class JsonlStorage(JsonlReads):
    """One storage on a directory, with threads and an index of its own."""

    supports_processes = True

    def __init__(
        self, store: JsonlStore, *, durability: Literal["process", "power"], mode: Literal["own", "look"]
    ) -> None:
        self.worker: Worker = store.worker
        self.durability: Literal["none", "process", "power"] = durability
        self.path = str(store.path)
        self._opened = store
        self._mode = mode
        self._process = os.getpid()
        #: Set by the first call of `close`.
        self._closing: asyncio.Future[None] | None = None

    def _store(self) -> JsonlStore:
        if self._closing is not None:
            raise StorageFailed(f"this storage of {self.path} is closed: open it again")
        if self._process != os.getpid():
            raise StorageFailed(f"{self.path} was opened before this process was forked: open it again in the child")
        return self._opened

    # -- ownership
    async def claim(self, session: str, *, take_over: bool = False, kill: bool = False) -> Opened:
        if self._mode == "look":
            raise UsageError(f"{self.path} was opened to look: open it with mode='own' to claim a session")
        store = self._store()
        return await store.writer.ask(lambda: store.claim_here(session, take_over=take_over, kill=kill))

    async def release(self, claim: Claim) -> None:
        await self._store().writer.admit(Release(claim))

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[SessionInfo]:
        store = self._store()
        return await store.reader.ask(lambda: store.list_here(after, limit))

    # -- the two writes
    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]:
        try:
            return self._store().writer.admit(Commit(claim, batch))
        except PerdureError as error:
            refused: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def hand_in(self, session: str, item: Inbound) -> Inbound:
        return await self._store().writer.admit(HandIn(session, item))

    # -- hints
    async def change_count(self) -> int:
        store = self._store()
        return await store.reader.ask(store.changes_here)

    # -- care
    async def close(self) -> None:
        """See the port. Cancelling it cancels the wait only."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        store = self._opened
        if self._process != os.getpid():
            return
        await store.writer.stop()
        await store.reader.stop()
        with suppress(OSError):
            store.workers.leave(self.worker.id)
        store.close_here()


__all__ = ["JsonlStorage", "open_jsonl"]
