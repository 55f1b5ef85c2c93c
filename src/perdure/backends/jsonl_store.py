"""A JSONL store as one storage has it open: its sessions, its two threads, and whether it is in doubt."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from perdure.backends import jsonl_claims
from perdure.backends.jsonl_appending import Appending
from perdure.backends.jsonl_compaction import tidy
from perdure.backends.jsonl_disk import Disk, opening_failed, reading_failed
from perdure.backends.jsonl_inbound import opened
from perdure.backends.jsonl_places import CHANGES, INBOUND, SESSIONS, WORKERS, key_of, name_of
from perdure.backends.jsonl_session import JsonlSession
from perdure.backends.jsonl_thread import Commit, Grouped, HandIn, Release, Thread
from perdure.backends.outcomes import Outcome, again, resolve
from perdure.backends.workers import Workers
from perdure.errors import PerdureError, StorageCorrupt, StorageFailed
from perdure.records import decode_inbound, encode
from perdure.storage import Opened, SessionInfo, Worker

T = TypeVar("T")
Waiting = Sequence[tuple[asyncio.Future[Any], Grouped]]


class JsonlStore:
    """Functions named `..._here` run on one of its threads."""

    def __init__(
        self,
        path: Path,
        worker: Worker,
        disk: Disk,
        *,
        durability: Literal["process", "power"],
        writable: bool,
        slack: int,
    ) -> None:
        self.path = path
        self.worker = worker
        self.disk = disk
        self.workers = Workers(str(path), path / WORKERS)
        self.reader = Thread(f"perdure-reader {path}")
        self.writer = Thread(f"perdure-writer {path}", self._carry_out_here)
        self._power = durability == "power"
        self._writable = writable
        self._slack = slack
        self._sessions: dict[str, JsonlSession] = {}
        #: The file of hints, open; and how much of it this storage wrote.
        self._changes: int | None = None
        self._own_changes = 0

    # -- sessions

    def session(self, key: str) -> JsonlSession:
        found = self._sessions.get(key)
        if found is None:
            directory = self.path / SESSIONS / name_of(key)
            made = JsonlSession(key, directory, writable=self._writable, power=self._power)
            found = self._sessions.setdefault(key, made)
        return found

    def read_here(self, key: str, function: Callable[[JsonlSession], T]) -> T:
        """What a function finds in a session that is up to date."""
        session = self.session(key)
        try:
            with session.lock:
                session.refresh()
                return function(session)
        except OSError as error:
            raise reading_failed(error, session.directory) from error

    def list_here(self, after: str, limit: int) -> list[SessionInfo]:
        """Sessions by key, greater than `after`."""
        try:
            found = [key_of(each) for each in (self.path / SESSIONS).iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise reading_failed(error, self.path) from error
        keys = sorted(key for key in found if key is not None and key > after)[:limit]
        return [self.read_here(key, self._info) for key in keys]

    def _info(self, session: JsonlSession) -> SessionInfo:
        index = session.index
        owner = index.worker if index.worker is not None and self.workers.alive(index.worker.id) else None
        return SessionInfo(key=session.key, epoch=index.session.epoch, head=index.session.head, owner=owner)

    # -- writing

    def claim_here(self, key: str, *, take_over: bool, kill: bool) -> Opened:
        session = self.session(key)
        try:
            opened = jsonl_claims.claim(
                session, str(self.path), self.workers, self.worker, self.disk, take_over=take_over, kill=kill
            )
        except (StorageFailed, StorageCorrupt) as error:
            raise self._failed(error) from error
        except OSError as error:
            raise opening_failed(error, session.directory) from error
        self._changed()
        return opened

    def _carry_out_here(self, group: Waiting) -> None:
        """Do it, tell everyone, session by session."""
        appending: dict[str, Appending] = {}
        items: dict[str, list[tuple[asyncio.Future[Any], HandIn]]] = {}
        for done, work in group:
            if isinstance(work, HandIn):
                items.setdefault(work.session, []).append((done, work))
            else:
                self._stage(appending, done, work)
        for each in appending.values():
            self._flush(each)
        for key, waiting in items.items():
            self._hand_in(key, waiting)

    def _stage(self, appending: dict[str, Appending], done: asyncio.Future[Any], work: Commit | Release) -> None:
        key = work.claim.session
        outcome: Outcome = None
        try:
            found = appending.get(key)
            if found is not None and found.ends:
                self._flush(found)
                found = None
            if found is None:
                session = self.session(key)
                found = appending[key] = Appending(session, str(self.path), self.disk, power=self._power)
            if isinstance(work, Commit):
                outcome = found.commit(done, work.claim, work.batch)
                staged = outcome is None
            else:
                staged = found.release(done, work.claim)
        except (PerdureError, OSError) as error:
            staged, outcome = False, reading_failed(error, self.path)
        if not staged:
            resolve([done], [outcome])

    def _flush(self, appending: Appending) -> None:
        if self.writer.failure is not None:
            resolve(*appending.refuse(self.writer.failure))
            return

        def tell(waiting: list[asyncio.Future[Any]], outcomes: list[Outcome]) -> None:
            self._changed()
            resolve(waiting, outcomes)

        failure = appending.flush(tell)
        if failure is not None:
            self._failed(failure)
            return
        try:
            tidy(appending.session, self.disk, self._slack)
        except PerdureError as error:  # nobody waits for it; what is in doubt is told to whoever comes next
            self._failed(error)

    def _hand_in(self, key: str, waiting: list[tuple[asyncio.Future[Any], HandIn]]) -> None:
        session = self.session(key)
        outcomes: list[Outcome]
        try:
            if self.writer.failure is not None:
                raise again(self.writer.failure)
            self.disk.make_directory(session.directory.parent)
            self.disk.make_directory(session.directory)
            items = [(work.item.id, encode(work.item)) for _, work in waiting]
            with opened(session.directory / INBOUND, self.disk), session.lock:
                session.refresh()
                session.inbound.hand_in(session.index, key, items, self.disk, power=self._power)
                known = [session.index.session.inbound.body(id) for id, _ in items]
                outcomes = [decode_inbound(session.body(cast(bytes, each))) for each in known]
            self._changed()
        except (StorageFailed, StorageCorrupt) as error:
            outcomes = [again(self._failed(error)) for _ in waiting]
        except (PerdureError, OSError) as error:
            outcomes = [again(opening_failed(error, session.directory)) for _ in waiting]
        resolve([done for done, _ in waiting], outcomes)

    def _failed(self, error: PerdureError) -> PerdureError:
        """From now on every call raises this (K5)."""
        if isinstance(error, StorageFailed) and self.writer.failure is None:
            self.writer.failure = self.reader.failure = error
        return again(error)

    # -- hints

    def open_changes(self) -> None:
        """Join those who watch the file of hints. Whoever is alone with it makes it short again."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT if self._writable else os.O_RDONLY
        try:
            descriptor = os.open(self.path / CHANGES, flags | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # then nobody is told of changes, which are there all the same
        self._changes = descriptor
        if self._writable:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(descriptor, 0)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def changes_here(self) -> int:
        if self._changes is None:
            self.open_changes()
        return 0 if self._changes is None else os.fstat(self._changes).st_size - self._own_changes

    def _changed(self) -> None:
        if self._changes is None:
            self.open_changes()
        with suppress(OSError):
            if self._changes is not None and os.write(self._changes, b"\n") == 1:
                self._own_changes += 1

    def close_here(self) -> None:
        """Once both threads have nothing left to do."""
        for session in self._sessions.values():
            session.close()
        if self._changes is not None:
            os.close(self._changes)
            self._changes = None
