"""Reading published documents (K20, K43): copies, values as of an entry, and values that follow each commit."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from perdure.errors import HandleExpired, NotFound, StorageError, UsageError
from perdure.records import ConversationId, EntryId, TaskId, decode_entry
from perdure.session.change import Change
from perdure.session.documents import DocumentToken, Owner
from perdure.session.forks import inherited, value_as_of
from perdure.session.transcripts import sees
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.session.line import Line


async def snapshot(line: Line, token: DocumentToken, owner: int, key: str) -> Any:
    """A copy of a document's published value; None where there is none. Creates nothing. Raises NotFound."""
    return copy.deepcopy(await _published(line, token, owner, clean_text(key)))


async def _published(line: Line, token: DocumentToken, owner: int, key: str) -> Any:
    line.check_fault()
    memory = line.memory
    where: Owner = (token.scope, int(owner))
    conversation = None
    if token.scope == "task" and TaskId(owner) not in memory.published.tasks:
        return None
    if token.scope == "conversation":
        conversation = await memory.conversation(ConversationId(owner))
    found = await memory.shelves.public(where, (token.kind, key))
    if found is not None:
        return token.current(found.value, found.version)
    return await inherited(memory, token, key, conversation)


async def snapshot_as_of(line: Line, token: DocumentToken, conversation: ConversationId, key: str, at: EntryId) -> Any:
    """A rewindable document as it was after the commit of entry `at`, through fork ancestry."""
    if token.history != "rewindable":
        raise UsageError(f"document {token.kind!r} keeps no history: declare it with history='rewindable'")
    if token.scope != "conversation":
        raise UsageError(f"document {token.kind!r} belongs to a {token.scope}: entries say nothing about its history")
    line.check_fault()
    memory, key = line.memory, clean_text(key)
    lineage = await memory.lineage(await memory.conversation(conversation))
    body = await line.storage.read_entry(line.session, at)
    entry = None if body is None else decode_entry(body, line.session)
    if entry is None or entry.seq > memory.published_seq or not sees(lineage, entry):
        raise NotFound(f"conversation {conversation} sees no entry {at}")
    value = await value_as_of(memory, token, entry.conversation, key, entry.seq)
    if value is None:
        value = await inherited(memory, token, key, await memory.ancestor(entry.conversation))
    return copy.deepcopy(value)


class Attached:
    """The published value of one document, followed until `close`, the session's end or the document's retirement."""

    def __init__(self, line: Line, token: DocumentToken, owner: int, key: str) -> None:
        self._line = line
        self._token = token
        self._where = (token.scope, int(owner), token.kind, key)
        self._value: Any = None
        self._followed = False
        self.closed = False
        line.observers.append(self._published)
        line.on_end.append(self._ended)

    @classmethod
    async def open(cls, line: Line, token: DocumentToken, owner: int, key: str) -> Attached:
        """Follow from now on: what is committed while the present value is read is not missed."""
        line.check()
        key = clean_text(key)
        attached = cls(line, token, owner, key)
        try:
            value = await _published(line, token, owner, key)
        except BaseException:
            attached.close()
            raise
        if not attached._followed:
            attached._value = value
        return attached

    @property
    def value(self) -> Any:
        """A copy of the newest published value. Raises HandleExpired once it is closed."""
        if self.closed:
            raise HandleExpired(f"the attached document {self._token.kind!r} was closed, or has ended")
        return copy.deepcopy(self._value)

    def close(self) -> None:
        """Stop following."""
        if not self.closed:
            self.closed = True
            self._value = None
            if self._published in self._line.observers:
                self._line.observers.remove(self._published)
            if self._ended in self._line.on_end:
                self._line.on_end.remove(self._ended)

    def _ended(self, fault: StorageError | None) -> None:
        self.close()

    def _published(self, change: Change) -> None:
        scope, owner, _, _ = self._where
        deleted = change.conversations.get(owner) if scope == "conversation" else None
        if self.closed or (deleted is not None and deleted.deleted):
            self.close()
            return
        for document in change.documents:
            record = document.record
            if (record.scope, record.owner, record.kind, record.key) == self._where:
                self._followed = True
                self._value = document.value
                if document.retired:
                    self.close()
