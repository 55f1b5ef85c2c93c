"""The reference storage: dictionaries with the exact semantics of the port.

Nothing outlives the process. A commit is applied when it is called and its future is resolved on return,
so that whoever owns the clock and the order of callbacks (a simulator) owns all of the storage's timing.
Bytes go in and come out; nothing iterates over a set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from perdure.backends.memory_session import MemorySession
from perdure.clock import Clock, SystemClock
from perdure.errors import Fenced, SessionOwned, StorageError, StorageFailed, StorageRejected
from perdure.records import (
    ConversationId,
    DocumentId,
    EntryId,
    Inbound,
    Seq,
    SubmissionId,
    TaskId,
    decode_inbound,
    encode,
)
from perdure.storage import Batch, Claim, DocumentValue, Opened, SessionInfo, Worker


class _Store:
    """What the handles of one store share."""

    def __init__(self) -> None:
        self.sessions: dict[str, MemorySession] = {}
        #: Workers whose handle is neither closed nor abandoned, by id.
        self.alive: dict[str, Worker] = {}
        #: Counts every write, for `change_count`.
        self.writes = 0

    def session(self, key: str) -> MemorySession:
        found = self.sessions.get(key)
        if found is None:
            found = self.sessions[key] = MemorySession()
        return found


_NOTHING = MemorySession()


class MemoryReads:
    """The reads of the port, each one look into the session's tables."""

    def __init__(self, store: _Store) -> None:
        self._store = store
        self._open = True

    def _check_open(self) -> None:
        if not self._open:
            raise StorageFailed("this memory storage is closed: open another handle with reopened()")

    def _session(self, key: str) -> MemorySession:
        self._check_open()
        return self._store.sessions.get(key, _NOTHING)

    async def find_commit(self, session: str, commit_id: bytes) -> Seq | None:
        return self._session(session).find_commit(commit_id)

    async def head(self, session: str) -> tuple[int, Seq]:
        found = self._session(session)
        return found.epoch, found.head

    async def read_conversation(self, session: str, id: ConversationId) -> bytes | None:
        return self._session(session).conversations.body(id)

    async def find_conversation(self, session: str, key: str) -> bytes | None:
        found = self._session(session)
        return found.conversations.body(found.holder("conversation", key))

    async def scan_conversations(self, session: str, *, before: int | None = None, limit: int = 100) -> list[bytes]:
        return self._session(session).listed(before, limit)

    async def owned_conversations(self, session: str, owners: Sequence[TaskId]) -> list[bytes]:
        return self._session(session).owned(owners)

    async def forks_of(self, session: str, parent: ConversationId) -> list[bytes]:
        return self._session(session).forks(parent)

    async def read_entry(self, session: str, id: EntryId) -> bytes | None:
        return self._session(session).entries.body(id)

    async def scan_entries(
        self, session: str, conversation: ConversationId, *, before: int | None = None, limit: int = 100
    ) -> list[bytes]:
        return self._session(session).entries.newest(conversation, before, limit)

    async def count_entries(
        self, session: str, conversations: Sequence[ConversationId]
    ) -> list[tuple[ConversationId, int]]:
        entries = self._session(session).entries
        return [(id, entries.count(id)) for id in conversations]

    async def newest_head(
        self, session: str, conversation: ConversationId, *, before: int | None = None
    ) -> bytes | None:
        found = self._session(session).entries.newest(conversation, before, 1, heads=True)
        return found[0] if found else None

    async def read_tasks(self, session: str, ids: Sequence[TaskId]) -> list[bytes]:
        return self._session(session).tasks.bodies(ids)

    async def scan_tasks(
        self, session: str, *, live: bool, after: int = 0, limit: int = 500, ended_before: float | None = None
    ) -> list[bytes]:
        return [row.body for row in self._session(session).tasks.scan(live, after, ended_before)[:limit]]

    async def read_submission(self, session: str, id: SubmissionId) -> bytes | None:
        return self._session(session).submissions.body(id)

    async def find_submission(self, session: str, conversation: ConversationId, request_id: str) -> bytes | None:
        found = self._session(session)
        return found.submissions.body(found.holder("submission", conversation, request_id))

    async def scan_submissions(
        self,
        session: str,
        *,
        live: bool,
        conversation: ConversationId | None = None,
        after: int = 0,
        limit: int = 500,
        ended_before: float | None = None,
    ) -> list[bytes]:
        return self._session(session).submitted(live, conversation, after, ended_before, limit)

    async def find_document(self, session: str, scope: str, owner: int, kind: str, key: str) -> bytes | None:
        found = self._session(session)
        return found.documents.body(found.holder("document", scope, owner, kind, key))

    async def scan_documents(
        self,
        session: str,
        scope: str,
        owner: int,
        *,
        kind: str | None = None,
        retired: bool = False,
        after: int = 0,
        limit: int = 500,
    ) -> list[bytes]:
        return self._session(session).documents_of(scope, owner, kind, retired, after, limit)

    async def read_document(self, session: str, id: DocumentId, *, at: Seq | None = None) -> DocumentValue | None:
        return self._session(session).versions.value(id, at)

    async def read_inbound(self, session: str, id: str) -> bytes | None:
        return self._session(session).inbound.body(id)

    async def scan_inbound(
        self, session: str, *, taken: bool = False, after: str = "", limit: int = 100
    ) -> list[bytes]:
        return self._session(session).inbound.scan(taken, after, limit)


