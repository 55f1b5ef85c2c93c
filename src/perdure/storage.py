"""The storage port: one fat write, one that anyone may call, and thin reads.

A storage holds many sessions. It deals in encoded bodies and the few columns that it must find them by;
what the bodies mean is the business of `records`.
Semantics that every backend shares are laws of `perdure.testing.storage_contract`.

Writes
- `commit(claim, batch)` admits the batch **when it is called** (not when the result is awaited), in call order.
  The future resolves once the batch is durable. A batch is kept whole or not at all.
  It affects nothing and raises `Fenced` when `claim.epoch` is not the session's epoch,
  and `StorageRejected` when `batch.seq` is not the session's head + 1 (it stood behind a refused one).
- `hand_in(session, item)` needs no claim. Handing in an id again returns the first item.

Reads see every batch whose future has resolved. They need no claim. Scans are paged: at most `limit` rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from perdure.records import ConversationId, DocumentId, EntryId, Inbound, Seq, SubmissionId, TaskId


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One process start that opened a storage to write. `started` is the kernel's start time of the process, in
    clock ticks."""

    id: str
    pid: int
    started: int
    host: str
    since: float


class Claim(msgspec.Struct, frozen=True):
    """The right to write a session: every write carries it."""

    session: str
    epoch: int


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim found. `clean`: the previous owner closed in order, and nothing was committed since."""

    claim: Claim
    head: Seq
    next_id: int
    clean: bool


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One session of a store, for listings. `owner` is a live worker, or None."""

    key: str
    epoch: int
    head: Seq
    owner: Worker | None


# -- what a batch may hold ----------------------------------------------------------------------


class PutConversation(msgspec.Struct, frozen=True, gc=False):
    id: ConversationId
    key: str | None
    owner: TaskId | None
    parent: ConversationId | None
    listed: bool  #: shows in listings: not deleted
    body: bytes


class PutEntry(msgspec.Struct, frozen=True, gc=False):
    id: EntryId
    conversation: ConversationId
    head: EntryId | None
    body: bytes


class PutTask(msgspec.Struct, frozen=True, gc=False):
    id: TaskId
    live: bool
    ended: float | None
    body: bytes


class PutSubmission(msgspec.Struct, frozen=True, gc=False):
    id: SubmissionId
    conversation: ConversationId
    request_id: str | None
    live: bool
    ended: float | None
    body: bytes


class PutDocument(msgspec.Struct, frozen=True, gc=False):
    """Declares or retires a document. (scope, owner, kind, key) is unique among those that are not retired."""

    id: DocumentId
    scope: str
    owner: int
    kind: str
    key: str
    retired: bool
    body: bytes


class PutBase(msgspec.Struct, frozen=True, gc=False):
    """A whole value (an encoded `records.Base`) as of this batch. `prune` removes every older base and delta of the
    document."""

    document: DocumentId
    prune: bool
    body: bytes


class PutDelta(msgspec.Struct, frozen=True, gc=False):
    """Operations (an encoded list, see `deltas`) that lead from the previous value to the one as of this batch."""

    document: DocumentId
    body: bytes


class TakeInbound(msgspec.Struct, frozen=True, gc=False):
    """Marks an inbound item as acted on by this batch; `body` is the whole item with its answer."""

    id: str
    body: bytes


class Remove(msgspec.Struct, frozen=True, gc=False):
    """Deletes one row (K47). Removing a document removes its bases and deltas; a missing row is no error."""

    table: Literal["task", "submission", "document", "conversation", "inbound"]
    id: int | str


class RemoveEntries(msgspec.Struct, frozen=True, gc=False):
    """Deletes the entries of a conversation whose id is greater than `after`."""

    conversation: ConversationId
    after: EntryId


