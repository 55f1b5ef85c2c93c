"""The documents that a session holds in memory, at the tip and as published."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from perdure.deltas import apply
from perdure.errors import InvalidValue
from perdure.records import Document, DocumentId, Seq, damaged, decode_base, decode_document, decode_json, encode
from perdure.session.change import Flight
from perdure.session.documents import UNREAD, Loaded, Name, Owner
from perdure.storage import Storage

PAGE = 500

#: Live documents of one owner; a value may be UNREAD.
Shelf = dict[Name, Loaded]

#: The shelf of an owner without documents, shared and never changed: thousands of owners may be in memory.
EMPTY: Shelf = {}
#: A shelf of at most so many is one for the tip and what is published while they are alike; it is copied to be changed.
SHARED = 4


class Shelves:
    """Invariant: a shelf is all of its owner's live documents, or it is absent. What flights touch is present."""

    def __init__(self, storage: Storage, session: str, *, fresh: bool) -> None:
        self._storage = storage
        self._session = session
        self.tip: dict[Owner, Shelf] = {("session", 0): {}} if fresh else {}
        self.published: dict[Owner, Shelf] = {("session", 0): {}} if fresh else {}
        #: Grows when anything leaves memory, so that what was read from storage meanwhile is read again.
        self._dropped = 0

    # -- moving on --------------------------------------------------------------------------

    def advance(self, flight: Flight) -> None:
        """The commit was admitted: it is part of the tip."""
        _apply(self.tip, flight, self.published)

    def publish(self, flight: Flight) -> None:
        """The commit is durable. Documents of tasks that it ended are gone with them (K22)."""
        _apply(self.published, flight, self.tip)
        for owner, _, _ in flight.shelved:
            mine, tip = self.published.get(owner), self.tip.get(owner)
            if mine is not tip and mine is not None and tip is not None and _alike(mine, tip):
                self.published[owner] = tip
        for task in flight.candidate.tasks.values():
            if not task.live:
                self.drop(("task", task.id))

    def fall_back(self) -> None:
        """The tip is what is published."""
        self._dropped += 1
        self.tip = {owner: dict(shelf) for owner, shelf in self.published.items()}

    def drop(self, owner: Owner) -> None:
        """Forget an owner's documents. Nothing of it may be in flight."""
        if self.tip.pop(owner, None) is not None:
            self._dropped += 1
        self.published.pop(owner, None)

    # -- reading ----------------------------------------------------------------------------

    async def shelf(self, owner: Owner) -> Shelf:
        """All live documents of an owner at the tip, from now on in memory. Only for what is in memory itself."""
        while (found := self.tip.get(owner)) is None:
            dropped = self._dropped
            shelf = {
                (record.kind, record.key): Loaded(record=record, value=UNREAD) async for record in self.records(owner)
            }
            if dropped == self._dropped and owner not in self.tip:
                self.tip[owner] = shelf
                self.published[owner] = dict(shelf)
        return found

    async def loaded(self, owner: Owner, name: Name) -> Loaded | None:
        """The live document of that name at the tip, with its value; None where there is none."""
        shelf = self.tip.get(owner)
        if shelf is None:
            shelf = await self.shelf(owner)
        found = shelf.get(name)
        if found is None or found.value is not UNREAD:
            return found
        read = await self.read(found.record)
        again = self.tip.get(owner, {}).get(name)
        if again is not None and again.value is not UNREAD:
            return again
        if read is not None:
            for shelves in (self.tip, self.published):
                known = shelves.get(owner, {}).get(name)
                if known is not None and known.value is UNREAD:
                    shelves[owner][name] = read
        return read

    async def public(self, owner: Owner, name: Name) -> Loaded | None:
        """The live document of that name as published. Leaves nothing in memory."""
        shelf = self.published.get(owner)
        if shelf is not None:
            found = shelf.get(name)
            if found is None or found.value is not UNREAD:
                return found
            return await self.read(found.record)
        body = await self._storage.find_document(self._session, owner[0], owner[1], name[0], name[1])
        return None if body is None else await self.read(decode_document(body, self._session))

    async def records(self, owner: Owner, *, kind: str | None = None, retired: bool = False) -> AsyncIterator[Document]:
        """The documents of an owner in storage, by id, page by page."""
        after = 0
        while True:
            bodies = await self._storage.scan_documents(
                self._session, owner[0], owner[1], kind=kind, retired=retired, after=after, limit=PAGE
            )
            for body in bodies:
                record = decode_document(body, self._session)
                after = record.id
                yield record
            if len(bodies) < PAGE:
                return

    async def read(self, record: Document, at: int | None = None) -> Loaded | None:
        """The document's value from storage, now or as of a commit. None where it is not there."""
        seq = None if at is None else Seq(at)
        stored = await self._storage.read_document(self._session, DocumentId(record.id), at=seq)
        if stored is None:
            return None
        try:
            base = decode_base(stored.base)
            value = base.value
            for delta in stored.deltas:
                value = apply(value, decode_json(delta))
        except (msgspec.DecodeError, InvalidValue) as error:
            raise damaged("document", encode(record), self._session, error) from None
        return Loaded(
            record=record,
            value=value,
            version=base.version,
            base_bytes=len(stored.base),
            tail_bytes=sum(map(len, stored.deltas)),
            tail_count=len(stored.deltas),
        )


def _alike(one: Shelf, other: Shelf) -> bool:
    """Whether both hold the very same, and so little that a copy costs nothing."""
    return len(one) == len(other) <= SHARED and all(other.get(name) is loaded for name, loaded in one.items())


def _apply(shelves: dict[Owner, Shelf], flight: Flight, others: dict[Owner, Shelf]) -> None:
    """Records that this very commit made have no documents in storage: their shelves are complete from the start."""
    for owner in flight.owners:
        shelves.setdefault(owner, EMPTY)
    for owner, name, loaded in flight.shelved:
        shelf = shelves.get(owner)
        if shelf is None:
            continue
        if shelf is EMPTY or others.get(owner) is shelf:
            shelf = shelves[owner] = dict(shelf)
        if loaded is None:
            shelf.pop(name, None)
        else:
            shelf[name] = loaded
