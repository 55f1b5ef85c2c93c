"""The strictest provider there is: it refuses whatever any real one would refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator

import msgspec

from perdure.errors import ModelError
from perdure.harness.context import STOPPED, TOOL_NAME
from perdure.harness.valid import valid
from perdure.messages import AssistantMessage, ToolMessage, call_key, calls_of
from perdure.model import Model, ModelEvent, Request
from perdure.records import Entry


class StrictModel:
    """A model that raises `ModelError("invalid")` for a request that breaks a rule, and else answers as `inner` does.

    `violations` keeps what was wrong, for a test to find it empty at its end.
    """

    def __init__(self, inner: Model) -> None:
        self.inner = inner
        self.name = inner.name
        self.context_window = inner.context_window
        self.violations: list[str] = []

    def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        wrong = refusals(request)
        if wrong:
            self.violations += wrong
            raise ModelError(f"the request breaks {len(wrong)} rules: {'; '.join(wrong)}", kind="invalid")
        return self.inner.stream(request)


def refusals(request: Request) -> list[str]:
    """What a strict provider refuses in a request, one sentence each; empty when it takes it."""
    return [*valid(request.messages, model=request.model), *_wrong_tools(request), *_wrong_bytes(request)]


def _wrong_tools(request: Request) -> Iterator[str]:
    for name, count in Counter(tool.name for tool in request.tools).items():
        if count > 1:
            yield f"the tool {name!r} is offered {count} times"
        if not TOOL_NAME.fullmatch(name):
            yield f"the tool name {name!r} is not made of 1 to 64 letters, digits, '_' and '-'"
    for tool in request.tools:
        if tool.parameters.get("type") != "object":
            yield f"the parameters of {tool.name!r} are not the schema of an object"
        missing = set(tool.parameters.get("required", ())) - set(tool.parameters.get("properties", ()))
        if missing:
            yield f"{tool.name!r} requires {', '.join(sorted(missing))}, which it does not describe"


def _wrong_bytes(request: Request) -> Iterator[str]:
    try:
        msgspec.json.encode(request)
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        yield f"the request cannot be sent: {error}"


def broken_pairs(entries: Iterable[Entry]) -> list[str]:
    """What is wrong in a *stored* transcript at rest: each call of a finished answer has one result, written after it.

    Rendering would hide all of this, so a verifier asks about the entries, too.
    """
    wrong: list[str] = []
    calls: dict[str, str] = {}
    results: Counter[str] = Counter()
    for entry in sorted(entries, key=lambda each: each.id):
        for message in entry.messages:
            if isinstance(message, ToolMessage):
                results[message.call] += 1
                if message.call not in calls:
                    wrong.append(f"entry {entry.id}: a result for {message.call!r}, which nobody called before it")
                elif results[message.call] > 1:
                    wrong.append(f"entry {entry.id}: a second result for {message.call!r}")
                elif calls[message.call] != message.name:
                    wrong.append(
                        f"entry {entry.id}: {message.call!r} called {calls[message.call]!r}, not {message.name!r}"
                    )
        asked = [call for message in entry.messages if _finished(message) for call in calls_of(message)]
        calls |= {call_key(entry.id, index): call.name for index, call in enumerate(asked)}
    wrong.extend(f"call {key!r} of {name!r} has no result" for key, name in calls.items() if key not in results)
    return wrong


def _finished(message: object) -> bool:
    return isinstance(message, AssistantMessage) and message.stop not in STOPPED