class MemoryStorage(MemoryReads):
    """A handle on a store in memory; `reopened()` gives another one on the same data, as a new process would have."""

    durability: Literal["none", "process", "power"] = "none"
    supports_processes = False

    def __init__(self, clock: Clock | None = None, *, store: _Store | None = None) -> None:
        self._clock = clock or SystemClock()
        super().__init__(store or _Store())
        #: Of `_store.writes`, those through this handle.
        self._own_writes = 0
        # No pid and no host: they would differ from run to run, and a simulation replays exactly.
        self.worker = Worker(id=self._clock.uuid7(), pid=0, started=0, host="memory", since=self._clock.now())
        self._store.alive[self.worker.id] = self.worker

    def reopened(self) -> MemoryStorage:
        """A new worker over the same data. Until this handle is closed or abandoned, both are alive."""
        return MemoryStorage(self._clock, store=self._store)

    def abandon(self) -> None:
        """Die without closing: what was committed stays, held claims lose their worker, further calls raise."""
        self._open = False
        self._store.alive.pop(self.worker.id, None)

    # -- ownership
    async def claim(self, session: str, *, take_over: bool = False, kill: bool = False) -> Opened:
        self._check_open()
        found = self._store.session(session)
        owner = self._store.alive.get(found.owner or "")
        if owner is not None and not take_over:
            whose = (
                "this handle" if owner is self.worker else f"another handle (worker {owner.id}, since {owner.since})"
            )
            raise SessionOwned(
                f"session {session!r} of this memory store is owned by {whose}: read it, hand items in, "
                "or end that owner's right to write with take_over=True"
            )
        opened = found.claim(session, self.worker.id)
        self._wrote()
        return opened

    async def release(self, claim: Claim) -> None:
        self._check_open()
        if self._session(claim.session).release(claim.epoch):
            self._wrote()

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[SessionInfo]:
        self._check_open()
        keys = [key for key in sorted(self._store.sessions) if key > after][:limit]
        found = [(key, self._store.sessions[key]) for key in keys]
        return [
            SessionInfo(key=key, epoch=one.epoch, head=one.head, owner=self._store.alive.get(one.owner or ""))
            for key, one in found
        ]

    # -- the two writes
    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]:
        done: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()
        try:
            self._check_open()
            self._apply(claim, batch)
        except StorageError as refusal:
            done.set_exception(refusal)
        else:
            done.set_result(batch.seq)
        return done

    def _apply(self, claim: Claim, batch: Batch) -> None:
        found = self._session(claim.session)
        if found.epoch != claim.epoch or found.owner is None:
            raise Fenced(
                f"session {claim.session!r} is at epoch {found.epoch}, this claim has {claim.epoch}"
                f"{'' if found.owner else ' and was released'}: open the session again"
            )
        if batch.seq != found.head + 1:
            raise StorageRejected(
                f"commit {batch.seq} of session {claim.session!r} does not follow its head {found.head}"
            )
        conflict = found.conflict(batch.writes)
        if conflict is not None:
            raise StorageRejected(f"commit {batch.seq} of session {claim.session!r} was refused: {conflict}")
        found.apply(batch)
        self._wrote()

    async def hand_in(self, session: str, item: Inbound) -> Inbound:
        self._check_open()
        first = self._store.session(session).inbound.hand_in(item.id, encode(item))
        self._wrote()
        return decode_inbound(first)

    # -- hints
    async def change_count(self) -> int:
        self._check_open()
        return self._store.writes - self._own_writes

    # -- care
    async def close(self) -> None:
        self.abandon()

    def _wrote(self) -> None:
        self._store.writes += 1
        self._own_writes += 1


__all__ = ["MemoryStorage"]
