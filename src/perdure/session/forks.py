"""How an `as_of` document of a fork is read through ancestry (K23), and any rewindable one as of a commit."""

from __future__ import annotations

from typing import Any

from perdure.records import Conversation, Document
from perdure.session.documents import DocumentToken
from perdure.session.memory import Memory


async def inherited(memory: Memory, token: DocumentToken, key: str, conversation: Conversation | None) -> Any:
    """What a fork sees of a document it has not written yet: the ancestor's value as of the fork. None: there is none.

    A fork of a fork may have left before its parent did: what it sees ends at the earliest fork on the way.
    """
    if token.fork != "as_of":
        return None
    at, seq = conversation, None
    while at is not None and at.parent is not None:
        point = at.parent
        seq = point.seq if seq is None else min(seq, point.seq)
        value = await value_as_of(memory, token, point.conversation, key, seq)
        if value is not None:
            return value
        at = await memory.ancestor(point.conversation)
    return None


async def value_as_of(memory: Memory, token: DocumentToken, owner: int, key: str, seq: int) -> Any:
    """The value that a rewindable document of this owner had after commit `seq`; None if it was not there."""
    newest: Document | None = None
    async for record in memory.shelves.records((token.scope, owner), kind=token.kind, retired=True):
        if record.key == key and record.created <= seq and (record.retired is None or record.retired > seq):
            newest = record
    loaded = None if newest is None else await memory.shelves.read(newest, seq)
    return None if loaded is None else token.current(loaded.value, loaded.version)
