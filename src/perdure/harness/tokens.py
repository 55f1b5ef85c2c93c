"""How many tokens something is, estimated (pure).

A token is taken as four bytes of UTF-8: about right for prose and code, too little for text whose characters are tokens
of their own. Where a provider said what a request came to, that counts, and only what came since is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from perdure.messages import AssistantMessage, AssistantPart, Image, Message, Text, Thinking, ToolMessage
from perdure.model import ToolSpec, Usage
from perdure.records import Entry

BYTES_A_TOKEN = 4
#: What a picture is taken as, and what stands around each message.
A_PICTURE = 1500
AROUND = 8
#: No context has more.
MOST = 10**12


def of_text(text: str) -> int:
    """The tokens of a text, rounded up."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return -(-size // BYTES_A_TOKEN)


def of_message(message: Message) -> int:
    """The tokens of a message."""
    if isinstance(message, ToolMessage):
        return AROUND + of_text(message.text)
    if isinstance(message, AssistantMessage):
        return AROUND + sum(map(_of_part, message.parts))
    return AROUND + sum(A_PICTURE if isinstance(part, Image) else of_text(part.text) for part in message.parts)


def _of_part(part: AssistantPart) -> int:
    if isinstance(part, Text):
        return of_text(part.text)
    if isinstance(part, Thinking):
        return of_text(part.text) + (0 if part.signature is None else of_json(part.signature))
    return of_text(part.name) + of_json(part.arguments or {}) + of_text(part.raw or "")


def of_messages(messages: Iterable[Message]) -> int:
    """The tokens of messages."""
    return sum(map(of_message, messages))


def of_entry(entry: Entry) -> int:
    """The tokens of what an entry says to a model."""
    return sum(map(of_message, entry.messages))


def of_json(value: object) -> int:
    """The tokens of a JSON value."""
    return -(-len(msgspec.json.encode(value)) // BYTES_A_TOKEN)


def of_tools(specs: Sequence[ToolSpec]) -> int:
    """The tokens of the tools of a request."""
    return sum(AROUND + of_text(spec.name) + of_text(spec.description) + of_json(spec.parameters) for spec in specs)


def measured(usage: Usage | None) -> int | None:
    """How large the context is after an answer: what was sent, and what came. None where that is unknown."""
    if usage is None or not _counts(usage.input):
        return None
    found = (usage.input, usage.cache_read, usage.cache_write, usage.output, usage.reasoning)
    return sum(value for value in found if value is not None and _counts(value)) or None


def _counts(value: object) -> bool:
    """A provider may send anything: what is no number of tokens says nothing."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
