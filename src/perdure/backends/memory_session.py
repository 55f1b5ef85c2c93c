"""One session of the memory storage: its claim, its tables, and what only one row of a table may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def conflict(self, writes: Iterable[Write]) -> str | None:
        """Why these writes cannot all be kept, in their order, or None. Changes nothing."""
        holders: dict[Name, int | None] = {}  # what the writes so far would change
        names: dict[tuple[str, int], Name | None] = {}
        entries: dict[int, None] = {}
        for write in writes:
            if isinstance(write, PutEntry):
                if write.id in self.entries.rows or write.id in entries:
                    return f"entry {write.id} exists already"
                entries[write.id] = None
                continue
            match write:
                case PutConversation():
                    table, name = "conversation", name_of(write)
                case PutSubmission():
                    table, name = "submission", name_of(write)
                case PutDocument():
                    table, name = "document", name_of(write)
                case Remove(table="conversation" | "submission" | "document"):
                    table, name = write.table, None
                case _:
                    continue
            id = cast(int, write.id)
            holder = None if name is None else holders.get(name, self._holders.get(name))
            if holder not in (None, id):
                return f"{table} {holder} is called {(name or ())[1:]} already"
            before = names[table, id] if (table, id) in names else name_of(self._named(table).get(id))
            if before is not None:
                holders[before] = None
            if name is not None:
                holders[name] = id
            names[table, id] = name
        return None

    def apply(self, batch: Batch) -> None:
        """Keep a batch that has no conflict."""
        for write in batch.writes:
            self._write(write, batch.seq)
        self.head = batch.seq
        self._next_id = batch.next_id
        self._commits[0][batch.commit_id] = batch.seq

    def _write(self, write: Write, seq: Seq) -> None:
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
        self._rename(self._named(table).get(id), None)
        if table == "conversation":
            self.conversations.rows.pop(id, None)
        elif table == "submission":
            self.submissions.remove(id)
        else:
            self.documents.rows.pop(id, None)
            self.versions.remove(id)

    def _named(self, table: str) -> Mapping[int, Named]:
        if table == "conversation":
            return self.conversations.rows
        return self.submissions.rows if table == "submission" else self.documents.rows

    def _rename(self, before: Named | None, after: Named | None) -> None:
        old, new = name_of(before), name_of(after)
        if old is not None and old != new:
            del self._holders[old]
        if new is not None and after is not None:
            self._holders[new] = after.id
