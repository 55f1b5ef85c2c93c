"""From the events of a stream to an assistant message (pure, incremental)."""

from __future__ import annotations

from typing import Any

from perdure.errors import InvalidValue, ModelError
from perdure.messages import AssistantMessage, AssistantPart, StopReason, Text, Thinking, ToolCall
from perdure.model import CallDelta, CallStart, Finished, Heartbeat, ModelEvent, TextDelta, ThinkingDelta, Usage
from perdure.values import clean, clean_text, parse_object

#: No answer is longer than this: text, thinking and arguments together, in characters; nor has it more calls.
MOST_TEXT = 8_000_000
MOST_CALLS = 1000

#: The reasons that a provider may give; the others mark what perdure kept of an answer that never finished.
GIVEN: frozenset[StopReason] = frozenset({"stop", "tool_calls", "length", "refusal"})


class _Pieces:
    """Text that arrives in pieces, cleaned once. A character cut in two waits for its other half (I58)."""

    __slots__ = ("_half", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._half = ""

    def add(self, text: str) -> str:
        """Take a piece; returns what can be shown now."""
        if self._half:
            text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        text = clean_text(text)
        self.pieces.append(text)
        return text

    def whole(self) -> str:
        return "".join(self.pieces) + clean_text(self._half)


class _Words(_Pieces):
    __slots__ = ()


class _Thought(_Pieces):
    __slots__ = ("done", "signature")

    def __init__(self) -> None:
        super().__init__()
        self.signature: Any = None
        self.done = False


class _Call:
    __slots__ = ("json", "name", "provider_id")

    def __init__(self, name: str, provider_id: str | None) -> None:
        self.name = name
        self.provider_id = provider_id
        self.json: list[str] = []

    def part(self) -> ToolCall:
        """Arguments that are no JSON object stay as they came: nothing is repaired, and nothing is made up (I15)."""
        raw = "".join(self.json)
        try:
            return ToolCall(name=self.name, arguments=parse_object(raw), provider_id=self.provider_id)
        except InvalidValue:
            return ToolCall(name=self.name, raw=clean_text(raw), provider_id=self.provider_id)


class Answer:
    """An answer while it streams. Parts keep the order in which they began."""

    __slots__ = ("_calls", "_model", "_parts", "_size", "stop", "usage")

    def __init__(self, model: str) -> None:
        self._model = model
        self._parts: list[_Words | _Thought | _Call] = []
        self._calls: list[_Call] = []
        self._size = 0
        self.stop: StopReason | None = None
        self.usage: Usage | None = None

    def add(self, event: ModelEvent) -> tuple[str, str]:
        """Take one event; returns the (text, thinking) that it added, cleaned. Raises ModelError for nonsense."""
        match event:
            case TextDelta(text=text):
                self._grow(text)
                return self._words().add(text), ""
            case ThinkingDelta():
                self._grow(event.text)
                return "", self._think(event)
            case CallStart():
                self._begin(event)
            case CallDelta(index=index, arguments=arguments):
                if not 0 <= index < len(self._calls):
                    raise ModelError(f"the model went on with call {index}, which it had not begun", kind="retryable")
                self._grow(arguments)
                self._calls[index].json.append(arguments)
            case Finished(stop=stop, usage=usage):
                if stop not in GIVEN:
                    raise ModelError(f"the model finished for the reason {stop!r}, which is none", kind="invalid")
                self.stop = stop
                self.usage = usage if isinstance(usage, Usage) else None
            case Heartbeat():
                pass
        return "", ""

    def message(self) -> AssistantMessage:
        """The answer as it is stored; only after Finished. Its reason to stop fits its calls."""
        assert self.stop is not None
        parts = [part for each in self._parts if (part := self._stored(each)) is not None]
        stop = self.stop
        if stop in ("stop", "tool_calls"):
            stop = "tool_calls" if self._calls else "stop"
        return AssistantMessage(parts=tuple(parts), stop=stop, model=self._model)

    def _stored(self, part: _Words | _Thought | _Call) -> AssistantPart | None:
        if isinstance(part, _Call):
            return part.part()
        text = part.whole()
        if isinstance(part, _Words):
            return Text(text=text) if text else None
        cut = self.stop == "length" and part is self._parts[-1]
        signature = None if part.signature is None else clean(part.signature)
        return Thinking(text=text, model=self._model, signature=signature, complete=part.done or not cut)

    def _words(self) -> _Words:
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Words):
            last = _Words()
            self._parts.append(last)
        return last

    def _think(self, event: ThinkingDelta) -> str:
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Thought) or last.done:
            last = _Thought()
            self._parts.append(last)
        shown = last.add(event.text)
        if event.signature is not None:
            last.signature = event.signature
        last.done = last.done or event.done
        return shown

    def _begin(self, event: CallStart) -> None:
        begun = len(self._calls)
        if event.index != begun:
            raise ModelError(f"the model began call {event.index} after {begun} calls", kind="retryable")
        if begun >= MOST_CALLS:
            raise ModelError(f"the model asked for more than {MOST_CALLS} calls in one answer", kind="invalid")
        self._grow(event.name)
        call = _Call(clean_text(event.name), None if event.provider_id is None else clean_text(event.provider_id))
        self._calls.append(call)
        self._parts.append(call)

    def _grow(self, text: str) -> None:
        self._size += len(text)
        if self._size > MOST_TEXT:
            raise ModelError(f"the answer has more than {MOST_TEXT:,} characters", kind="invalid")


def stopped(text: str, model: str, stop: StopReason) -> AssistantMessage:
    """What was kept of an answer that never finished: only the text that a person saw."""
    return AssistantMessage(parts=(Text(text=text),), stop=stop, model=model)