Write = (
    PutConversation
    | PutEntry
    | PutTask
    | PutSubmission
    | PutDocument
    | PutBase
    | PutDelta
    | TakeInbound
    | Remove
    | RemoveEntries
)


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One commit. `next_id` is the session's id counter after it; `commit_id` is what a lost acknowledgement is
    looked up by."""

    commit_id: bytes
    seq: Seq
    next_id: int
    writes: Sequence[Write]


class DocumentValue(msgspec.Struct, frozen=True):
    """A document as stored at some point: an encoded `records.Base` and the encoded deltas that follow it, oldest
    first."""

    seq: Seq  #: of the base
    base: bytes
    deltas: Sequence[bytes]


class Storage(Protocol):
    """See the module. `durability` is what survives once a commit's future has resolved."""

    durability: Literal["none", "process", "power"]
    supports_processes: bool
    worker: Worker

    # -- ownership
    async def claim(self, session: str, *, take_over: bool = False, kill: bool = False) -> Opened:
        """Take the right to write a session, which is created if it is new: epoch + 1.

        It survives the process on return, and a power loss at the latest with the first commit made under it.

        Raises SessionOwned while another live worker holds it, unless `take_over`.
        `kill` ends that worker's process first if it stands in the way (stopped inside a transaction).
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Give the right back and leave the clean-close mark. Affects nothing when the claim is stale."""
        ...

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[SessionInfo]: ...

    # -- the two writes
    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]: ...

    async def hand_in(self, session: str, item: Inbound) -> Inbound: ...

    # -- hints
    async def change_count(self) -> int:
        """Grows when someone else may have written. A hint, for any number of askers: the records are the truth."""
        ...

    # -- reads
    async def find_commit(self, session: str, commit_id: bytes) -> Seq | None: ...
    async def head(self, session: str) -> tuple[int, Seq]:
        """(epoch, head); (0, 0) for a session that was never claimed."""
        ...

    async def read_conversation(self, session: str, id: ConversationId) -> bytes | None: ...
    async def find_conversation(self, session: str, key: str) -> bytes | None: ...
    async def scan_conversations(self, session: str, *, before: int | None = None, limit: int = 100) -> list[bytes]:
        """Listed conversations, newest (greatest id) first."""
        ...

    async def owned_conversations(self, session: str, owners: Sequence[TaskId]) -> list[bytes]: ...
    async def forks_of(self, session: str, parent: ConversationId) -> list[bytes]:
        """Conversations, tombstones included, whose parent this is; by id."""
        ...

    async def read_entry(self, session: str, id: EntryId) -> bytes | None: ...
    async def scan_entries(
        self, session: str, conversation: ConversationId, *, before: int | None = None, limit: int = 100
    ) -> list[bytes]:
        """Entries that this conversation wrote itself, newest first, ids below `before`. Ancestry is the session's
        business."""
        ...

    async def count_entries(
        self, session: str, conversations: Sequence[ConversationId]
    ) -> list[tuple[ConversationId, int]]:
        """How many entries each of these wrote itself; those without any may be left out. Reads no bodies."""
        ...

    async def newest_head(
        self, session: str, conversation: ConversationId, *, before: int | None = None
    ) -> bytes | None:
        """The newest entry of this conversation with a `head`, id below `before`."""
        ...

    async def read_tasks(self, session: str, ids: Sequence[TaskId]) -> list[bytes]:
        """Those that exist, by id."""
        ...

    async def scan_tasks(
        self, session: str, *, live: bool, after: int = 0, limit: int = 500, ended_before: float | None = None
    ) -> list[bytes]:
        """By id, ids above `after`. `ended_before` keeps the terminal ones that ended earlier than that time."""
        ...

    async def read_submission(self, session: str, id: SubmissionId) -> bytes | None: ...
    async def find_submission(self, session: str, conversation: ConversationId, request_id: str) -> bytes | None: ...
    async def scan_submissions(
        self,
        session: str,
        *,
        live: bool,
        conversation: ConversationId | None = None,
        after: int = 0,
        limit: int = 500,
        ended_before: float | None = None,
    ) -> list[bytes]: ...

    async def find_document(self, session: str, scope: str, owner: int, kind: str, key: str) -> bytes | None:
        """The incarnation that is not retired."""
        ...

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
        """By id; `retired` includes retired incarnations."""
        ...

    async def read_document(self, session: str, id: DocumentId, *, at: Seq | None = None) -> DocumentValue | None:
        """The newest base and the deltas after it; with `at`, as of that commit (None if the document was not there
        yet)."""
        ...

    async def read_inbound(self, session: str, id: str) -> bytes | None: ...
    async def scan_inbound(
        self, session: str, *, taken: bool = False, after: str = "", limit: int = 100
    ) -> list[bytes]:
        """By id."""
        ...

    # -- care
    async def close(self) -> None:
        """Let admitted batches settle, then close. Held claims are not released: their worker is simply gone."""
        ...


__all__ = [
    "Batch",
    "Claim",
    "DocumentValue",
    "Opened",
    "PutBase",
    "PutConversation",
    "PutDelta",
    "PutDocument",
    "PutEntry",
    "PutSubmission",
    "PutTask",
    "Remove",
    "RemoveEntries",
    "SessionInfo",
    "Storage",
    "TakeInbound",
    "Worker",
    "Write",
]
