"""What servers that speak as a vendor get wrong in their streams, set right before pydantic-ai reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage


def set_right(stream: StreamedResponse, api: str) -> None:
    """Before the first event is read. These are hooks of pydantic-ai's streams."""
    if api == "anthropic":
        events: Any = getattr(stream, "_response")  # noqa: B009
        stream._response = Counted(events)  # pyright: ignore[reportAttributeAccessIssue]
    if api not in ("responses", "chat"):
        return
    _count_once(stream)
    validated: Any = getattr(stream, "_validate_response", None)
    if validated is not None:  # only Chat Completions numbers its calls
        stream._validate_response = lambda: Renumbered(validated())  # pyright: ignore[reportAttributeAccessIssue]


def _count_once(stream: StreamedResponse) -> None:
    """Take the newest count of a stream: OpenAI tells it once, others with every piece, and each is the whole."""
    add: Any = stream._add_usage  # pyright: ignore[reportPrivateUsage]

    def newest(usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
        if reported:
            add(usage, reported=True, cumulative=True)

    stream._add_usage = newest  # pyright: ignore[reportPrivateUsage]


class Renumbered:
    """Chunks in which each call has a number of its own.

    Some servers number every call 0, and would have the arguments of one continued by the next. A new id under a number
    that is taken is a new call, and pieces without an id go on with the newest call of their number.
    """

    def __init__(self, chunks: Any) -> None:
        self._chunks: AsyncIterator[Any] = aiter(chunks)
        self._calls: dict[int, tuple[int, str | None]] = {}  # by the server's number: ours, and the newest id
        self._begun = 0

    def __aiter__(self) -> Renumbered:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._chunks)
        if chunk.usage is not None:
            chunk.usage = _sound(chunk.usage)
        for choice in chunk.choices or ():
            for call in getattr(choice.delta, "tool_calls", None) or ():
                if isinstance(call.index, int):
                    call.index = self._number(call.index, call.id or None)
        return chunk

    def _number(self, index: int, id: str | None) -> int:
        known = self._calls.get(index)
        if known is None or (id is not None and known[1] is not None and id != known[1]):
            known = (self._begun, id)
            self._begun += 1
        self._calls[index] = (known[0], known[1] or id)
        return known[0]


class Counted:
    """Events of Anthropic's API in which each that has to tell a usage tells one: other servers leave it out."""

    def __init__(self, events: Any) -> None:
        self._all = events
        self._events: AsyncIterator[Any] = aiter(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._all, name)

    def __aiter__(self) -> Counted:
        return self

    async def __anext__(self) -> Any:
        event = await anext(self._events)
        kind = getattr(event, "type", None)
        teller: Any = {"message_start": getattr(event, "message", None), "message_delta": event}.get(str(kind))
        if isinstance(teller, BaseModel) and getattr(teller, "usage", None) is None:
            usage: Any = type(teller).model_fields["usage"].annotation
            nothing = {"input_tokens": 0} if kind == "message_start" else {}  # the newest count of each is taken
            teller.usage = usage.model_construct(output_tokens=0, **nothing)  # pyright: ignore[reportAttributeAccessIssue]
        return event


def _sound(usage: Any) -> Any:
    """A usage of Chat Completions without the details that are no counts; None where it counts nothing."""
    if not all(_is_count(getattr(usage, name, None)) for name in ("prompt_tokens", "completion_tokens")):
        return None
    for name in ("prompt_tokens_details", "completion_tokens_details"):
        details: Any = getattr(usage, name, None)
        if not isinstance(details, BaseModel):
            setattr(usage, name, None)
            continue
        for each, count in list(details):
            if count is not None and not _is_count(count):
                setattr(details, each, None)
    return usage


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
