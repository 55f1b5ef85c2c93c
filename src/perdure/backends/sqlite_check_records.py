"""What the records of a session must be, each by itself and to each other."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import apsw
import msgspec

from perdure.backends.sqlite_rows import LAST_ID, place
from perdure.deltas import apply
from perdure.errors import PerdureError, StorageCorrupt
from perdure.messages import AssistantMessage, ToolMessage, call_key, calls_of
from perdure.records import (
    Conversation,
    Done,
    Entry,
    Placed,
    Submission,
    Task,
    Unanswered,
    Waiting,
    decode_base,
    decode_conversation,
    decode_document,
    decode_entry,
    decode_inbound,
    decode_json,
    decode_submission,
    decode_task,
)

#: Records between two words about progress.
EVERY = 500
#: How an answer ends that was not finished: its calls were never made.
UNFINISHED = frozenset({"error", "interrupted", "aborted"})


class Session(NamedTuple):
    """The row of a session."""

    number: int
    key: str
    epoch: int
    head: int
    next_id: int
    open: int
    owner: str | None


def check_session(
    connection: apsw.Connection, session: Session, records: dict[str, int], told: Callable[[int], None]
) -> Iterator[str]:
    """Everything that is wrong in a session; counts its records."""
    checking = _Checking(connection, session, records, told)
    yield from checking.line()
    yield from checking.conversations()
    yield from checking.tasks()
    yield from checking.submissions()
    yield from checking.documents()
    yield from checking.inbound()


class _Checking:
    """Row by row: what another row must be is looked up, not kept."""

    def __init__(
        self, connection: apsw.Connection, session: Session, records: dict[str, int], told: Callable[[int], None]
    ) -> None:
        self._connection = connection
        self._session = session
        self._at = place(session.number)
        self._records = records
        self._told = told

    # -- each table -------------------------------------------------------------------------

    def line(self) -> Iterator[str]:
        """Commits are numbered without a gap up to the head, and an open session has a worker."""
        session = self._session
        count, first, last = self._one(
            'SELECT count(*), min(id), max(id) FROM "commit" WHERE id > ? AND id <= ?', self._at, self._at + LAST_ID
        )
        if count and (last - self._at != session.head or last - first + 1 != count):
            yield (
                f"its commits are not dense: {count} of {first - self._at} to {last - self._at}, "
                f"the head is {session.head}"
            )
        if session.owner is not None and not self._there("worker", session.owner):
            yield f"its owner {session.owner} is no worker of the store"

    def conversations(self) -> Iterator[str]:
        """Each conversation, and the entries that it wrote itself."""
        sql = "SELECT id, key, owner, parent, listed, body FROM conversation WHERE session = ? ORDER BY id"
        for id, key, owner, parent, listed, body in self._rows("conversation", sql, self._session.number):
            found, wrong = _decoded(decode_conversation, body, f"conversation {self._own(id)}")
            yield from wrong
            if found is None:
                continue
            if (found.id, found.key, not found.deleted) != (self._own(id), key, bool(listed)):
                yield f"the columns of conversation {self._own(id)} do not say what its record says"
            if found.owner != self._own(owner) or (found.parent and found.parent.conversation) != self._own(parent):
                yield f"the columns of conversation {found.id} do not say what its record says"
            if found.parent is not None and not self._there("conversation", self._at | found.parent.conversation):
                yield f"conversation {found.id} is a fork of {found.parent.conversation}, which is not there"
            yield from self._entries(found)

    def _entries(self, conversation: Conversation) -> Iterator[str]:
        calls: dict[str, int] = {}
        due: dict[str, str] = {}
        seq = 0
        sql = "SELECT id, head, body FROM entry WHERE conversation = ? ORDER BY id"
        for id, head, body in self._rows("entry", sql, self._at | conversation.id):
            entry, wrong = _decoded(decode_entry, body, f"entry {self._own(id)} of conversation {conversation.id}")
            yield from wrong
            if entry is None:
                continue
            if (entry.id, entry.conversation, entry.head) != (self._own(id), conversation.id, head):
                yield f"the columns of entry {self._own(id)} do not say what its record says"
            if not seq <= entry.seq <= self._session.head or entry.id >= self._session.next_id:
                yield (
                    f"entry {entry.id} is of commit {entry.seq} behind one of {seq}, the head is {self._session.head} "
                    f"and the next id {self._session.next_id}"
                )
            seq = entry.seq
            for named in (entry.head, *(edit.entry for edit in entry.edits)):
                if named is not None and not self._visible(conversation, named, entry.id):
                    yield f"entry {entry.id} names entry {named}, which conversation {conversation.id} does not see"
            yield from self._calls(conversation, entry, calls, due)
        for key, run in () if conversation.deleted else due.items():  # what forks see of a deleted one ends anywhere
            if not calls.get(key):
                yield f"call {key} in conversation {conversation.id} has no result, and its run {run} has ended"

    def _calls(
        self, conversation: Conversation, entry: Entry, calls: dict[str, int], due: dict[str, str]
    ) -> Iterator[str]:
        """Every call of a finished answer of a run that ended has one result."""
        facts = cast("dict[str, Any]", entry.data) if isinstance(entry.data, dict) else {}
        run = facts.get("run")
        for message in entry.messages:
            if isinstance(message, ToolMessage):
                if message.call in calls:
                    calls[message.call] += 1
                    if calls[message.call] == 2:
                        yield f"call {message.call} in conversation {conversation.id} has two results"
            elif isinstance(message, AssistantMessage):
                for index in range(len(calls_of(message))):
                    key = call_key(entry.id, index)
                    calls[key] = 0
                    if run is not None and message.stop not in UNFINISHED and not self._lives(run):
                        due[key] = str(run)

    def tasks(self) -> Iterator[str]:
        """Each task."""
        sql = "SELECT id, live, body FROM task WHERE id > ? AND id <= ? ORDER BY id"
        for id, live, body in self._rows("task", sql, self._at, self._at + LAST_ID):
            task, wrong = _decoded(decode_task, body, f"task {self._own(id)}")
            yield from wrong
            if task is None:
                continue
            if (task.id, task.live) != (self._own(id), bool(live)):
                yield f"the columns of task {self._own(id)} do not say what its record says"
            if task.live:
                yield from self._live_task(task)

    def _live_task(self, task: Task) -> Iterator[str]:
        if not self._there("conversation", self._at | task.conversation):
            yield f"task {task.id} lives in conversation {task.conversation}, which is not there"
        if task.owner is not None and not self._lives(task.owner):
            yield f"task {task.id} lives, but its owner, task {task.owner}, has ended or is not there"
        for id in task.state.on if isinstance(task.state, Waiting) else ():
            if not self._there("task", self._at | id):
                yield f"task {task.id} waits for task {id}, which is not there"

    def submissions(self) -> Iterator[str]:
        """Each submission."""
        sql = "SELECT id, conversation, request_id, live, body FROM submission WHERE id > ? AND id <= ? ORDER BY id"
        for id, conversation, request_id, live, body in self._rows("submission", sql, self._at, self._at + LAST_ID):
            item, wrong = _decoded(decode_submission, body, f"submission {self._own(id)}")
            yield from wrong
            if item is None:
                continue
            columns = (self._own(id), self._own(conversation), request_id, bool(live))
            if (item.id, item.conversation, item.request_id, item.live) != columns:
                yield f"the columns of submission {self._own(id)} do not say what its record says"
            yield from self._submission(item)

    def _submission(self, item: Submission) -> Iterator[str]:
        if item.live and not self._there("conversation", self._at | item.conversation):
            yield f"submission {item.id} is of conversation {item.conversation}, which is not there"
        match item.state:
            case Placed(entry=entry, run=run):
                if not self._lives(run):
                    yield f"submission {item.id} waits for run {run}, which has ended or is not there"
                named = [entry]
            case Done(entry=entry, answer=answer):
                named = [entry, *([] if answer is None else [answer])]
            case Unanswered(entry=int() as entry):
                named = [entry]
            case _:
                named = []
        deleted = not self._one(
            "SELECT count(*) FROM conversation WHERE id = ? AND listed = 1", self._at | item.conversation
        )[0]
        for id in () if deleted else named:
            if not self._there("entry", self._at | id):
                yield f"submission {item.id} names entry {id}, which is not there"

    def documents(self) -> Iterator[str]:
        """Each document, and that its deltas lead from its bases to a value."""
        sql = "SELECT id, retired, body FROM document WHERE id > ? AND id <= ? ORDER BY id"
        for id, retired, body in self._rows("document", sql, self._at, self._at + LAST_ID):
            found, wrong = _decoded(decode_document, body, f"document {self._own(id)}")
            yield from wrong
            if found is None:
                continue
            name = f"document {found.id} ({found.kind})"
            if (found.id, found.retired is not None) != (self._own(id), bool(retired)):
                yield f"the columns of {name} do not say what its record says"
            if found.retired is None or found.history == "rewindable":
                yield from self._values(id, name)

    def _values(self, id: int, name: str) -> Iterator[str]:
        value: Any = None
        begun = False
        sql = (
            "SELECT seq, 0, body FROM base WHERE document = ?1 UNION ALL "
            "SELECT seq, 1, body FROM delta WHERE document = ?1 ORDER BY 1, 2"
        )
        for seq, is_delta, body in self._rows("value", sql, id):
            if seq > self._session.head:
                yield f"{name} has a value of commit {seq}, the head is {self._session.head}"
            try:
                if not is_delta:
                    value, begun = decode_base(body).value, True
                elif begun:
                    value = apply(value, decode_json(body))
                else:
                    yield f"{name} begins with a delta of commit {seq}, not with a base"
            except (msgspec.MsgspecError, PerdureError, KeyError, IndexError, TypeError, ValueError) as error:
                yield f"the value of {name} as of commit {seq} cannot be read: {error}"
                return
        if not begun:
            yield f"{name} has no value"

    def inbound(self) -> Iterator[str]:
        """Each item that was handed in."""
        sql = "SELECT id, taken, body FROM inbound WHERE session = ? ORDER BY id"
        for id, taken, body in self._rows("inbound", sql, self._session.number):
            item, wrong = _decoded(decode_inbound, body, f"inbound item {id}")
            yield from wrong
            if item is not None and (item.id, item.taken) != (id, taken):
                yield f"the columns of inbound item {id} do not say what its record says"
            if taken is not None and taken > self._session.head:
                yield f"inbound item {id} was taken by commit {taken}, the head is {self._session.head}"

    # -- looking up -------------------------------------------------------------------------

    def _rows(self, table: str, sql: str, *bindings: Any) -> Iterator[Any]:
        for row in self._connection.execute(sql, bindings):
            self._records[table] = self._records.get(table, 0) + 1
            done = sum(self._records.values())
            if done % EVERY == 0:
                self._told(done)
            yield row

    def _one(self, sql: str, *bindings: Any) -> Any:
        return self._connection.execute(sql, bindings).fetchone()

    def _there(self, table: str, id: Any) -> bool:
        return self._one(f"SELECT 1 FROM {table} WHERE id = ?", id) is not None

    def _lives(self, task: int) -> bool:
        return self._one("SELECT 1 FROM task WHERE id = ? AND live = 1", self._at | task) is not None

    def _own(self, id: int | None) -> int | None:
        return None if id is None else id & LAST_ID

    def _visible(self, conversation: Conversation, entry: int, by: int) -> bool:
        """Whether a conversation sees an entry that one of its own, `by`, names."""
        bound: int = by
        at: Conversation | None = conversation
        while at is not None:
            found = self._one("SELECT conversation FROM entry WHERE id = ?", self._at | entry)
            if found is None or entry > bound:
                return False
            if found[0] == self._at | at.id:
                return True
            if at.parent is None:
                return False
            bound = min(bound, at.parent.entry)
            row = self._one("SELECT body FROM conversation WHERE id = ?", self._at | at.parent.conversation)
            at = _decoded(decode_conversation, row[0], "")[0] if row else None
        return False


def _decoded(decode: Callable[[bytes], Any], body: Any, name: str) -> tuple[Any, list[str]]:
    """The record, or what is wrong with it."""
    try:
        return decode(bytes(body)), []
    except (StorageCorrupt, TypeError, ValueError) as error:
        return None, [f"{name} cannot be read: {str(error).partition('. It was left')[0]}"]
