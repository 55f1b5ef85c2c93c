"""What the writers of transcripts share: the port, and text that nothing obeys."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from perdure.commands.text import as_json
from perdure.commands.unanswered import Unanswered
from perdure.messages import ToolCall
from perdure.records import Entry


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is written first."""

    session: str
    id: int
    key: str | None
    title: str | None
    at: float

    @property
    def name(self) -> str:
        """For people."""
        return self.title or self.key or f"Conversation {self.id}"


class Writer(Protocol):
    """Writes a transcript piece by piece."""

    def begin(self, head: Head) -> str: ...
    def entry(self, entry: Entry, unanswered: Unanswered | None = None) -> str: ...
    def end(self, count: int, usage: dict[str, Any]) -> str: ...


def arguments_of(call: ToolCall) -> str:
    """The arguments of a call as the model wrote them."""
    return as_json(call.arguments) if call.arguments is not None else call.raw or ""


def used(usage: dict[str, Any]) -> list[tuple[str, str]]:
    """What was used, by name."""
    return [(name, as_json(counts)) for kind in ("models", "tools") for name, counts in usage.get(kind, {}).items()]
