"""The reads of the port: each is one short statement, finished before it returns, so that none holds the log (I51)."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from perdure.backends.sqlite_reader import Reader
from perdure.backends.sqlite_rows import ID_BITS, LAST_ID, Row, fetch
from perdure.records import ConversationId, DocumentId, EntryId, Seq, SubmissionId, TaskId
from perdure.storage import DocumentValue

FIND_COMMIT = 'SELECT id FROM "commit" WHERE id > ? AND id < ? AND commit_id = ? ORDER BY id DESC LIMIT 1'
#: The newest base up to a commit and the deltas between them: one statement, so that no base comes in between.
VALUE = """
WITH newest (seq) AS (SELECT max(seq) FROM base WHERE document = ?1 AND seq <= ?2)
SELECT base.seq, base.body FROM base JOIN newest USING (seq) WHERE document = ?1
UNION ALL
SELECT delta.seq, delta.body FROM newest JOIN delta ON delta.seq > newest.seq
WHERE delta.document = ?1 AND delta.seq <= ?2
"""
#: Greater than any number of a commit.
NEVER = 1 << 62


def bound(at: int, id: int | None) -> int:
    """A limit for the ids of rows, whatever limit was asked for; None: beyond the last."""
    return at + (LAST_ID + 1 if id is None else min(max(id, 0), LAST_ID + 1))


class SqliteReads:
    """Reads of any session."""

    def _reader(self) -> Reader:
        """The reader, or the reason why there is none any more."""
        raise NotImplementedError

    async def _rows(self, session: str, sql: str, bindings: Callable[[int], Row]) -> list[Any]:
        """Rows, or the values of rows of one column. `bindings` is told where the session's rows begin."""
        reader = self._reader()

        def read(connection: apsw.Connection) -> list[Any]:
            at = reader.place_of(connection, session)
            if at is None:
                return []
            rows = fetch(connection, sql, bindings(at))
            return [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows

        return await reader.ask(read)

    async def _first(self, session: str, sql: str, bindings: Callable[[int], Row]) -> Any:
        rows = await self._rows(session, sql, bindings)
        return rows[0] if rows else None

    async def find_commit(self, session: str, commit_id: bytes) -> Seq | None:
        found = await self._first(session, FIND_COMMIT, lambda at: (at, bound(at, None), commit_id))
        return None if found is None else Seq(found & LAST_ID)

    async def head(self, session: str) -> tuple[int, Seq]:
        sql = "SELECT epoch, head FROM session WHERE id = ?"
        return await self._first(session, sql, lambda at: (at >> ID_BITS,)) or (0, Seq(0))

    async def read_conversation(self, session: str, id: ConversationId) -> bytes | None:
        return await self._first(session, "SELECT body FROM conversation WHERE id = ?", lambda at: (at | id,))

    async def find_conversation(self, session: str, key: str) -> bytes | None:
        sql = "SELECT body FROM conversation WHERE session = ? AND key = ?"
        return await self._first(session, sql, lambda at: (at >> ID_BITS, key))

    async def scan_conversations(self, session: str, *, before: int | None = None, limit: int = 100) -> list[bytes]:
        sql = "SELECT body FROM conversation WHERE session = ? AND listed = 1 AND id < ? ORDER BY id DESC LIMIT ?"
        return await self._rows(session, sql, lambda at: (at >> ID_BITS, bound(at, before), limit))

    async def owned_conversations(self, session: str, owners: Sequence[TaskId]) -> list[bytes]:
        sql = "SELECT body FROM conversation WHERE owner IN (SELECT value FROM json_each(?)) ORDER BY id"
        return await self._rows(session, sql, lambda at: (these(at, owners),))

    async def forks_of(self, session: str, parent: ConversationId) -> list[bytes]:
        sql = "SELECT body FROM conversation WHERE parent = ? ORDER BY id"
        return await self._rows(session, sql, lambda at: (at | parent,))

    async def read_entry(self, session: str, id: EntryId) -> bytes | None:
        return await self._first(session, "SELECT body FROM entry WHERE id = ?", lambda at: (at | id,))

    async def scan_entries(
        self, session: str, conversation: ConversationId, *, before: int | None = None, limit: int = 100
    ) -> list[bytes]:
        sql = "SELECT body FROM entry WHERE conversation = ? AND id < ? ORDER BY id DESC LIMIT ?"
        return await self._rows(session, sql, lambda at: (at | conversation, bound(at, before), limit))

    async def count_entries(
        self, session: str, conversations: Sequence[ConversationId]
    ) -> list[tuple[ConversationId, int]]:
        sql = "SELECT value, (SELECT count(*) FROM entry WHERE conversation = value) FROM json_each(?)"
        rows = await self._rows(session, sql, lambda at: (these(at, conversations),))
        return [(ConversationId(id & LAST_ID), count) for id, count in rows]

    async def newest_head(
        self, session: str, conversation: ConversationId, *, before: int | None = None
    ) -> bytes | None:
        sql = "SELECT body FROM entry WHERE conversation = ? AND head IS NOT NULL AND id < ? ORDER BY id DESC LIMIT 1"
        return await self._first(session, sql, lambda at: (at | conversation, bound(at, before)))

    async def read_tasks(self, session: str, ids: Sequence[TaskId]) -> list[bytes]:
        sql = "SELECT body FROM task WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
        return await self._rows(session, sql, lambda at: (these(at, ids),))

    async def scan_tasks(
        self, session: str, *, live: bool, after: int = 0, limit: int = 500, ended_before: float | None = None
    ) -> list[bytes]:
        sql = f"SELECT body FROM task WHERE {working(live, ended_before)}"
        return await self._rows(session, sql, lambda at: (bound(at, after), bound(at, None), limit, ended_before))

    async def read_submission(self, session: str, id: SubmissionId) -> bytes | None:
        return await self._first(session, "SELECT body FROM submission WHERE id = ?", lambda at: (at | id,))

    async def find_submission(self, session: str, conversation: ConversationId, request_id: str) -> bytes | None:
        sql = "SELECT body FROM submission WHERE conversation = ? AND request_id = ?"
        return await self._first(session, sql, lambda at: (at | conversation, request_id))

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
        of = "" if conversation is None else "conversation = ?5 AND "
        sql = f"SELECT body FROM submission WHERE {of}{working(live, ended_before)}"

        def bindings(at: int) -> Row:
            row = (bound(at, after), bound(at, None), limit, ended_before)
            return row if conversation is None else (*row, at | conversation)

        return await self._rows(session, sql, bindings)

    async def find_document(self, session: str, scope: str, owner: int, kind: str, key: str) -> bytes | None:
        sql = "SELECT body FROM document WHERE owner = ? AND scope = ? AND kind = ? AND key = ? AND retired = 0"
        return await self._first(session, sql, lambda at: (at | owner, scope, kind, key))

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
        some = "" if retired else "AND retired = 0 "
        sql = (
            "SELECT body FROM document WHERE owner = ?1 AND scope = ?2 AND id > ?3 "
            f"AND (?5 IS NULL OR kind = ?5) {some}ORDER BY id LIMIT ?4"
        )
        return await self._rows(session, sql, lambda at: (at | owner, scope, bound(at, after), limit, kind))

    async def read_document(self, session: str, id: DocumentId, *, at: Seq | None = None) -> DocumentValue | None:
        last = NEVER if at is None else at
        rows = await self._rows(session, VALUE, lambda place: (place | id, last))
        if not rows:
            return None
        (seq, base), *deltas = sorted(rows, key=lambda row: row[0])
        return DocumentValue(seq=Seq(seq), base=base, deltas=[body for _, body in deltas])

    async def read_inbound(self, session: str, id: str) -> bytes | None:
        sql = "SELECT body FROM inbound WHERE session = ? AND id = ?"
        return await self._first(session, sql, lambda at: (at >> ID_BITS, id))

    async def scan_inbound(
        self, session: str, *, taken: bool = False, after: str = "", limit: int = 100
    ) -> list[bytes]:
        which = "IS NOT NULL" if taken else "IS NULL"
        sql = f"SELECT body FROM inbound WHERE session = ? AND taken {which} AND id > ? ORDER BY id LIMIT ?"
        return await self._rows(session, sql, lambda at: (at >> ID_BITS, after, limit))


def these(at: int, ids: Sequence[int]) -> str:
    """Ids as rows know them, for json_each."""
    return json.dumps([at | id for id in ids])


def working(live: bool, ended_before: float | None) -> str:
    """The end of a scan over tasks or submissions. ?1 and ?2 bound the ids, ?3 is the limit, ?4 the time."""
    if live and ended_before is not None:
        return "?4 IS NULL AND id > ?1 AND id < ?2 LIMIT ?3"  # nothing that lives has ended
    which = "live = 1" if live else "live = 0 AND (?4 IS NULL OR ended < ?4)"
    return f"{which} AND id > ?1 AND id < ?2 AND ?4 IS ?4 ORDER BY id LIMIT ?3"
