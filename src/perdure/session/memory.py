"""What a session holds in memory: records, documents and transcripts, at the tip and as published."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from perdure.errors import NotFound
from perdure.records import (
    ROOT,
    Conversation,
    ConversationId,
    Entry,
    decode_conversation,
    decode_entries,
)
from perdure.session.change import Flight
from perdure.session.documents import Loaded, Name, Owner
from perdure.session.shelves import Shelves
from perdure.session.transcripts import Segment, Transcript, cut, sees, segments
from perdure.settle.state import State
from perdure.storage import Opened, Storage

#: Conversations without live work whose records, documents and transcript stay in memory.
KEEP_IDLE = 256
#: So many more are let in before any are forgotten.
TRIM_AT = 16
PAGE = 200
LONG_PAGE = 1000


class Memory:
    """Invariants: `tip` is `published` plus `flights`, in order. What flights touch stays in memory until they land.
    A transcript in memory is the whole active one at the tip.
    Only the body of a commit brings something into memory; reads of what is published leave nothing there.
    """

    def __init__(self, storage: Storage, opened: Opened) -> None:
        self.storage = storage
        self.session = opened.claim.session
        #: Nothing was in the session when it was opened.
        self.fresh = opened.head == 0
        self.tip = State()
        self.published = State()
        self.tip_seq = opened.head
        self.published_seq = opened.head
        self.next_id = max(opened.next_id, ROOT + 1)
        #: Commits that were admitted and have not landed, oldest first.
        self.flights: deque[Flight] = deque()
        #: Grows when the tip falls back: what was computed from the lost tip is void.
        self.fallbacks = 0
        self.shelves = Shelves(storage, self.session, fresh=opened.head == 0)
        self.transcripts: dict[ConversationId, Transcript] = {}
        #: Transcripts being read from storage.
        self._loadings: list[_Loading] = []
        #: Conversations in memory that may be idle, and which commit touched each last; the longest ago first.
        self._touched: dict[ConversationId, int] = {}

    @property
    def last_flight(self) -> Flight | None:
        return self.flights[-1] if self.flights else None

    # -- moving on --------------------------------------------------------------------------

    def advance(self, flight: Flight, next_id: int) -> None:
        """The commit was admitted: it is part of the tip."""
        self.tip_seq = flight.change.seq
        self.next_id = next_id
        self.flights.append(flight)
        if not flight.bare:
            self.tip.apply(flight.candidate)
        self._touch_all(flight)
        for conversation in () if flight.bare else flight.candidate.conversations.values():
            if conversation.deleted:
                self.transcripts.pop(conversation.id, None)
            elif conversation.id >= flight.floor and conversation.parent is None:
                self.transcripts[conversation.id] = Transcript([])
        self.shelves.advance(flight)
        for entry in flight.change.entries:
            transcript = self.transcripts.get(entry.conversation)
            if transcript is not None:
                transcript.append(entry)
            for loading in self._loadings:
                loading.note(entry)

    def publish(self, flight: Flight) -> None:
        """The oldest commit in flight is durable: it is part of what everyone sees."""
        self.flights.popleft()
        self.published_seq = flight.change.seq
        if not flight.bare:
            self.published.apply(flight.candidate)
        self.shelves.publish(flight)
        for conversation in flight.candidate.conversations.values():
            if conversation.deleted:
                self.shelves.drop(("conversation", conversation.id))
                self._touched.pop(conversation.id, None)

    def fall_back(self) -> list[Flight]:
        """The commits in flight were refused: the tip is what is published. Returns them, oldest first."""
        lost = list(self.flights)
        self.flights.clear()
        self.fallbacks += 1
        self.tip = self.published.copy()
        self.tip_seq = self.published_seq
        self.shelves.fall_back()
        self.transcripts.clear()
        return lost

    # -- what stays in memory ---------------------------------------------------------------

    def trim(self) -> None:
        """Forget the idle conversations touched longest ago. Only between transactions: an open one uses them."""
        excess = len(self._touched) - KEEP_IDLE
        if excess < TRIM_AT:
            return  # TRIM_AT spares a scan on each commit
        for id, seq in list(self._touched.items())[:excess]:
            if seq <= self.published_seq:
                del self._touched[id]
                if not self._needed(id):
                    self._forget(id)

    def _needed(self, id: ConversationId) -> bool:
        """Whether it has work. When that ends, it is touched again."""
        for state in (self.tip, self.published):
            known = state.conversations.get(id)
            owner = None if known is None else known.owner
            if id in state.scopes or id in state.queued or (owner is not None and owner in state.tasks):
                return True
        return False

    def _forget(self, id: ConversationId) -> None:
        self.transcripts.pop(id, None)
        self.tip.forget_conversation(id)
        self.published.forget_conversation(id)
        self.shelves.drop(("conversation", id))

    def _touch(self, id: ConversationId) -> None:
        touched = self._touched
        if touched.get(id) != self.tip_seq:
            touched.pop(id, None)
            touched[id] = self.tip_seq

    def _touch_all(self, flight: Flight) -> None:
        candidate = flight.candidate
        ids: dict[ConversationId, None] = {entry.conversation: None for entry in flight.change.entries}
        for owner, _, _ in flight.shelved:
            if owner[0] == "conversation":
                ids[ConversationId(owner[1])] = None
        if not flight.bare:
            ids.update(dict.fromkeys(candidate.conversations))
            for task in candidate.tasks.values():
                ids[task.conversation] = None
                if not task.live:
                    ids.update(dict.fromkeys(self.tip.owned.get(task.id, ())))
            for submission in candidate.submissions.values():
                ids[submission.conversation] = None
        for id in ids:
            self._touch(id)

    # -- the tip, for the body of a commit --------------------------------------------------

    async def use(self, id: ConversationId) -> Conversation:
        """The conversation at the tip, from now on in memory. Raises NotFound."""
        found = self.tip.conversations.get(id)
        if found is not None:
            return found
        body = await self.storage.read_conversation(self.session, id)
        found = self._keep(body)
        if found is None:
            raise NotFound(f"no conversation {id} in session {self.session!r}")
        return found

    async def by_key(self, key: str) -> Conversation | None:
        """The conversation with that key, for a key that no conversation in memory has; from now on in memory."""
        return self._keep(await self.storage.find_conversation(self.session, key))

    def _keep(self, body: bytes | None) -> Conversation | None:
        if body is None:
            return None
        read = decode_conversation(body, self.session)
        known = self.tip.conversations.get(read.id)
        if known is not None:
            return known
        if read.deleted or any(read.id in flight.candidate.conversations for flight in self.flights):
            return None  # what flights touch is in memory, unless they delete it
        self.tip.put_conversation(read)
        self.published.put_conversation(read)
        self._touch(read.id)
        return read

    async def transcript(self, conversation: Conversation) -> Transcript:
        """The active transcript at the tip, kept in memory while the conversation is."""
        known = self.transcripts.get(conversation.id)
        while known is None:
            known = await self._read_transcript(conversation)
        return known

    async def _read_transcript(self, conversation: Conversation) -> Transcript | None:
        """From storage, with what is in flight. None when commits were refused meanwhile: it has to be read again."""
        fallbacks = self.fallbacks
        loading = _Loading(await self.lineage(conversation))
        for flight in self.flights:
            for entry in flight.change.entries:
                loading.note(entry)
        self._loadings.append(loading)
        try:
            stored = await self._active(loading.segments)
        finally:
            self._loadings.remove(loading)
        if self.fallbacks != fallbacks:
            return None
        newest = stored[-1].id if stored else 0
        transcript = Transcript(cut([*stored, *(entry for entry in loading.late if entry.id > newest)]))
        if conversation.id in self.tip.conversations:
            return self.transcripts.setdefault(conversation.id, transcript)
        return transcript

    async def _active(self, lineage: Sequence[Segment]) -> list[Entry]:
        """Entries in storage back to where the newest head starts, oldest first."""
        entries: list[Entry] = []
        before: int | None = None
        head: Entry | None = None
        size = PAGE
        while True:
            page = await self._page(lineage, before, size)
            entries.extend(page)
            head = head or next((entry for entry in page if entry.head is not None), None)
            if len(page) < size or (head is not None and head.head is not None and page[-1].id <= head.head):
                return entries[::-1]
            before, size = page[-1].id, LONG_PAGE  # each page is a wait of its own

    async def loaded(self, owner: Owner, name: Name) -> Loaded | None:
        """The live document of that name at the tip, with its value; None where there is none."""
        return await self.shelves.loaded(owner, name)

    # -- what is published ------------------------------------------------------------------

    async def conversation(self, id: ConversationId) -> Conversation:
        """The conversation as published. Leaves nothing in memory. Raises NotFound."""
        found = self.published.conversations.get(id)
        if found is None:
            body = await self.storage.read_conversation(self.session, id)
            found = None if body is None else decode_conversation(body, self.session)
        if found is None or found.deleted:
            raise NotFound(f"no conversation {id} in session {self.session!r}")
        return found

    async def ancestor(self, id: ConversationId) -> Conversation | None:
        """A conversation or its tombstone."""
        known = self.tip.conversations.get(id)
        if known is not None:
            return known
        body = await self.storage.read_conversation(self.session, id)
        return None if body is None else decode_conversation(body, self.session)

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

    async def entries(self, conversation: Conversation, *, before: int | None = None, limit: int = PAGE) -> list[Entry]:
        """A page of the published entries that the conversation sees, newest first (K16)."""
        lineage = await self.lineage(conversation)
        if self.flights:  # storage may have them already, but nobody was told
            floor = self.flights[0].floor
            before = floor if before is None else min(before, floor)
        return await self._page(lineage, before, limit)

    async def _page(self, lineage: Sequence[Segment], before: int | None, limit: int) -> list[Entry]:
        found: list[Entry] = []
        for id, bound in lineage:
            below = bound if before is None else before if bound is None else min(before, bound)
            bodies = await self.storage.scan_entries(self.session, id, before=below, limit=limit - len(found))
            found.extend(decode_entries(bodies, self.session))
            if len(found) >= limit:
                break
        return found


class _Loading:
    """A transcript being read from storage, and the entries that were admitted meanwhile."""

    __slots__ = ("late", "segments")

    def __init__(self, lineage: list[Segment]) -> None:
        self.segments = lineage
        self.late: list[Entry] = []

    def note(self, entry: Entry) -> None:
        if sees(self.segments, entry):
            self.late.append(entry)
