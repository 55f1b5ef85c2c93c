"""What a model says and is told: messages and their parts, independent of any provider."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

#: Why a model answer ended. `stop`, `tool_calls` and `length` come from the provider;
#: `aborted`, `error` and `interrupted` mark what was kept of an answer that never finished.
StopReason = Literal["stop", "tool_calls", "length", "refusal", "aborted", "error", "interrupted"]

#: Why a tool result is an error (H20).
ToolErrorCode = Literal[
    "tool_unavailable", "invalid_arguments", "blocked", "interrupted", "aborted", "tool_error", "timeout", "truncated"
]


class Text(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="text"):
    """Plain text."""

    text: str


class Image(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="image", omit_defaults=True):
    """A picture as base64 with its media type."""

    media_type: str
    base64: str


class Thinking(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="thinking", omit_defaults=True):
    """Reasoning of one model. `signature` is opaque and goes back only to `model`, and only when `complete`."""

    text: str
    model: str
    signature: Any = None
    complete: bool = False


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="call", omit_defaults=True):
    """One call that a model asked for.

    `provider_id` is data: models repeat ids.
    A call's own identity is the assistant entry that holds it and its position there (`call_key`).
    `arguments` is the parsed object; when the model's text is no JSON object, it is None and `raw` keeps that text.
    """

    name: str
    arguments: dict[str, Any] | None = None
    raw: str | None = None
    provider_id: str | None = None


AssistantPart = Text | Thinking | ToolCall
UserPart = Text | Image


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="user"):
    """What a person or program says to the model."""

    parts: tuple[UserPart, ...]


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="assistant", omit_defaults=True):
    """One model answer. `stop` says how it ended; `model` who gave it."""

    parts: tuple[AssistantPart, ...]
    stop: StopReason = "stop"
    model: str | None = None


class ToolMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="tool", omit_defaults=True):
    """The result of the call `call` (a `call_key`). `error` tells why it is one."""

    call: str
    name: str
    text: str
    error: ToolErrorCode | None = None


Message = UserMessage | AssistantMessage | ToolMessage


def call_key(entry: int, index: int) -> str:
    """The identity of the call at position `index` among the tool calls of assistant entry `entry`."""
    return f"{entry}.{index}"


def user(text: str) -> UserMessage:
    """A user message of one text."""
    return UserMessage(parts=(Text(text=text),))


def text_of(message: Message) -> str:
    """The plain text of a message, without thinking, pictures and calls."""
    if isinstance(message, ToolMessage):
        return message.text
    return "".join(part.text for part in message.parts if isinstance(part, Text))


def calls_of(message: Message) -> list[ToolCall]:
    """The tool calls of a message, in the model's order."""
    if not isinstance(message, AssistantMessage):
        return []
    return [part for part in message.parts if isinstance(part, ToolCall)]
