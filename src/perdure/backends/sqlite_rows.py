"""What a write of the port is in SQL: pure functions from a write to a statement and its row; and many rows at once.

A row is known by `place(session) | id`: the session's number in the upper bits, the id within the session below.
"""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import apsw

from perdure.storage import (
    PutBase,
    PutConversation,
    PutDelta,
    PutDocument,
    PutEntry,
    PutSubmission,
    PutTask,
    Remove,
    RemoveEntries,
    TakeInbound,
)

Row = tuple[Any, ...]
Statement = tuple[str, Row]

#: Ids within a session have this many bits: 8 million sessions of a million million ids each.
ID_BITS = 40
LAST_ID = (1 << ID_BITS) - 1


def fetch(connection: apsw.Connection, sql: str, row: Row = ()) -> list[Any]:
    """All rows of a statement: none is left unfinished, so that none holds the log (I51)."""
    return cast("list[Any]", connection.execute(sql, row).fetchall())


def place(session: int) -> int:
    """Where the rows of a session begin."""
    return session << ID_BITS


#: Moves the head of a session that a claim still holds.
FENCE = "UPDATE session SET head = ?, next_id = ? WHERE id = ? AND epoch = ? AND head = ? AND open = 1"
COMMIT = 'INSERT INTO "commit" (id, commit_id) VALUES (?, ?)'
ENTRY = "INSERT INTO entry (id, conversation, head, body) VALUES (?, ?, ?, ?)"
TASK = (
    "INSERT INTO task (id, live, ended, body) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET live = excluded.live, ended = excluded.ended, body = excluded.body"
)
CONVERSATION = (
    "INSERT INTO conversation (id, session, key, owner, parent, listed, body) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET key = excluded.key, owner = excluded.owner, parent = excluded.parent, "
    "listed = excluded.listed, body = excluded.body"
)
SUBMISSION = (
    "INSERT INTO submission (id, conversation, request_id, live, ended, body) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET conversation = excluded.conversation, request_id = excluded.request_id, "
    "live = excluded.live, ended = excluded.ended, body = excluded.body"
)
DOCUMENT = (
    "INSERT INTO document (id, owner, scope, kind, key, retired, body) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, scope = excluded.scope, kind = excluded.kind, "
    "key = excluded.key, retired = excluded.retired, body = excluded.body"
)
BASE = "INSERT OR REPLACE INTO base (document, seq, prune, body) VALUES (?, ?, ?, ?)"
DELTA = "INSERT INTO delta (document, seq, body) VALUES (?, ?, ?)"
TAKE = (
    "INSERT INTO inbound (session, id, taken, body) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (session, id) DO UPDATE SET taken = excluded.taken, body = excluded.body"
)
REMOVE_ENTRIES = "DELETE FROM entry WHERE conversation = ? AND id > ?"
REMOVE_INBOUND = "DELETE FROM inbound WHERE session = ? AND id = ?"
REMOVE = {
    "task": "DELETE FROM task WHERE id = ?",
    "submission": "DELETE FROM submission WHERE id = ?",
    "document": "DELETE FROM document WHERE id = ?",
    "conversation": "DELETE FROM conversation WHERE id = ?",
}


def _put_conversation(at: int, seq: int, put: PutConversation) -> Statement:
    owner = None if put.owner is None else at | put.owner
    parent = None if put.parent is None else at | put.parent
    return CONVERSATION, (at | put.id, at >> ID_BITS, put.key, owner, parent, put.listed, put.body)


def _put_entry(at: int, seq: int, put: PutEntry) -> Statement:
    return ENTRY, (at | put.id, at | put.conversation, put.head, put.body)


def _put_task(at: int, seq: int, put: PutTask) -> Statement:
    return TASK, (at | put.id, put.live, put.ended, put.body)


def _put_submission(at: int, seq: int, put: PutSubmission) -> Statement:
    return SUBMISSION, (at | put.id, at | put.conversation, put.request_id, put.live, put.ended, put.body)


def _put_document(at: int, seq: int, put: PutDocument) -> Statement:
    return DOCUMENT, (at | put.id, at | put.owner, put.scope, put.kind, put.key, put.retired, put.body)


def _put_base(at: int, seq: int, put: PutBase) -> Statement:
    return BASE, (at | put.document, seq, put.prune, put.body)


def _put_delta(at: int, seq: int, put: PutDelta) -> Statement:
    return DELTA, (at | put.document, seq, put.body)


def _take_inbound(at: int, seq: int, take: TakeInbound) -> Statement:
    return TAKE, (at >> ID_BITS, take.id, seq, take.body)


def _remove(at: int, seq: int, remove: Remove) -> Statement:
    if isinstance(remove.id, str):
        return REMOVE_INBOUND, (at >> ID_BITS, remove.id)
    return REMOVE[remove.table], (at | remove.id,)


def _remove_entries(at: int, seq: int, remove: RemoveEntries) -> Statement:
    return REMOVE_ENTRIES, (at | remove.conversation, at | remove.after)


#: By type of the write: a function of (place, seq, write).
STATEMENT: dict[type, Callable[[int, int, Any], Statement]] = {
    PutConversation: _put_conversation,
    PutEntry: _put_entry,
    PutTask: _put_task,
    PutSubmission: _put_submission,
    PutDocument: _put_document,
    PutBase: _put_base,
    PutDelta: _put_delta,
    TakeInbound: _take_inbound,
    Remove: _remove,
    RemoveEntries: _remove_entries,
}


#: In what order gathered rows are written. Within a table it is that of the writes; across tables it matters in that a
#: base prunes the deltas before it, and that what is removed is not put again.
ORDER = (COMMIT, CONVERSATION, ENTRY, TASK, SUBMISSION, DOCUMENT, DELTA, BASE, TAKE, *REMOVE.values())

#: Rows of one statement, at most: more than one bind as many values as SQLite takes, and hardly faster.
MOST = 32


class Rows:
    """The rows of a transaction, gathered and then written by few statements.

    Each statement lets go of the interpreter's lock and has to wait for it again, for milliseconds where the loop is
    busy: row by row, the thread that writes would get on only while the loop has nothing to do.
    """

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute
        self._gathered: dict[str, list[Row]] = {sql: [] for sql in ORDER}

    def add(self, sql: str, row: Row) -> None:
        """Write a row with those before it, or by `write` at the latest."""
        gathered = self._gathered.get(sql)
        if gathered is None:  # it may concern rows of before and of after it
            self.write()
            self._execute(sql, row)
        else:
            gathered.append(row)

    def write(self) -> None:
        """Write what is gathered. An error leaves it half written: the transaction is to be undone."""
        for sql, rows in self._gathered.items():
            if rows:
                self._gathered[sql] = []
                for part in _parts(rows):
                    self._execute(_of_many(sql, len(part)), tuple(chain.from_iterable(part)))


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Of sizes that are powers of two, so that there are few statements to prepare."""
    at = 0
    while left := len(rows) - at:
        size = min(MOST, 1 << (left.bit_length() - 1))
        yield rows[at : at + size]
        at += size


@lru_cache(maxsize=len(ORDER) * MOST.bit_length())
def _of_many(sql: str, count: int) -> str:
    """The statement for so many rows."""
    if count == 1:
        return sql
    if sql.startswith("DELETE"):
        return sql.replace("= ?", f"IN ({', '.join('?' * count)})")
    head, _, tail = sql.partition(" VALUES ")
    row, closing, rest = tail.partition(")")
    return f"{head} VALUES {', '.join([row + closing] * count)}{rest}"
