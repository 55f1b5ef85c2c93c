"""One session of the memory storage: its claim, its tables, and what only one row of a table may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from perdure.backends.memory_tables import Entries, Items, Rows, Versions, Work
from perdure.records import Seq
from perdure.storage import (
    Batch,
    Claim,
    Opened,
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
    Write,
)

#: A name that one row has alone: a conversation's key, a request id, the name of a document.
Name = tuple[str | int, ...]
Named = PutConversation | PutSubmission | PutDocument


def name_of(row: Named | None) -> Name | None:
    """What this row alone may be called, or None where it claims no name."""
    match row:
        case PutConversation(key=str(key)):
            return "conversation", key
        case PutSubmission(conversation=conversation, request_id=str(request_id)):
            return "submission", conversation, request_id
        case PutDocument(retired=False):
            return "document", row.scope, row.owner, row.kind, row.key
        case _:
            return None


class MemorySession:
    """Changed only by `claim`, `release`, `apply` and the handing in of items, each of them whole."""

    def __init__(self) -> None:
        self.epoch = 0
        self.head = Seq(0)
        self.owner: str | None = None
        self._next_id = 1
        self._clean = True
        #: Commits by id: those of this epoch, of the one before it, and of the one before that (K47).
        self._commits: list[dict[bytes, Seq]] = [{}, {}, {}]
        #: Ids by name.
        self._holders: dict[Name, int] = {}
        self.conversations = Rows[PutConversation]()
        self.entries = Entries()
        self.tasks = Work[PutTask]()
        self.submissions = Work[PutSubmission]()
        self.documents = Rows[PutDocument]()
        self.versions = Versions()
        self.inbound = Items()

    def claim(self, key: str, worker: str) -> Opened:
        """Write a new owner: the next epoch."""
        clean, self._clean = self._clean, False
        self.epoch += 1
        self.owner = worker
        self._commits = [{}, *self._commits[:2]]
        return Opened(claim=Claim(key, self.epoch), head=self.head, next_id=self._next_id, clean=clean)

    def release(self, epoch: int) -> bool:
        """Leave the clean mark, unless the claim is stale."""
        if epoch != self.epoch or self.owner is None:
            return False
        self.owner, self._clean = None, True
        return True

    def find_commit(self, commit_id: bytes) -> Seq | None:
        return next((commits[commit_id] for commits in self._commits if commit_id in commits), None)

    def holder(self, *name: str | int) -> int | None:
        """The id of the row with that name."""
        return self._holders.get(name)

    def known_commits(self) -> list[tuple[int, bytes, Seq]]:
        """(epochs ago, commit id, commit) of those that can be looked up."""
        return [(ago, id, seq) for ago, commits in enumerate(self._commits) for id, seq in commits.items()]

    @property
    def next_id(self) -> int:
        return self._next_id

    @property
    def clean(self) -> bool:
        """Whether the last owner released the session."""
        return self._clean

    def restore(
        self, *, epoch: int, head: Seq, next_id: int, clean: bool, owner: str | None, commits: list[dict[bytes, Seq]]
    ) -> None:
        """Be a session that was somewhere else, once its rows are put."""
        self.epoch, self.head, self._next_id, self._clean, self.owner = epoch, head, next_id, clean, owner
        self._commits = commits

    # -- scans over more than one table's order

    def listed(self, before: int | None, limit: int) -> list[bytes]:
        """Conversations that listings show, newest first."""
        rows = reversed(self.conversations.by_id())
        return [row.body for row in rows if row.listed and (before is None or row.id < before)][:limit]

    def owned(self, owners: Sequence[int]) -> list[bytes]:
        return [row.body for row in self.conversations.by_id() if row.owner in owners]

    def forks(self, parent: int) -> list[bytes]:
        return [row.body for row in self.conversations.by_id() if row.parent == parent]

    def submitted(
        self, live: bool, conversation: int | None, after: int, ended_before: float | None, limit: int
    ) -> list[bytes]:
        rows = self.submissions.scan(live, after, ended_before)
        return [row.body for row in rows if conversation is None or row.conversation == conversation][:limit]

    def documents_of(
        self, scope: str, owner: int, kind: str | None, retired: bool, after: int, limit: int
    ) -> list[bytes]:
        rows = [row for row in self.documents.by_id() if (row.scope, row.owner) == (scope, owner) and row.id > after]
        if kind is not None:
            rows = [row for row in rows if row.kind == kind]
        return [row.body for row in rows if retired or not row.retired][:limit]

    # -- writes

    def conflict(self, writes: Iterable[Write]) -> str | None:
        """Why these writes cannot all be kept, in their order, or None. Changes nothing."""
        return Tip(self).admit(writes)

    def apply(self, batch: Batch) -> None:
        """Keep a batch that has no conflict."""
        for write in batch.writes:
            self.put(write, batch.seq)
        self.head = batch.seq
        self._next_id = batch.next_id
        self._commits[0][batch.commit_id] = batch.seq

    def put(self, write: Write, seq: Seq) -> None:
        """Keep one write, as of a commit."""
        match write:
            case PutEntry():
                self.entries.put(write)
            case PutTask():
                self.tasks.put(write)
            case PutDelta():
                self.versions.put_delta(write.document, seq, write.body)
            case PutBase():
                self.versions.put_base(write.document, seq, write.body, prune=write.prune)
            case PutSubmission():
                self._rename(self.submissions.rows.get(write.id), write)
                self.submissions.put(write)
            case PutConversation():
                self._rename(self.conversations.rows.get(write.id), write)
                self.conversations.rows[write.id] = write
            case PutDocument():
                self._rename(self.documents.rows.get(write.id), write)
                self.documents.rows[write.id] = write
            case TakeInbound():
                self.inbound.take(write.id, write.body, seq)
            case RemoveEntries():
                self.entries.remove_after(write.conversation, write.after)
            case Remove(table="inbound"):
                self.inbound.remove(cast(str, write.id))
            case Remove():
                self._remove(write.table, cast(int, write.id))

    def _remove(self, table: str, id: int) -> None:
        if table == "task":
            self.tasks.remove(id)
            return
        self._rename(self.named(table).get(id), None)
        if table == "conversation":
            self.conversations.rows.pop(id, None)
        elif table == "submission":
            self.submissions.remove(id)
        else:
            self.documents.rows.pop(id, None)
            self.versions.remove(id)

    def named(self, table: str) -> Mapping[int, Named]:
        """The rows of a table whose rows may have names."""
        if table == "conversation":
            return self.conversations.rows
        return self.submissions.rows if table == "submission" else self.documents.rows

    def _rename(self, before: Named | None, after: Named | None) -> None:
        old, new = name_of(before), name_of(after)
        if old is not None and old != new:
            del self._holders[old]
        if new is not None and after is not None:
            self._holders[new] = after.id


class Tip:
    """What the names of a session will be once the writes that were admitted are applied."""

    def __init__(self, session: MemorySession) -> None:
        self._session = session
        self._holders: dict[Name, int | None] = {}
        self._names: dict[tuple[str, int], Name | None] = {}
        self._entries: dict[int, None] = {}

    def admit(self, writes: Iterable[Write]) -> str | None:
        """Why these writes, after those before them, cannot all be kept, in their order; None where they can.

        What is refused leaves the tip as it was.
        """
        mine = _Layer(self._holders, self._names)
        for write in writes:
            conflict = self._add(mine, write)
            if conflict is not None:
                return conflict
        self._holders.update(mine.holders)
        self._names.update(mine.names)
        self._entries.update(mine.entries)
        return None

    def _add(self, mine: _Layer, write: Write) -> str | None:
        match write:
            case PutEntry():
                if write.id in self._session.entries.rows or write.id in self._entries or write.id in mine.entries:
                    return f"entry {write.id} exists already"
                mine.entries[write.id] = None
                return None
            case PutConversation():
                table, name = "conversation", name_of(write)
            case PutSubmission():
                table, name = "submission", name_of(write)
            case PutDocument():
                table, name = "document", name_of(write)
            case Remove(table="conversation" | "submission" | "document"):
                table, name = write.table, None
            case _:
                return None
        id = cast(int, write.id)
        holder = None if name is None else mine.holder(name, self._session)
        if holder not in (None, id):
            return f"{table} {holder} is called {(name or ())[1:]} already"
        before = mine.name(table, id, self._session)
        if before is not None:
            mine.holders[before] = None
        if name is not None:
            mine.holders[name] = id
        mine.names[table, id] = name
        return None


class _Layer:
    """The changes of one batch, over those of the batches before it, over a session."""

    def __init__(self, holders: dict[Name, int | None], names: dict[tuple[str, int], Name | None]) -> None:
        self._below_holders, self._below_names = holders, names
        self.holders: dict[Name, int | None] = {}
        self.names: dict[tuple[str, int], Name | None] = {}
        self.entries: dict[int, None] = {}

    def holder(self, name: Name, session: MemorySession) -> int | None:
        for layer in (self.holders, self._below_holders):
            if name in layer:
                return layer[name]
        return session.holder(*name)

    def name(self, table: str, id: int, session: MemorySession) -> Name | None:
        for layer in (self.names, self._below_names):
            if (table, id) in layer:
                return layer[table, id]
        return name_of(session.named(table).get(id))
