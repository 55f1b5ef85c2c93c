"""The reads of the port: each looks into the up-to-date index of its session, and fetches the bodies it names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from perdure.backends.jsonl_session import JsonlSession
from perdure.backends.jsonl_store import JsonlStore
from perdure.backends.memory_session import MemorySession
from perdure.records import ConversationId, DocumentId, EntryId, Seq, SubmissionId, TaskId
from perdure.storage import DocumentValue

T = TypeVar("T")


class JsonlReads:
    """Reads of any session."""

    def _store(self) -> JsonlStore:
        """The store, or the reason why there is none any more."""
        raise NotImplementedError

    async def _look(self, session: str, function: Callable[[JsonlSession], T]) -> T:
        store = self._store()
        return await store.reader.ask(lambda: store.read_here(session, function))

    async def _many(self, session: str, find: Callable[[MemorySession], list[bytes]]) -> list[bytes]:
        return await self._look(session, lambda at: at.bodies(find(at.index.session)))

    async def _one(self, session: str, find: Callable[[MemorySession], bytes | None]) -> bytes | None:
        def look(at: JsonlSession) -> bytes | None:
            found = find(at.index.session)
            return None if found is None else at.body(found)

        return await self._look(session, look)

    async def find_commit(self, session: str, commit_id: bytes) -> Seq | None:
        return await self._look(session, lambda at: at.index.session.find_commit(commit_id))

    async def head(self, session: str) -> tuple[int, Seq]:
        return await self._look(session, lambda at: (at.index.session.epoch, at.index.session.head))

    async def read_conversation(self, session: str, id: ConversationId) -> bytes | None:
        return await self._one(session, lambda at: at.conversations.body(id))

    async def find_conversation(self, session: str, key: str) -> bytes | None:
        return await self._one(session, lambda at: at.conversations.body(at.holder("conversation", key)))

    async def scan_conversations(self, session: str, *, before: int | None = None, limit: int = 100) -> list[bytes]:
        return await self._many(session, lambda at: at.listed(before, limit))

    async def owned_conversations(self, session: str, owners: Sequence[TaskId]) -> list[bytes]:
        return await self._many(session, lambda at: at.owned(owners))

    async def forks_of(self, session: str, parent: ConversationId) -> list[bytes]:
        return await self._many(session, lambda at: at.forks(parent))

    async def read_entry(self, session: str, id: EntryId) -> bytes | None:
        return await self._one(session, lambda at: at.entries.body(id))

    async def scan_entries(
        self, session: str, conversation: ConversationId, *, before: int | None = None, limit: int = 100
    ) -> list[bytes]:
        return await self._many(session, lambda at: at.entries.newest(conversation, before, limit))

    async def count_entries(
        self, session: str, conversations: Sequence[ConversationId]
    ) -> list[tuple[ConversationId, int]]:
        return await self._look(session, lambda at: [(id, at.index.session.entries.count(id)) for id in conversations])

    async def newest_head(
        self, session: str, conversation: ConversationId, *, before: int | None = None
    ) -> bytes | None:
        found = await self._many(session, lambda at: at.entries.newest(conversation, before, 1, heads=True))
        return found[0] if found else None

    async def read_tasks(self, session: str, ids: Sequence[TaskId]) -> list[bytes]:
        return await self._many(session, lambda at: at.tasks.bodies(ids))

    async def scan_tasks(
        self, session: str, *, live: bool, after: int = 0, limit: int = 500, ended_before: float | None = None
    ) -> list[bytes]:
        return await self._many(
            session, lambda at: [row.body for row in at.tasks.scan(live, after, ended_before)[:limit]]
        )

    async def read_submission(self, session: str, id: SubmissionId) -> bytes | None:
        return await self._one(session, lambda at: at.submissions.body(id))

    async def find_submission(self, session: str, conversation: ConversationId, request_id: str) -> bytes | None:
        return await self._one(
            session, lambda at: at.submissions.body(at.holder("submission", conversation, request_id))
        )

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
        return await self._many(session, lambda at: at.submitted(live, conversation, after, ended_before, limit))

    async def find_document(self, session: str, scope: str, owner: int, kind: str, key: str) -> bytes | None:
        return await self._one(session, lambda at: at.documents.body(at.holder("document", scope, owner, kind, key)))

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
        return await self._many(session, lambda at: at.documents_of(scope, owner, kind, retired, after, limit))

    async def read_document(self, session: str, id: DocumentId, *, at: Seq | None = None) -> DocumentValue | None:
        def look(found: JsonlSession) -> DocumentValue | None:
            value = found.index.session.versions.value(id, at)
            if value is None:
                return None
            base, *deltas = found.bodies([value.base, *value.deltas])
            return DocumentValue(seq=value.seq, base=base, deltas=deltas)

        return await self._look(session, look)

    async def read_inbound(self, session: str, id: str) -> bytes | None:
        return await self._one(session, lambda at: at.inbound.body(id))

    async def scan_inbound(
        self, session: str, *, taken: bool = False, after: str = "", limit: int = 100
    ) -> list[bytes]:
        return await self._many(session, lambda at: at.inbound.scan(taken, after, limit))
