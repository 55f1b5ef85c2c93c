"""From the events of a stream to an assistant message (pure, incremental)."""

from __future__ import annotations

from typing import Any

from perdure.errors import InvalidValue, ModelError
from perdure.messages import AssistantMessage, AssistantPart, StopReason, Text, Thinking, ToolCall
from perdure.model import CallDelta, CallStart, Finished, Heartbeat, ModelEvent, TextDelta, ThinkingDelta, Usage
from perdure.values import clean, clean_text, parse_object


class _Call:
    __slots__ = ("json", "name", "provider_id")

    def __init__(self, name: str, provider_id: str | None) -> None:
        self.name = name
        self.provider_id = provider_id
        self.json: list[str] = []

    def part(self) -> ToolCall:
        raw = "".join(self.json)
        try:
            arguments: dict[str, Any] | None = parse_object(raw) if raw.strip() else None
        except InvalidValue:
            arguments = None
        name = clean_text(self.name)
        if arguments is None:
            return ToolCall(name=name, raw=clean_text(raw), provider_id=self.provider_id)
        return ToolCall(name=name, arguments=clean(arguments), provider_id=self.provider_id)


class _Thought:
    __slots__ = ("done", "signature", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.signature: Any = None
        self.done = False


class Answer:
    """An answer while it streams. Parts keep the order in which they began."""

    __slots__ = ("_calls", "_model", "_parts", "stop", "usage")

    def __init__(self, model: str) -> None:
        self._model = model
        self._parts: list[list[str] | _Thought | _Call] = []
        self._calls: list[_Call] = []
        self.stop: StopReason | None = None
        self.usage: Usage | None = None

    def add(self, event: ModelEvent) -> tuple[str, str]:
        """Take one event; returns the (text, thinking) that it added. Raises ModelError for an order that no answer has."""
        match event:
            case TextDelta(text=text):
                if not self._parts or not isinstance(self._parts[-1], list):
                    self._parts.append([])
                last = self._parts[-1]
                assert isinstance(last, list)
                last.append(text)
                return text, ""
            case ThinkingDelta():
                return "", self._think(event)
            case CallStart(index=index, name=name, provider_id=provider_id):
                if index != len(self._calls):
                    raise ModelError(f"the model began call {index} after {len(self._calls)} calls", kind="retryable")
                call = _Call(name, None if provider_id is None else clean_text(provider_id))
                self._calls.append(call)
                self._parts.append(call)
            case CallDelta(index=index, arguments=arguments):
                if not 0 <= index < len(self._calls):
                    raise ModelError(f"the model went on with call {index}, which it had not begun", kind="retryable")
                self._calls[index].json.append(arguments)
            case Finished(stop=stop, usage=usage):
                self.stop, self.usage = stop, usage
            case Heartbeat():
                pass
        return "", ""

    def _think(self, event: ThinkingDelta) -> str:
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Thought) or last.done:
            last = _Thought()
            self._parts.append(last)
        last.text.append(event.text)
        if event.signature is not None:
            last.signature = event.signature
        last.done = last.done or event.done
        return event.text

    def message(self) -> AssistantMessage:
        """The answer as it is stored; only after Finished."""
        assert self.stop is not None
        parts: list[AssistantPart] = []
        for part in self._parts:
            if isinstance(part, list):
                text = clean_text("".join(part))
                if text:
                    parts.append(Text(text=text))
            elif isinstance(part, _Thought):
                signature = None if part.signature is None else clean(part.signature)
                text = clean_text("".join(part.text))
                parts.append(Thinking(text=text, model=self._model, signature=signature, complete=True))
            else:
                parts.append(part.part())
        return AssistantMessage(parts=tuple(parts), stop=self.stop, model=self._model)


def stopped(text: str, model: str, stop: StopReason) -> AssistantMessage:
    """What was kept of an answer that never finished: only the text that a person saw."""
    return AssistantMessage(parts=(Text(text=text),), stop=stop, model=model)
