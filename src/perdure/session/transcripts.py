"""Active transcripts (K13): from the newest visible head to the tail."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.records import Conversation, ConversationId, Entry, EntryId


def head_of(entries: Sequence[Entry]) -> Entry | None:
    """The entry that heads the transcript: the newest one with a `head`."""
    for entry in reversed(entries):
        if entry.head is not None:
            return entry
    return None


def cut(entries: Sequence[Entry]) -> list[Entry]:
    """The active transcript of visible entries in id order: the head, then what it keeps without older heads."""
    head = head_of(entries)
    if head is None:
        return list(entries)
    assert head.head is not None
    kept = [entry for entry in entries if entry.id >= head.head and entry.head is None]
    return [head, *kept]


class Transcript:
    """The active transcript of one conversation. Invariant: equals `cut` of all visible entries at the tip."""

    __slots__ = ("entries", "head")

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.head: Entry | None = entries[0] if entries and entries[0].head is not None else None

    def append(self, entry: Entry) -> None:
        """Add a newer entry."""
        if entry.head is None:
            self.entries.append(entry)
            return
        self.entries = [entry, *(old for old in self.entries if old.id >= entry.head and old.head is None)]
        self.head = entry

    @property
    def floor(self) -> EntryId | None:
        """The oldest entry that the present head keeps: a head below it is stale (H9)."""
        return None if self.head is None else self.head.head


Segment = tuple[ConversationId, int | None]


def segments(conversation: Conversation, ancestors: Sequence[Conversation]) -> list[Segment]:
    """Where visible entries are: (conversation, ids below this bound), nearest first. `ancestors`: nearest first."""
    found: list[Segment] = [(conversation.id, None)]
    bound: int | None = None
    for child, parent in zip((conversation, *ancestors), ancestors, strict=False):
        assert child.parent is not None
        limit = child.parent.entry + 1
        bound = limit if bound is None else min(bound, limit)
        found.append((parent.id, bound))
    return found


def sees(lineage: Sequence[Segment], entry: Entry) -> bool:
    """Whether an entry is visible through these segments."""
    for conversation, bound in lineage:
        if conversation == entry.conversation:
            return bound is None or entry.id < bound
    return False
