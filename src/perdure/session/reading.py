"""Reading published documents (K20, K43): copies, values as of an entry, and attached values that follow each commit."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from perdure.errors import HandleExpired, NotFound, UsageError
from perdure.records import ConversationId, EntryId, decode_entry
from perdure.session.change import Change
from perdure.session.documents import UNREAD, DocumentToken, Owner
from perdure.session.forks import inherited, value_as_of

if TYPE_CHECKING:
    from perdure.session.line import Line


async def snapshot(line: Line, token: DocumentToken, owner: int, key: str) -> Any:
    """A copy of a document's published value; None where there is none. Creates nothing."""
    return copy.deepcopy(await _published(line, token, owner, key))


async def _published(line: Line, token: DocumentToken, owner: int, key: str) -> Any:
    memory = line.memory
    where: Owner = (token.scope, owner)
    if where not in memory.published_shelves:
        await memory.shelf(where)
    found = memory.published_shelves.get(where, {}).get((token.kind, key))
    if found is not None and found.value is UNREAD:
        found = await memory.read_value(found.record, None)
    if found is not None:
        return token.current(found.value, found.version)
    if token.fork != "as_of":
        return None
    conversation = await memory.conversation(ConversationId(owner))
    return await inherited(memory, token, where, key, conversation)


async def snapshot_as_of(line: Line, token: DocumentToken, conversation: ConversationId, key: str, at: EntryId) -> Any:
    """A rewindable document as it was after the commit of entry `at`, through fork ancestry."""
    if token.history != "rewindable":
        raise UsageError(f"document {token.kind!r} keeps no history: declare it with history='rewindable'")
    body = await line.storage.read_entry(line.session, at)
    if body is None:
        raise NotFound(f"no entry {at} in session {line.session!r}")
    entry = decode_entry(body)
    memory = line.memory
    home = await memory.conversation(conversation)
    for segment, bound in await memory.lineage(home):
        if segment == entry.conversation and (bound is None or entry.id < bound):
            value = await value_as_of(memory, token, segment, key, entry.seq)
            if value is None and token.fork == "as_of":
                owner = await memory.ancestor(segment)
                value = await inherited(memory, token, (token.scope, segment), key, owner)
            return copy.deepcopy(value)
    raise NotFound(f"conversation {conversation} sees no entry {at}")


class Attached:
    """The published value of one document, followed until `close`, the session's end or the document's retirement."""

    def __init__(self, line: Line, token: DocumentToken, owner: int, key: str, value: Any) -> None:
        self._line = line
        self._token = token
        self._where = (token.scope, owner, token.kind, key)
        self._value = value
        self.closed = False
        line.observers.append(self._published)

    @classmethod
    async def open(cls, line: Line, token: DocumentToken, owner: int, key: str) -> Attached:
        attached = cls(line, token, owner, key, None)
        value = await _published(line, token, owner, key)
        if attached._value is None:
            attached._value = value
        return attached

    @property
    def value(self) -> Any:
        """A copy of the newest published value. Raises HandleExpired once it is closed."""
        if self.closed:
            raise HandleExpired(f"the attached document {self._token.kind!r} was closed")
        return copy.deepcopy(self._value)

    def close(self) -> None:
        """Stop following."""
        if not self.closed:
            self.closed = True
            self._line.observers.remove(self._published)

    def _published(self, change: Change) -> None:
        for document in change.documents:
            record = document.record
            if (record.scope, record.owner, record.kind, record.key) == self._where:
                self._value = document.value
                if document.retired:
                    self.closed = True
        if self.closed and self._published in self._line.observers:
            self._line.observers = [observer for observer in self._line.observers if observer != self._published]
