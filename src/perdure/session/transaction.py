"""What the body of a commit works with: it reads the tip of the line and stages records; nothing happens until it is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.deltas import DraftList, DraftObject
from perdure.errors import HandleExpired, InvalidValue, NotFound, TaskRefused, UsageError, WrongKind
from perdure.messages import Message
from perdure.records import (
    RESERVED_PREFIX,
    Conversation,
    ConversationId,
    Document,
    DocumentId,
    Edit,
    Entry,
    EntryId,
    ForkPoint,
    Inbound,
    Seq,
    Submission,
    Task,
    TaskId,
    decode_entry,
    encode,
)
from perdure.session.documents import DocumentChange, DocumentToken, Loaded, Name, Owner, Slot, write_of
from perdure.session.forks import fork_documents, inherited
from perdure.session.transcripts import Transcript
from perdure.settle.state import Candidate
from perdure.storage import (
    PutBase,
    PutConversation,
    PutDelta,
    PutDocument,
    PutEntry,
    PutSubmission,
    PutTask,
    Remove,
    TakeInbound,
    Write,
)
from perdure.values import clean

if TYPE_CHECKING:
    from perdure.session.line import Line

#: A record larger than this is refused before it is admitted, in bytes.
MAX_BODY = 64 * 1024 * 1024


class EntryKind(msgspec.Struct, frozen=True):
    """A kind of entry, as a token."""

    name: str


def entry_kind(name: str) -> EntryKind:
    """Declare an entry kind of your own. Raises UsageError for a reserved name."""
    if name.startswith(RESERVED_PREFIX):
        raise UsageError(f"entry kind {name!r} starts with {RESERVED_PREFIX!r}, which is perdure's own: take another prefix")
    return EntryKind(name)


class Prepared(msgspec.Struct, frozen=True):
    """A transaction as storage takes it, and what memory and observers need of it."""

    writes: list[Write]
    documents: list[DocumentChange]
    shelved: list[tuple[Owner, Name, Loaded | None]]


class Transaction:
    """Dies with its commit: later use raises HandleExpired and changes nothing."""

    def __init__(self, line: Line, conversation: ConversationId | None = None, task: TaskId | None = None) -> None:
        memory = line.memory
        self.line = line
        self.memory = memory
        #: The defaults of `append`, `doc` and `create_task`.
        self.conversation = conversation
        self.task_id = task
        self.candidate = Candidate(memory.tip)
        self.now = line.clock.now()
        self.seq = Seq(memory.tip_seq + 1)
        self.floor = memory.next_id
        self.next_id = memory.next_id
        self.fallbacks = line.fallbacks
        self.open = True
        #: Commit even if nothing is staged.
        self.forced = False
        self.entries: list[Entry] = []
        self.inbound: list[Inbound] = []
        self._slots: dict[tuple[Owner, Name], Slot] = {}
        #: Documents made without a draft (by a fork), and documents that end with their task.
        self._copied: list[tuple[Document, Loaded]] = []
        self._retired: list[tuple[Owner, Name, Loaded]] = []
        self.removes: list[Write] = []

    # -- ids and life -----------------------------------------------------------------------

    def mint(self) -> int:
        """The next id of the session (K4)."""
        self.alive()
        id = self.next_id
        self.next_id = id + 1
        return id

    def alive(self) -> None:
        if not self.open:
            raise HandleExpired("this transaction has ended: changes are made inside `async with … commit() as tx`")

    def shut(self) -> None:
        """No further use; drafts are revoked."""
        self.open = False
        for slot in self._slots.values():
            slot.draft.close()

    # -- conversations and entries ----------------------------------------------------------

    def create_conversation(
        self, *, key: str | None = None, owner: TaskId | None = None, title: str | None = None, id: ConversationId | None = None
    ) -> Conversation:
        """Make a conversation. A key must be unused: look it up first with `find_conversation`."""
        conversation = Conversation(
            id=ConversationId(self.mint()) if id is None else id, at=self.now, key=key, owner=owner, title=title
        )
        self.candidate.put_conversation(conversation)
        return conversation

    async def find_conversation(self, key: str) -> Conversation | None:
        """The conversation with that key, as of the tip."""
        for known in (*self.candidate.conversations.values(), *self.memory.tip.conversations.values()):
            if known.key == key and not known.deleted:
                return known
        await self.line.flushed()
        return await self.memory.by_key(key)

    async def fork(
        self, parent: ConversationId, at: EntryId, *, key: str | None = None, owner: TaskId | None = None
    ) -> Conversation:
        """A conversation that sees its parent through entry `at` (K15, K23). Copies no entry."""
        seen = await self.visible(parent, at)
        child = Conversation(
            id=ConversationId(self.mint()),
            at=self.now,
            key=key,
            owner=owner,
            parent=ForkPoint(conversation=parent, entry=at, seq=seen.seq),
        )
        self.candidate.put_conversation(child)
        changed = {name for (o, name), slot in self._slots.items() if o == ("conversation", parent) and slot.draft.ops}
        for record, value in await fork_documents(self.memory, parent, changed):
            self.copy_document(record, value, child.id)
        return child

    def copy_document(self, record: Document, source: Loaded, owner: ConversationId) -> None:
        """Start a document of `owner` with the value of another one."""
        copy = msgspec.structs.replace(record, id=DocumentId(self.mint()), owner=int(owner), created=self.seq, retired=None)
        size = len(encode(source.value))
        self._copied.append(
            (copy, Loaded(record=copy, value=source.value, version=source.version, base_bytes=size))
        )

    async def visible(self, conversation: ConversationId, id: EntryId) -> Entry:
        """An entry that the conversation sees, staged ones included. Raises NotFound."""
        for entry in self.entries:
            if entry.id == id and entry.conversation == conversation:
                return entry
        owner = await self.use(conversation)
        await self.line.flushed()
        body = await self.memory.storage.read_entry(self.line.session, id)
        if body is not None:
            entry = decode_entry(body)
            for segment, bound in await self.memory.lineage(owner):
                if segment == entry.conversation and (bound is None or id < bound):
                    return entry
        raise NotFound(f"conversation {conversation} sees no entry {id}")

    async def entry(self, kind: EntryKind, id: EntryId) -> Entry:
        """An entry of this conversation by id. Raises WrongKind where it is of another kind (K45)."""
        found = await self.visible(self._conversation(None), id)
        if found.kind != kind.name:
            raise WrongKind(f"entry {id} is of kind {found.kind!r}, not {kind.name!r}")
        return found

    async def use(self, id: ConversationId) -> Conversation:
        """The conversation as of the tip, loaded. Raises NotFound."""
        self.alive()
        found = self.candidate.conversations.get(id)
        if found is not None and not found.deleted:
            return found
        if found is not None or id in self.memory.gone:
            raise NotFound(f"no conversation {id} in session {self.line.session!r}: it was deleted")
        return await self.memory.conversation(id)

    async def transcript(self, id: ConversationId) -> Transcript:
        """The active transcript as of the tip, without what this transaction stages."""
        conversation = await self.use(id)
        known = self.memory.transcripts.get(id)
        if known is None:
            await self.line.flushed()
            known = await self.memory.transcript(conversation)
        return known

    def append(
        self,
        conversation: ConversationId,
        kind: EntryKind,
        *,
        messages: Sequence[Message] = (),
        data: Any = None,
        head: EntryId | None = None,
        heads_itself: bool = False,
        edits: Sequence[Edit] = (),
        task: TaskId | None = None,
    ) -> Entry:
        """Add an immutable entry (K12). `data` is cleaned and copied; `head` is where the active transcript starts from now on."""
        id = EntryId(self.mint())
        entry = Entry(
            id=id,
            conversation=conversation,
            kind=kind.name,
            seq=self.seq,
            at=self.now,
            messages=tuple(messages),
            data=None if data is None else clean(data),
            head=id if heads_itself else head,
            edits=tuple(edits),
            task=task,
        )
        self.entries.append(entry)
        return entry

    # -- records of other layers ------------------------------------------------------------

    def task(self, id: TaskId) -> Task | None:
        """The live task as of the tip; None once it has ended."""
        task = self.candidate.task(id)
        return task if task is not None and task.live else None

    def put_task(self, task: Task) -> None:
        self.alive()
        self.candidate.put(task)

    def put_submission(self, submission: Submission) -> None:
        self.alive()
        self.candidate.submissions[submission.id] = submission

    def take(self, item: Inbound, answer: Any) -> None:
        """Mark an inbound item as acted on, with the answer for whoever handed it in (K1a)."""
        self.alive()
        self.inbound.append(msgspec.structs.replace(item, taken=self.seq, answer=clean(answer)))

    # -- documents --------------------------------------------------------------------------

    async def doc(self, token: DocumentToken, owner: int | None = None, *, key: str = "") -> Any:
        """A draft of the document, created with its initial value if it is new (K18).

        `owner` is a conversation or task id; by default the transaction's own.
        """
        slot = await self._slot(token, self._owner(token, owner), key)
        root: DraftObject | DraftList | Any = slot.draft.root
        return root

    async def snapshot(self, token: DocumentToken, owner: int | None = None, *, key: str = "") -> Any:
        """The document's present value with this transaction's changes; None where it does not exist. Do not change it."""
        where = self._owner(token, owner)
        slot = self._slots.get((where, (token.kind, key)))
        if slot is not None:
            return slot.draft.value
        self.alive()
        loaded = await self._loaded(where, (token.kind, key))
        if loaded is not None:
            return token.current(loaded.value, loaded.version)
        return await self._inherited(token, where, key)

    async def _slot(self, token: DocumentToken, owner: Owner, key: str) -> Slot:
        self.alive()
        name = (token.kind, key)
        slot = self._slots.get((owner, name))
        if slot is not None:
            return slot
        loaded = await self._loaded(owner, name)
        if loaded is not None:
            value = token.current(loaded.value, loaded.version)
            rebase = loaded.version != token.version
        else:
            value = await self._inherited(token, owner, key)
            rebase = True
            if value is None:
                value = clean(token.initial())
        slot = Slot(token, owner, loaded, value, rebase=rebase)
        self._slots[owner, name] = slot
        return slot

    async def _loaded(self, owner: Owner, name: Name) -> Loaded | None:
        if owner[1] >= self.floor:  # the owner is new in this transaction: storage has nothing of it
            for record, loaded in self._copied:
                if (record.scope, record.owner) == owner and (record.kind, record.key) == name:
                    return loaded
            return None
        if owner not in self.memory.tip_shelves and self.memory.last_flight is not None:
            await self.line.flushed()
        return await self.memory.loaded(owner, name)

    async def _inherited(self, token: DocumentToken, owner: Owner, key: str) -> Any:
        if token.fork != "as_of":
            return None
        conversation = await self.use(ConversationId(owner[1]))
        if conversation.parent is None:
            return None
        await self.line.flushed()
        return await inherited(self.memory, token, owner, key, conversation)

    def _owner(self, token: DocumentToken, owner: int | None) -> Owner:
        if token.scope == "session":
            return ("session", 0)
        if owner is None:
            owner = self.task_id if token.scope == "task" else self.conversation
        if owner is None:
            raise UsageError(f"document {token.kind!r} belongs to a {token.scope}: name its id")
        return (token.scope, int(owner))

    def _conversation(self, id: ConversationId | None) -> ConversationId:
        found = self.conversation if id is None else id
        if found is None:
            raise UsageError("this commit belongs to no conversation: name its id")
        return found

    # -- leaving ----------------------------------------------------------------------------

    async def check(self) -> None:
        """What has to be loaded before the commit can be judged: conversations written to, and their heads."""
        tip = self.memory.tip.conversations
        for entry in self.entries:
            if entry.conversation not in tip or entry.conversation in self.candidate.conversations:
                await self.use(entry.conversation)
            if entry.head is not None and entry.head != entry.id:
                floor = (await self.transcript(entry.conversation)).floor
                if floor is not None and entry.head < floor:
                    raise TaskRefused(f"head {entry.head} is stale: the transcript already starts at entry {floor}")
        for task in self.candidate.tasks.values():
            if task.id >= self.floor and task.conversation not in tip:
                await self.use(task.conversation)

    async def retire(self, ended: Sequence[Task]) -> None:
        """Documents of ended tasks end with them (K22)."""
        for task in ended:
            owner = ("task", int(task.id))
            if task.id >= self.floor:
                continue
            shelf = self.memory.tip_shelves.get(owner)
            if shelf is None:
                shelf = await self.memory.shelf(owner)
            for name, loaded in shelf.items():
                self._retired.append((owner, name, loaded))

    def prepare(self) -> Prepared | None:
        """Take the deltas and encode every record once; None when nothing was staged."""
        out = Prepared([], [], [])
        writes = out.writes
        for conversation in self.candidate.conversations.values():
            parent = conversation.parent.conversation if conversation.parent else None
            writes.append(
                PutConversation(
                    conversation.id, conversation.key, conversation.owner, parent, not conversation.deleted, encode(conversation)
                )
            )
        for entry in self.entries:
            writes.append(PutEntry(entry.id, entry.conversation, entry.head, self._body(entry)))
        for task in self.candidate.tasks.values():
            writes.append(PutTask(task.id, task.live, task.ended, self._body(task)))
        for submission in self.candidate.submissions.values():
            ended = None if submission.live else self.now
            writes.append(
                PutSubmission(
                    submission.id, submission.conversation, submission.request_id, submission.live, ended, self._body(submission)
                )
            )
        self._prepare_documents(out)
        for item in self.inbound:
            writes.append(TakeInbound(item.id, encode(item)))
        writes.extend(self.removes)
        return out if writes or self.forced else None

    def _prepare_documents(self, out: Prepared) -> None:
        gone = {(owner, name) for owner, name, _ in self._retired}
        for (owner, name), slot in self._slots.items():
            if (owner, name) in gone or not (slot.draft.ops or (slot.loaded is None and slot.rebase)):
                continue
            record = slot.loaded.record if slot.loaded is not None else self._declare(out, slot, owner, name)
            written = write_of(slot, record)
            if written.base is not None:
                out.writes.append(PutBase(record.id, record.history == "latest", written.base))
            elif written.delta is not None:
                out.writes.append(PutDelta(record.id, written.delta))
            out.documents.append(DocumentChange(record=record, value=written.loaded.value, ops=tuple(slot.draft.ops)))
            out.shelved.append((owner, name, written.loaded))
        for record, loaded in self._copied:
            owner, name = (record.scope, record.owner), (record.kind, record.key)
            out.writes.append(_put_document(record))
            if (owner, name) in self._slots and self._slots[owner, name].draft.ops:
                continue
            out.writes.append(PutBase(record.id, record.history == "latest", encode_base(loaded)))
            out.shelved.append((owner, name, loaded))
        for owner, name, loaded in self._retired:
            record = msgspec.structs.replace(loaded.record, retired=self.seq)
            out.writes.append(_put_document(record) if record.history == "rewindable" else Remove("document", record.id))
            out.documents.append(DocumentChange(record=record, value=None, retired=True))
            out.shelved.append((owner, name, None))

    def _declare(self, out: Prepared, slot: Slot, owner: Owner, name: Name) -> Document:
        token = slot.token
        record = Document(
            id=DocumentId(self.mint()),
            scope=token.scope,
            owner=owner[1],
            kind=name[0],
            key=name[1],
            history=token.history,
            fork=token.fork,
            created=self.seq,
        )
        out.writes.append(_put_document(record))
        return record

    def _body(self, record: Entry | Task | Submission) -> bytes:
        body = encode(record)
        if len(body) > MAX_BODY:
            kind = type(record).__name__.lower()
            raise InvalidValue(f"{kind} {record.id} has {len(body):,} bytes; at most {MAX_BODY:,} are stored: keep big content in a file")
        return body


def _put_document(record: Document) -> PutDocument:
    return PutDocument(
        record.id, record.scope, record.owner, record.kind, record.key, record.retired is not None, encode(record)
    )


def encode_base(loaded: Loaded) -> bytes:
    """A document's whole value as storage keeps it."""
    return encode({"version": loaded.version, "value": loaded.value})
