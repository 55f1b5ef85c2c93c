"""The model port: a request in, a stream of events out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from perdure.messages import Message, StopReason


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model sees it. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One model request: everything the answer may depend on."""

    model: str
    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    options: dict[str, Any] = {}


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt used, in disjoint buckets of tokens; None is unknown, never zero (H17)."""

    input: int | None = None  #: fresh input, without what came from or went to a cache
    cache_read: int | None = None
    cache_write: int | None = None
    output: int | None = None  #: without reasoning
    reasoning: int | None = None
    cost: float | None = None  #: in US dollars


# -- events of a stream, in order ---------------------------------------------------------------


class TextDelta(msgspec.Struct, frozen=True):
    """More text of the answer."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    """More reasoning. `signature` arrives with the last one, if there is any; `done` closes the part."""

    text: str
    signature: Any = None
    done: bool = False


class CallStart(msgspec.Struct, frozen=True):
    """A tool call begins. `index` counts the calls of this answer from 0."""

    index: int
    name: str
    provider_id: str | None = None


class CallDelta(msgspec.Struct, frozen=True):
    """More of the JSON text of the call's arguments."""

    index: int
    arguments: str


class Heartbeat(msgspec.Struct, frozen=True):
    """The connection lives. Not progress (H13)."""


class Finished(msgspec.Struct, frozen=True):
    """The answer is complete. A stream that ends without it was cut."""

    stop: StopReason
    usage: Usage | None = None


ModelEvent = TextDelta | ThinkingDelta | CallStart | CallDelta | Heartbeat | Finished


class Model(Protocol):
    """A model by name. `stream` raises `ModelError`; it never retries by itself and starts no effect."""

    name: str  #: "provider:model", as it is recorded
    context_window: int | None  #: in tokens; None is unknown

    def stream(self, request: Request) -> AsyncIterator[ModelEvent]: ...
