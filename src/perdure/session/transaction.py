"""What the body of a commit works with: it reads the tip and stages records; nothing happens until the body is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import HandleExpired, NotFound, TaskRefused, UsageError, WrongKind
from perdure.messages import Message
from perdure.records import (
    RESERVED_PREFIX,
    Conversation,
    ConversationId,
    Edit,
    Entry,
    EntryId,
    ForkPoint,
    Inbound,
    Seq,
    Submission,
    Task,
    TaskId,
    Terminal,
    decode_entry,
)
from perdure.session.documents import DocumentToken, Owner
from perdure.session.drafts import Drafts
from perdure.session.transcripts import Transcript, sees, segments
from perdure.settle.state import Candidate
from perdure.storage import Write
from perdure.values import clean, clean_text

if TYPE_CHECKING:
    from perdure.session.change import Flight
    from perdure.session.line import Line


class EntryKind(msgspec.Struct, frozen=True):
    """A kind of entry, as a token."""

    name: str


def entry_kind(name: str) -> EntryKind:
    """Declare an entry kind of your own. Raises UsageError for a reserved name."""
    if name.startswith(RESERVED_PREFIX):
        raise UsageError(f"entry kind {name!r} starts with {RESERVED_PREFIX!r}, which is perdure's: take another one")
    return EntryKind(name)


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
        #: Of the memory that this transaction reads: when it has grown, the tip was lost.
        self.fallbacks = memory.fallbacks
        self.open = True
        #: Commit even if nothing is staged.
        self.forced = False
        #: Phases that became a part of it.
        self.parts = 0
        self.entries: list[Entry] = []
        #: Conversations that it makes and that are not set up yet, and how many are.
        self.created: list[Conversation] = []
        self.set_up = 0
        self.inbound: list[Inbound] = []
        self.removes: list[Write] = []
        #: Keys that storage was asked for in vain.
        self.unused: dict[str, None] = {}
        self.drafts = Drafts(self)
        #: What the body staged without waiting for what has to be read for it.
        self.unfinished: Awaitable[None] | None = None

    # -- ids and life -----------------------------------------------------------------------

    def mint(self) -> int:
        """The next id of the session (K4)."""
        id = self.next_id
        self.next_id = id + 1
        return id

    def alive(self) -> None:
        if not self.open:
            raise HandleExpired("this transaction has ended: changes are made inside `async with … commit() as tx`")

    def shut(self) -> None:
        """No further use; drafts are revoked."""
        self.open = False
        self.drafts.shut()
        del self.drafts  # which holds the transaction: without a circle both are gone at once

    # -- conversations ----------------------------------------------------------------------

    def create_conversation(
        self,
        *,
        key: str | None = None,
        owner: TaskId | None = None,
        title: str | None = None,
        id: ConversationId | None = None,
    ) -> Conversation:
        """Make a conversation. A key must be unused: look it up first with `find_conversation`."""
        self.alive()
        if owner is not None:
            self.check_owner(owner)
        conversation = Conversation(
            id=ConversationId(self.mint()) if id is None else id,
            at=self.now,
            key=None if key is None else clean_text(key),
            owner=owner,
            title=title,
        )
        self.candidate.put_conversation(conversation)
        self.created.append(conversation)
        return conversation

    def check_owner(self, id: TaskId) -> Task:
        """The live task that is to own new work. Raises TaskRefused where it cannot (K29); other layers add rules."""
        task = self.task(id)
        if task is None:
            raise TaskRefused(f"task {id} is not live: it cannot own new work (K29)")
        return task

    async def find_conversation(self, key: str) -> Conversation | None:
        """The conversation with that key, as of the tip."""
        self.alive()
        key = clean_text(key)  # as it is stored
        found = self.candidate.key(key)
        if found is None and key not in self.unused:
            found = await self.memory.by_key(key)
            if found is None or found.id in self.candidate.conversations:
                self.unused[key] = None
                return None
        return found

    async def fork(
        self, parent: ConversationId, at: EntryId, *, key: str | None = None, owner: TaskId | None = None
    ) -> Conversation:
        """A conversation that sees its parent through entry `at` (K15, K23). Copies no entry.

        Refused when this commit also changes a document that the fork copies by `current`.
        """
        seen = await self.visible(parent, at)
        if owner is not None:
            self.check_owner(owner)
        child = Conversation(
            id=ConversationId(self.mint()),
            at=self.now,
            key=None if key is None else clean_text(key),
            owner=owner,
            parent=ForkPoint(conversation=parent, entry=at, seq=seen.seq),
        )
        self.candidate.put_conversation(child)
        await self.drafts.fork(parent, child.id)
        self.created.append(child)
        return child

    async def use(self, id: ConversationId) -> Conversation:
        """The conversation as of the tip, loaded. Raises NotFound."""
        self.alive()
        found = self.candidate.conversations.get(id)
        if found is None:
            return self.memory.tip.conversations.get(id) or await self.memory.use(id)
        if found.deleted:
            raise NotFound(f"no conversation {id} in session {self.line.session!r}: it was deleted")
        return found

    # -- entries ----------------------------------------------------------------------------

    async def visible(self, conversation: ConversationId, id: EntryId) -> Entry:
        """An entry that the conversation sees, staged ones included. Raises NotFound."""
        home = await self.use(conversation)
        lineage = segments(home, await self._ancestors(home))
        entry = next((staged for staged in self.entries if staged.id == id), None)
        if entry is None:
            await self.line.flushed()
            body = await self.memory.storage.read_entry(self.line.session, id)
            entry = None if body is None else decode_entry(body, self.line.session)
        if entry is None or not sees(lineage, entry):
            raise NotFound(f"conversation {conversation} sees no entry {id}")
        return entry

    async def _ancestors(self, conversation: Conversation) -> list[Conversation]:
        found: list[Conversation] = []
        at = conversation
        while at.parent is not None:
            above = self.candidate.conversations.get(at.parent.conversation)
            above = above or await self.memory.ancestor(at.parent.conversation)
            if above is None:
                raise NotFound(f"conversation {at.id} was forked from {at.parent.conversation}, which is gone")
            found.append(above)
            at = above
        return found

    async def entry(self, kind: EntryKind, id: EntryId) -> Entry:
        """An entry of this conversation by id. Raises WrongKind where it is of another kind (K45)."""
        found = await self.visible(self._conversation(None), id)
        if found.kind != kind.name:
            raise WrongKind(f"entry {id} is of kind {found.kind!r}, not {kind.name!r}")
        return found

    async def transcript(self, id: ConversationId) -> Transcript:
        """The active transcript as of the tip, without what this transaction stages."""
        conversation = await self.use(id)
        return self.memory.transcripts.get(id) or await self.memory.transcript(conversation)

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
        """Add an immutable entry (K12). `data` is cleaned and copied; `head` is where the active transcript starts."""
        self.alive()
        id = EntryId(self.mint())
        for edit in edits:
            if edit.entry >= id:
                raise UsageError(f"an entry edits earlier ones: there is no entry {edit.entry} yet")
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
        return None if task is None or type(task.state) is Terminal else task

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

        `owner` is a conversation or task id, by default the transaction's own. Raises NotFound where it is not there.
        """
        self.alive()
        return (await self.drafts.slot(token, self._owner(token, owner), key and clean_text(key))).draft.root

    async def snapshot(self, token: DocumentToken, owner: int | None = None, *, key: str = "") -> Any:
        """The document's present value with this transaction's changes; None where there is none. Do not change it."""
        self.alive()
        return await self.drafts.value(token, self._owner(token, owner), key and clean_text(key))

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

    # -- parts of a commit ------------------------------------------------------------------

    def save(self) -> Callable[[], None]:
        """What takes back all that is staged from now on."""
        candidate, drafts = self.candidate.save(), self.drafts.save()
        lists = [(staged, len(staged)) for staged in (self.entries, self.created, self.inbound, self.removes)]
        next_id = self.next_id

        def restore() -> None:
            self.candidate.restore(candidate)
            self.drafts.restore(drafts)
            for staged, length in lists:
                del staged[length:]
            self.next_id = next_id

        return restore

    # -- leaving ----------------------------------------------------------------------------

    def admissible(self) -> None:
        """Raise where whoever opened the transaction lost the right to commit meanwhile."""

    def admitted(self, flight: Flight) -> None:
        """The commit was handed to storage as this flight."""


__all__ = ["EntryKind", "Transaction", "entry_kind"]
