"""From pydantic-ai's stream events to the events of the port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import StreamedResponse

from perdure.errors import ModelError
from perdure.messages import StopReason
from perdure.model import CallDelta, CallStart, Finished, ModelEvent, TextDelta, ThinkingDelta, Usage

_STOPS: dict[str, StopReason] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "refusal",
}
#: Reasons of servers by which they say that they gave up on the answer.
_GIVEN_UP = frozenset({"abort", "aborted", "cancelled", "canceled", "error", "failed"})
_NAMELESS = "the model called a tool without saying which"
#: Details of texts and calls that their model wants back with them.
_WANTED_BACK = frozenset({"phase", "thought_signature"})


class Events:
    """Follows one stream. Parts of reasoning that touch are one part of ours, whose signature says how to part them."""

    def __init__(self) -> None:
        #: Something of the answer came.
        self.began = False
        self._calls: dict[int, int] = {}  # our number of a call, by the number of its part
        self._sent: list[str] = []  # of each call, the arguments that were passed on
        self._thoughts: list[int] = []  # parts of the reasoning that is open

    def add(self, event: ModelResponseStreamEvent, stream: StreamedResponse) -> Iterator[ModelEvent]:
        """What one event says."""
        self.began = True
        if isinstance(event, PartStartEvent):
            if isinstance(event.part, ThinkingPart) and event.index not in self._thoughts:
                self._thoughts.append(event.index)
            yield from self._start(event.index, event.part)
        elif isinstance(event, PartDeltaEvent):
            delta = event.delta
            if isinstance(delta, TextPartDelta):
                if delta.content_delta:
                    yield TextDelta(delta.content_delta)
            elif isinstance(delta, ThinkingPartDelta):
                if delta.content_delta:
                    yield ThinkingDelta(delta.content_delta)
            elif isinstance(delta, ToolCallPartDelta):
                yield from self._arguments(event.index, delta.args_delta)
        elif isinstance(event, PartEndEvent) and event.next_part_kind not in (None, "thinking"):
            yield from self._end_thought(stream)

    def finish(self, stream: StreamedResponse, usage: Usage | None) -> Iterator[ModelEvent]:
        """The end, where the provider gave a reason for it; a stream that just ends was cut, and says nothing here."""
        stop = _stop(stream)
        if stop is None:
            return
        if stop in ("stop", "tool_calls"):
            self._no_call_lost(stream, stop)
        # Reasoning that the output limit cut has no signature, and is not complete.
        open_thought = stop == "length" and bool(self._thoughts)
        yield from self._end_thought(stream, done=not open_thought)
        yield from self._settle_calls(stream)
        kept = _kept(stream)
        if kept and not open_thought:
            signature = {"provider": stream.provider_name, "kept": kept}
            yield ThinkingDelta("", signature, True)
        if stop in ("stop", "tool_calls"):
            stop = "tool_calls" if self._calls else "stop"
        yield Finished(stop, usage)

    def _start(self, index: int, part: object) -> Iterator[ModelEvent]:
        if isinstance(part, TextPart):
            if part.content:
                yield TextDelta(part.content)
        elif isinstance(part, ThinkingPart):
            if part.content:
                yield ThinkingDelta(part.content)
        elif isinstance(part, ToolCallPart) and index not in self._calls:
            if not isinstance(part.tool_name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ModelError(_NAMELESS, kind="retryable")  # SDKs check little of what comes
            self._calls[index] = len(self._sent)
            self._sent.append("")
            yield CallStart(self._calls[index], part.tool_name, part.tool_call_id)
            yield from self._arguments(index, part.args)

    def _arguments(self, index: int, arguments: str | dict[str, Any] | None) -> Iterator[ModelEvent]:
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if arguments and index in self._calls:
            call = self._calls[index]
            self._sent[call] += arguments
            yield CallDelta(call, arguments)

    def _end_thought(self, stream: StreamedResponse, *, done: bool = True) -> Iterator[ModelEvent]:
        if not self._thoughts:
            return
        indexes, self._thoughts = self._thoughts, []
        parts = _managed(stream)
        pieces = [_piece(part) for part in (parts[index] for index in indexes) if isinstance(part, ThinkingPart)]
        yield ThinkingDelta("", {"provider": stream.provider_name, "parts": pieces}, done)

    def _settle_calls(self, stream: StreamedResponse) -> Iterator[ModelEvent]:
        """A vendor may correct a call at its end; what was passed on is not taken back, so it has to fit."""
        parts = _managed(stream)
        for index, call in self._calls.items():
            part = parts[index]
            whole = part.args if isinstance(part, ToolCallPart) else None
            if isinstance(whole, str) and whole != self._sent[call]:
                if not whole.startswith(self._sent[call]):
                    raise ModelError("the model sent the arguments of a call twice, and differently", kind="retryable")
                yield from self._arguments(index, whole[len(self._sent[call]) :])

    def _no_call_lost(self, stream: StreamedResponse, stop: StopReason) -> None:
        """pydantic-ai leaves a call out whose name never came: the answer would look complete without it."""
        if any(isinstance(part, ToolCallPartDelta) for part in _managed(stream)):
            raise ModelError(_NAMELESS, kind="retryable")
        said = any(isinstance(part, TextPart) and part.content for part in stream.get().parts)
        if stop == "tool_calls" and not self._calls and not said:
            raise ModelError("the model finished for the reason that it calls tools, and called none", kind="retryable")


def _managed(stream: StreamedResponse) -> list[Any]:
    """All parts by the numbers of their events. What a stream gives has no nameless calls in it, and other numbers."""
    manager: Any = stream._parts_manager  # pyright: ignore[reportPrivateUsage]
    return manager._parts


def _piece(part: ThinkingPart) -> dict[str, Any]:
    piece = {"size": len(part.content), "id": part.id, "signature": part.signature, "details": part.provider_details}
    return {name: value for name, value in piece.items() if value is not None}


def _kept(stream: StreamedResponse) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    counts = {"text": 0, "call": 0}
    for part in stream.get().parts:
        if not isinstance(part, TextPart | ToolCallPart):
            continue
        kind = "call" if isinstance(part, ToolCallPart) else "text"
        details = {name: value for name, value in (part.provider_details or {}).items() if name in _WANTED_BACK}
        if details:
            each: dict[str, Any] = {"kind": kind, "at": counts[kind], "details": details}
            kept.append({**each, "name": part.tool_name} if isinstance(part, ToolCallPart) else each)
        counts[kind] += 1
    return kept


def _stop(stream: StreamedResponse) -> StopReason | None:
    raw = (stream.provider_details or {}).get("finish_reason")
    reason = stream.finish_reason
    if reason == "error" or (isinstance(raw, str) and raw.lower() in _GIVEN_UP):
        raise ModelError(f"the provider gave up on its answer ({raw or reason})", kind="retryable")
    if raw is None and reason != "content_filter":
        return None
    return _STOPS.get(reason or "stop", "stop")
