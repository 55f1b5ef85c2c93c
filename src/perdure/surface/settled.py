"""How submissions are settled, as whoever handed them in is told."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.messages import Message, text_of
from perdure.records import Entry, EntryId, UnansweredReason

WhenBusy = Literal["follow_up", "steer", "reject"]


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """Settled as done. `entry` is where it was placed; an input has its `answer` entry, a write none."""

    entry: EntryId
    answer: Entry | None

    @property
    def text(self) -> str:
        """The answer's text."""
        messages: tuple[Message, ...] = () if self.answer is None else self.answer.messages
        return "".join(map(text_of, messages))


class NotAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """Settled without an answer, and why (H15)."""

    reason: UnansweredReason
    detail: str
    entry: EntryId | None = None


Settled = Answered | NotAnswered
