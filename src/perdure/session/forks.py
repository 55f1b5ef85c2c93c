"""What a fork's documents start with (K23), and how an `as_of` document is read through ancestry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import TaskRefused
from perdure.records import Conversation, ConversationId, Document, decode_document
from perdure.session.documents import UNREAD, DocumentToken, Loaded, Name, Owner

if TYPE_CHECKING:
    from perdure.session.memory import Memory


async def fork_documents(
    memory: Memory, parent: ConversationId, changed: set[Name]
) -> list[tuple[Document, Loaded]]:
    """The parent's `current` documents with their present values. Refused when this commit changes one of them."""
    found: list[tuple[Document, Loaded]] = []
    for name, loaded in list((await memory.shelf(("conversation", parent))).items()):
        if loaded.record.fork != "current":
            continue
        if name in changed:
            raise TaskRefused(
                f"this commit changes document {name[0]!r}, which the fork copies: fork in a commit of its own"
            )
        value = loaded if loaded.value is not UNREAD else await memory.loaded(("conversation", parent), name)
        assert value is not None
        found.append((loaded.record, value))
    return found


async def inherited(
    memory: Memory, token: DocumentToken, owner: Owner, key: str, conversation: Conversation | None
) -> Any:
    """The value that a fork sees of a document it has not written yet: the ancestor's as of the fork. None: there is none."""
    if token.fork != "as_of" or owner[0] != "conversation":
        return None
    at = conversation
    while at is not None and at.parent is not None:
        point = at.parent
        value = await value_as_of(memory, token, point.conversation, key, point.seq)
        if value is not None:
            return value
        at = await memory.ancestor(point.conversation)
    return None


async def value_as_of(memory: Memory, token: DocumentToken, owner: int, key: str, seq: int) -> Any:
    """The value that a rewindable document of this owner had after commit `seq`; None if it was not there."""
    bodies = await memory.storage.scan_documents(memory.session, token.scope, owner, kind=token.kind, retired=True)
    for record in reversed([decode_document(body) for body in bodies]):
        if record.key != key or record.created > seq or (record.retired is not None and record.retired <= seq):
            continue
        loaded = await memory.read_value(record, seq)
        if loaded is not None:
            return token.current(loaded.value, loaded.version)
    return None
