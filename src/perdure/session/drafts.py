"""The documents of one transaction: drafts, copies that forks start with, and what ends with its task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.deltas import Draft, Op
from perdure.errors import NotFound, TaskRefused
from perdure.records import ConversationId, Document, DocumentId, Task, TaskId, encode
from perdure.session.documents import UNREAD, DocumentToken, Loaded, Name, Owner, Slot
from perdure.session.forks import inherited
from perdure.values import clean

if TYPE_CHECKING:
    from perdure.session.transaction import Transaction

Place = tuple[Owner, Name]
Saved = tuple[list[tuple[Place, Slot, Any, list[Op]]], dict[Place, Loaded], dict[Owner, None]]


class Drafts:
    """Dies with its transaction. It reads the tip; nothing leaves it before the transaction is prepared."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._memory = tx.memory
        #: Documents that were asked for to be changed.
        self.slots: dict[Place, Slot] = {}
        #: Documents that a fork starts with.
        self.copies: dict[Place, Loaded] = {}
        #: Owners whose `current` documents were copied: this commit may not change them as well (K23).
        self._copied_from: dict[Owner, None] = {}
        #: Tasks that this commit ends, and the documents that end with them (K22).
        self.ending: dict[Owner, None] = {}
        self.ended: list[tuple[Owner, Name, Loaded]] = []

    async def slot(self, token: DocumentToken, owner: Owner, key: str) -> Slot:
        """The document to be changed, created with its initial value if it is new. Raises NotFound for the owner."""
        place = (owner, (token.kind, key))
        slot = self.slots.get(place)
        if slot is not None:
            return slot
        if owner[0] == "task" and self._tx.task(TaskId(owner[1])) is None:
            raise NotFound(f"no live task {owner[1]}: document {token.kind!r} ends with its task")
        loaded = self._at_hand(place)
        if loaded is UNREAD:
            loaded = await self._loaded(place)
        if loaded is not None:
            value = token.current(loaded.value, loaded.version)
            rebase = loaded.version != token.version or place in self.copies
        else:
            value = await self._inherited(token, owner, key)
            rebase = True
            if value is None:
                value = clean(token.initial())
        self._tx.alive()  # its body may have ended meanwhile
        slot = self.slots[place] = Slot(token, owner, loaded, value, rebase=rebase)
        return slot

    async def value(self, token: DocumentToken, owner: Owner, key: str) -> Any:
        """The value with this transaction's changes; None where there is none. Not to be changed."""
        place = (owner, (token.kind, key))
        slot = self.slots.get(place)
        if slot is not None:
            return slot.draft.value
        if owner[0] == "task" and self._tx.task(TaskId(owner[1])) is None:
            return None
        loaded = self._at_hand(place)
        if loaded is UNREAD:
            loaded = await self._loaded(place)
        if loaded is not None:
            return token.current(loaded.value, loaded.version)
        return await self._inherited(token, owner, key)

    def _at_hand(self, place: Place) -> Any:
        """What is in memory of the document: None where there is none, UNREAD where that has to be found out."""
        owner, name = place
        memory = self._memory
        shelf = memory.shelves.tip.get(owner)
        if shelf is None or self._tx.candidate.conversations:
            return UNREAD
        if owner[0] == "conversation" and owner[1] not in memory.tip.conversations:
            return UNREAD
        found = shelf.get(name)
        return found if found is None else UNREAD if found.value is UNREAD else found

    async def _loaded(self, place: Place) -> Loaded | None:
        owner, name = place
        if owner[0] == "conversation":
            await self._tx.use(ConversationId(owner[1]))
        if owner[1] >= self._tx.floor:  # the owner is new in this transaction: storage has nothing of it
            return self.copies.get(place)
        return await self._memory.loaded(owner, name)

    async def _inherited(self, token: DocumentToken, owner: Owner, key: str) -> Any:
        if token.fork != "as_of":
            return None
        tx = self._tx
        known = tx.memory.tip.conversations.get(ConversationId(owner[1]))
        if known is not None and known.parent is None:
            return None
        conversation = await tx.use(ConversationId(owner[1]))
        point = conversation.parent
        if point is None:
            return None
        if point.seq == tx.seq:  # forked from an entry of this very commit
            return await self.value(token, ("conversation", point.conversation), key)
        await tx.line.flushed()
        return await inherited(self._memory, token, key, conversation)

    # -- forks ------------------------------------------------------------------------------

    async def fork(self, parent: ConversationId, child: ConversationId) -> None:
        """Start the child with copies of the parent's `current` documents."""
        owner: Owner = ("conversation", int(parent))
        self._copied_from[owner] = None
        if parent >= self._tx.floor:
            shelf = {name: loaded for (whose, name), loaded in self.copies.items() if whose == owner}
        else:
            shelf = await self._memory.shelves.shelf(owner)
        for name, loaded in list(shelf.items()):
            if loaded.record.fork != "current":
                continue
            found = loaded if loaded.value is not UNREAD else await self._memory.loaded(owner, name)
            assert found is not None
            self._copy(found, ("conversation", int(child)), name)

    def _copy(self, source: Loaded, owner: Owner, name: Name) -> None:
        record = msgspec.structs.replace(
            source.record, id=DocumentId(self._tx.mint()), owner=owner[1], created=self._tx.seq, retired=None
        )
        size = len(encode(source.value))
        self.copies[owner, name] = Loaded(record=record, value=source.value, version=source.version, base_bytes=size)

    # -- parts of a commit ------------------------------------------------------------------

    def save(self) -> Saved:
        """What there is to return to."""
        slots = [(place, slot, slot.draft.value, slot.draft.ops) for place, slot in self.slots.items()]
        return slots, self.copies.copy(), self._copied_from.copy()

    def restore(self, saved: Saved) -> None:
        """Forget what was changed since `save`. Drafts that were handed out since then are revoked."""
        slots, self.copies, self._copied_from = saved
        self.shut()
        self.slots = {}
        for place, slot, value, ops in slots:
            slot.draft = Draft(value, ops)
            self.slots[place] = slot

    # -- leaving ----------------------------------------------------------------------------

    def judge(self) -> None:
        """Refuse a commit that changes a document that one of its forks copies (K23)."""
        if not self._copied_from:
            return
        for (owner, name), slot in self.slots.items():
            fork = slot.token.fork if slot.loaded is None else slot.loaded.record.fork
            if owner in self._copied_from and fork == "current" and slot.changed:
                raise TaskRefused(
                    f"this commit changes document {name[0]!r} of conversation {owner[1]}, which a fork in it copies: "
                    "fork in a commit of its own"
                )

    async def retire(self, ended: Sequence[Task]) -> None:
        """The documents of these tasks end with them (K22)."""
        shelves, floor = self._memory.shelves, self._tx.floor
        for task in ended:
            owner: Owner = ("task", int(task.id))
            if owner in self.ending:
                continue
            self.ending[owner] = None
            shelf = shelves.tip.get(owner)
            if shelf is None and task.id < floor:
                shelf = await shelves.shelf(owner)
            if shelf:
                self.ended.extend([(owner, name, loaded) for name, loaded in shelf.items()])

    def declare(self, slot: Slot, name: Name) -> Document:
        """The record of a document that this commit creates."""
        token = slot.token
        return Document(
            id=DocumentId(self._tx.mint()),
            scope=token.scope,
            owner=slot.owner[1],
            kind=name[0],
            key=name[1],
            history=token.history,
            fork=token.fork,
            created=self._tx.seq,
        )

    def shut(self) -> None:
        """Drafts are revoked (K18)."""
        for slot in self.slots.values():
            slot.draft.close()
