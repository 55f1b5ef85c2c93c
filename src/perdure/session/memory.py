"""What a session holds in memory: state, documents and transcripts, at the tip and as published."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.deltas import apply
from perdure.errors import NotFound
from perdure.records import (
    ROOT,
    Conversation,
    ConversationId,
    Document,
    Entry,
    decode_base,
    decode_conversation,
    decode_document,
    decode_entry,
    decode_json,
)
from perdure.session.change import Flight
from perdure.session.documents import UNREAD, Loaded, Name, Owner
from perdure.session.transcripts import Segment, Transcript, cut, segments
from perdure.settle.state import State
from perdure.storage import Opened, Storage

#: Idle conversations whose records, documents and transcript stay in memory.
KEEP_IDLE = 64
#: So many more are let in before any are forgotten.
TRIM_AT = 16
PAGE = 200

Shelf = dict[Name, Loaded]


class Memory:
    """Invariant: what is in memory of an owner's documents is all of its live ones (the shelf is complete, or absent);
    a transcript in memory is the whole active one. What flights touch stays in memory until they have landed."""

    def __init__(self, storage: Storage, opened: Opened) -> None:
        self.storage = storage
        self.session = opened.claim.session
        self.tip = State()
        self.published = State()
        self.tip_seq = opened.head
        self.published_seq = opened.head
        self.next_id = max(opened.next_id, ROOT + 1)
        #: The newest commit in flight; None once everything has landed.
        self.last_flight: Flight | None = None
        self.tip_shelves: dict[Owner, Shelf] = {("session", 0): {}} if opened.head == 0 else {}
        self.published_shelves: dict[Owner, Shelf] = {("session", 0): {}} if opened.head == 0 else {}
        self.transcripts: dict[ConversationId, Transcript] = {}
        #: Conversations that were deleted since the session was opened.
        self.gone: dict[ConversationId, None] = {}
        #: Conversations without live work and the commit that left them so, least recently changed first.
        self._idle: dict[ConversationId, int] = {}

    # -- moving on --------------------------------------------------------------------------

    def advance(self, flight: Flight, next_id: int) -> None:
        """The commit was admitted: it is part of the tip."""
        self.tip_seq = flight.change.seq
        self.next_id = next_id
        self.last_flight = flight
        self.tip.apply(flight.candidate)
        for conversation in flight.candidate.conversations.values():
            if conversation.deleted:
                self.transcripts.pop(conversation.id, None)
                self.gone[conversation.id] = None
            elif conversation.id >= flight.floor and conversation.parent is None:
                self.transcripts[conversation.id] = Transcript([])
        for id in flight.candidate.conversations:
            self._new_owner(self.tip_shelves, ("conversation", id), flight, id)
        for id in flight.candidate.tasks:
            self._new_owner(self.tip_shelves, ("task", id), flight, id)
        _shelve(self.tip_shelves, flight)
        for entry in flight.change.entries:
            transcript = self.transcripts.get(entry.conversation)
            if transcript is not None:
                transcript.append(entry)

    def publish(self, flight: Flight) -> None:
        """The commit is durable: it is part of what everyone sees."""
        self.published_seq = flight.change.seq
        if self.last_flight is flight:
            self.last_flight = None
        self.published.apply(flight.candidate)
        for id in flight.candidate.conversations:
            self._new_owner(self.published_shelves, ("conversation", id), flight, id)
        for id in flight.candidate.tasks:
            self._new_owner(self.published_shelves, ("task", id), flight, id)
        _shelve(self.published_shelves, flight)
        for task in flight.candidate.tasks.values():
            if not task.live:
                self.tip_shelves.pop(("task", task.id), None)
                self.published_shelves.pop(("task", task.id), None)
        self._note_idle(flight)

    def fall_back(self) -> None:
        """Commits in flight were refused: the tip is what is published."""
        self.last_flight = None
        self.tip = self.published.copy()
        self.tip_seq = self.published_seq
        self.tip_shelves = {owner: dict(shelf) for owner, shelf in self.published_shelves.items()}
        self.transcripts.clear()

    def _new_owner(self, shelves: dict[Owner, Shelf], owner: Owner, flight: Flight, id: int) -> None:
        """A record that this very commit made has no documents in storage: its shelf is complete from the start."""
        if owner not in shelves and id >= flight.floor:
            shelves[owner] = {}

    def _note_idle(self, flight: Flight) -> None:
        for id in _conversations_of(flight):
            self._idle.pop(id, None)
            if id not in self.tip.scopes and id not in self.tip.queued:
                self._idle[id] = flight.change.seq

    def trim(self) -> None:
        """Forget the idle conversations that changed longest ago. Only between transactions: an open one may use them."""
        excess = len(self._idle) - KEEP_IDLE
        if excess < TRIM_AT:
            return  # TRIM_AT spares a scan on each commit
        for id, seq in list(self._idle.items())[:excess]:
            if seq <= self.published_seq:
                del self._idle[id]
                self.forget(id)

    def forget(self, id: ConversationId) -> None:
        """Drop a conversation from memory; it is read again when it is needed."""
        conversation = self.tip.conversations.get(id)
        if conversation is not None and conversation.owner in self.tip.tasks:
            return
        self.transcripts.pop(id, None)
        self.tip.forget_conversation(id)
        self.published.forget_conversation(id)
        self.tip_shelves.pop(("conversation", id), None)
        self.published_shelves.pop(("conversation", id), None)

    # -- reading ----------------------------------------------------------------------------

    async def conversation(self, id: ConversationId) -> Conversation:
        """The conversation, loaded. Raises NotFound."""
        found = self.tip.conversations.get(id)
        if found is not None:
            return found
        body = await self.storage.read_conversation(self.session, id)
        if body is not None:
            found = self.tip.conversations.get(id) or decode_conversation(body)
            if not found.deleted:
                self.keep(found)
                return found
        raise NotFound(f"no conversation {id} in session {self.session!r}")

    async def by_key(self, key: str) -> Conversation | None:
        """The conversation with that key in storage, loaded."""
        body = await self.storage.find_conversation(self.session, key)
        if body is None:
            return None
        found = decode_conversation(body)
        self.keep(found)
        return self.tip.conversations.get(found.id, found)

    async def ancestor(self, id: ConversationId) -> Conversation | None:
        """A conversation or its tombstone."""
        known = self.tip.conversations.get(id)
        if known is not None:
            return known
        body = await self.storage.read_conversation(self.session, id)
        return None if body is None else decode_conversation(body)

    async def transcript(self, conversation: Conversation) -> Transcript:
        """The active transcript from storage, kept in memory. Nothing of the conversation may be in flight."""
        known = self.transcripts.get(conversation.id)
        if known is not None:
            return known
        entries: list[Entry] = []
        before: int | None = None
        head: Entry | None = None
        while True:
            page = await self.entries(conversation, before=before, limit=PAGE)
            entries.extend(page)
            head = head or next((entry for entry in page if entry.head is not None), None)
            if len(page) < PAGE or (head is not None and head.head is not None and page[-1].id <= head.head):
                break
            before = page[-1].id
        transcript = Transcript(cut(entries[::-1]))
        self.transcripts[conversation.id] = transcript
        return transcript

    def keep(self, conversation: Conversation) -> None:
        """Hold a conversation that was read from storage."""
        if conversation.id not in self.tip.conversations:
            self.tip.put_conversation(conversation)
            self.published.put_conversation(conversation)

    async def lineage(self, conversation: Conversation) -> list[Segment]:
        """Where the entries that the conversation sees are, nearest first."""
        ancestors: list[Conversation] = []
        at = conversation
        while at.parent is not None:
            known = await self.ancestor(at.parent.conversation)
            if known is None:
                raise NotFound(f"conversation {at.id} was forked from {at.parent.conversation}, which is gone")
            ancestors.append(known)
            at = known
        return segments(conversation, ancestors)

    async def entries(
        self, conversation: Conversation, *, before: int | None = None, limit: int = PAGE
    ) -> list[Entry]:
        """A page of the entries that the conversation sees in storage, newest first (K16)."""
        found: list[Entry] = []
        for id, bound in await self.lineage(conversation):
            below = bound if before is None else before if bound is None else min(before, bound)
            bodies = await self.storage.scan_entries(self.session, id, before=below, limit=limit - len(found))
            found.extend(map(decode_entry, bodies))
            if len(found) >= limit:
                break
        return found

    async def shelf(self, owner: Owner) -> Shelf:
        """All live documents of an owner at the tip; values may be UNREAD."""
        shelf = self.tip_shelves.get(owner)
        if shelf is None:
            bodies = await self.storage.scan_documents(self.session, owner[0], owner[1])
            shelf = self.tip_shelves.get(owner)
            if shelf is None:
                shelf = {}
                for record in map(decode_document, bodies):
                    shelf[record.kind, record.key] = Loaded(record=record, value=UNREAD)
                self.tip_shelves[owner] = shelf
                self.published_shelves[owner] = dict(shelf)
        return shelf

    async def loaded(self, owner: Owner, name: Name) -> Loaded | None:
        """The live document of that name at the tip, with its value; None where there is none."""
        shelf = self.tip_shelves.get(owner) or await self.shelf(owner)
        found = shelf.get(name)
        if found is None or found.value is not UNREAD:
            return found
        read = await self.read_value(found.record, None)
        again = self.tip_shelves.get(owner, {}).get(name)
        if again is not None and again.value is not UNREAD:
            return again
        assert read is not None
        for shelves in (self.tip_shelves, self.published_shelves):
            if owner in shelves and name in shelves[owner]:
                shelves[owner][name] = read
        return read

    async def read_value(self, record: Document, at: int | None) -> Loaded | None:
        """The document's value from storage, now or as of a commit."""
        stored = await self.storage.read_document(self.session, record.id, at=at)  # type: ignore[arg-type]
        if stored is None:
            return None
        base = decode_base(stored.base)
        value = base.value
        for delta in stored.deltas:
            value = apply(value, decode_json(delta))
        return Loaded(
            record=record,
            value=value,
            version=base.version,
            base_bytes=len(stored.base),
            tail_bytes=sum(map(len, stored.deltas)),
            tail_count=len(stored.deltas),
        )


def _shelve(shelves: dict[Owner, Shelf], flight: Flight) -> None:
    for owner, name, loaded in flight.shelved:
        if loaded is None:
            shelves.get(owner, {}).pop(name, None)
        else:
            shelves.setdefault(owner, {})[name] = loaded


def _conversations_of(flight: Flight) -> Sequence[ConversationId]:
    ids: dict[ConversationId, None] = dict.fromkeys(flight.candidate.conversations)
    for task in flight.candidate.tasks.values():
        ids[task.conversation] = None
    for submission in flight.candidate.submissions.values():
        ids[submission.conversation] = None
    return list(ids)
