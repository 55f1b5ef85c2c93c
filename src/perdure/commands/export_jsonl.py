"""JSON lines, schema 1: a `conversation`, its `entry` records from the oldest on, and an `end`."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.commands.exported import Head
from perdure.commands.text import as_json
from perdure.commands.unanswered import Unanswered
from perdure.messages import AssistantMessage, Message, Thinking
from perdure.records import Entry

SCHEMA = 1


class Jsonl:
    """Lines of JSON: control characters are escaped there as JSON has it."""

    def __init__(self, thinking: bool) -> None:
        self._thinking = thinking

    def begin(self, head: Head) -> str:
        return _line({"type": "conversation", "schema": SCHEMA, **msgspec.to_builtins(head)})

    def entry(self, entry: Entry, unanswered: Unanswered | None = None) -> str:
        messages = [msgspec.to_builtins(self._of(message)) for message in entry.messages]
        record: dict[str, Any] = msgspec.to_builtins(entry)
        more = {} if unanswered is None else {"unanswered": msgspec.to_builtins(unanswered)}
        return _line({"type": "entry", **record, "messages": messages, **more})

    def end(self, count: int, usage: dict[str, Any]) -> str:
        return _line({"type": "end", "entries": count, "usage": usage})

    def _of(self, message: Message) -> Message:
        if self._thinking or not isinstance(message, AssistantMessage):
            return message
        kept = tuple(part for part in message.parts if not isinstance(part, Thinking))
        return msgspec.structs.replace(message, parts=kept)


def _line(value: dict[str, Any]) -> str:
    # DEL and its upper neighbours are no control characters to JSON, but they are to a terminal
    return as_json(value).translate({code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}) + "\n"
