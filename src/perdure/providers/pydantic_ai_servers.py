"""What OpenAI-compatible servers get wrong in their streams, set right before pydantic-ai reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage


def set_right(stream: StreamedResponse) -> None:
    """Before the first event is read. These are hooks of pydantic-ai's stream of the OpenAI APIs."""
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
