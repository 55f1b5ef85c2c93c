"""A model that says what a test wrote: text, thinking, calls, failures, silences.

    model = ScriptedModel([answer(say("I look."), call("lookup", {"city": "Berlin"})), say("3.6 million")])

A list is used up request by request. Where a test goes on after a restart, or a request may be repeated, answers are
chosen by what the request says instead: `by_round`, `by_prompt`, `by_attempt`, or any function of the request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from perdure.clock import Clock, SystemClock
from perdure.errors import ModelError
from perdure.harness.context import INTERRUPTED
from perdure.messages import AssistantMessage, Message, StopReason, UserMessage, calls_of, text_of
from perdure.model import (
    CallDelta,
    CallStart,
    Finished,
    Heartbeat,
    ModelEvent,
    Request,
    TextDelta,
    ThinkingDelta,
    Usage,
)


class Say(msgspec.Struct, frozen=True):
    text: str
    pieces: int


class Think(msgspec.Struct, frozen=True):
    text: str
    signature: Any
    complete: bool


class Call(msgspec.Struct, frozen=True):
    name: str
    arguments: str  #: as the model writes them
    provider_id: str | None
    pieces: int


class Fail(msgspec.Struct, frozen=True):
    message: str
    kind: str
    after: float | None


class Pause(msgspec.Struct, frozen=True):
    seconds: float  #: by the clock


class Hang(msgspec.Struct, frozen=True):
    pass


class Wait(msgspec.Struct, frozen=True):
    event: asyncio.Event


class Beat(msgspec.Struct, frozen=True):
    pass


class Cut(msgspec.Struct, frozen=True):
    pass


Part = Say | Think | Call | Fail | Pause | Hang | Wait | Beat | Cut


class Answer(msgspec.Struct, frozen=True):
    """Parts in order. Without `stop` the reason is `tool_calls` where there are calls, else `stop`."""

    parts: tuple[Part, ...]
    stop: StopReason | None = None
    usage: Usage | None = None


Script = Part | Answer | Callable[[Request], "Script"]


# -- writing a script ---------------------------------------------------------------------------


def answer(*parts: Part, stop: StopReason | None = None, usage: Usage | None = None) -> Answer:
    """One answer of several parts."""
    return Answer(parts, stop, usage)


def say(text: str, *, pieces: int = 2) -> Say:
    """Text, in this many deltas."""
    return Say(text, pieces)


def think(text: str, *, signature: Any = "signed", complete: bool = True) -> Think:
    """Thinking; not complete is thinking that was cut before its signature."""
    return Think(text, signature, complete)


def call(
    name: str, arguments: Mapping[str, Any] | str | None = None, *, id: str | None = "call_1", pieces: int = 2
) -> Call:
    """A call. Arguments given as a text are sent as they are, JSON or not. Ids repeat, as with real models (I21)."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return Call(name, text, id, pieces)


def fail(kind: str = "retryable", *, after: float | None = None, message: str = "the script fails here") -> Fail:
    """Raise a `ModelError`; after other parts it comes in the middle of the answer."""
    return Fail(message, kind, after)


def cut() -> Cut:
    """The stream ends here, unfinished."""
    return Cut()


def hang() -> Hang:
    """Nothing comes any more, until the request is cancelled."""
    return Hang()


def pause(seconds: float) -> Pause:
    """Seconds of silence, by the clock."""
    return Pause(seconds)


def wait(event: asyncio.Event) -> Wait:
    """Silence until the test sets the event."""
    return Wait(event)


def beat() -> Beat:
    """A heartbeat, which is no progress."""
    return Beat()


def length(*parts: Part, usage: Usage | None = None) -> Answer:
    """An answer cut by the output limit: a call at its end is there by half (I19)."""
    last = parts[-1]
    if isinstance(last, Call):
        parts = (*parts[:-1], msgspec.structs.replace(last, arguments=last.arguments[: len(last.arguments) // 2]))
    return Answer(parts, "length", usage)


# -- choosing by what the request says ----------------------------------------------------------


def by_round(*answers: Script) -> Callable[[Request], Script]:
    """The n-th answer where the transcript has n - 1 of them: the same after a restart, whatever was said between."""

    def chosen(request: Request) -> Script:
        return _nth(answers, _rounds(request.messages), "round")

    return chosen


def by_prompt(answers: Mapping[str, Script | Sequence[Script]]) -> Callable[[Request], Any]:
    """By the newest input that contains one of the keys; a list is one answer for each round since that input."""

    def chosen(request: Request) -> Any:
        for at in range(len(request.messages) - 1, -1, -1):
            message = request.messages[at]
            if isinstance(message, UserMessage):
                for key, found in answers.items():
                    if key in text_of(message):
                        listed = _listed(found)
                        rounds = _rounds(request.messages[at:])
                        return found if listed is None else _nth(listed, rounds, f"round after {key!r}")
        raise ModelError(f"no input contains one of {', '.join(map(repr, answers))}", kind="invalid")

    return chosen


def by_attempt(*answers: Script) -> Callable[[Request], Script]:
    """The n-th answer to the n-th attempt, which `options["attempt"]` counts from 1; then always the last."""
    return lambda request: answers[min(int(request.options.get("attempt", 1)), len(answers)) - 1]


def _rounds(messages: Sequence[Message]) -> int:
    return sum(
        isinstance(message, AssistantMessage)
        and (bool(calls_of(message)) or not text_of(message).endswith(INTERRUPTED))
        for message in messages
    )


def _listed(script: Script | Sequence[Script]) -> Sequence[Script] | None:
    return cast("Sequence[Script]", script) if isinstance(script, Sequence) else None


def _nth(answers: Sequence[Script], at: int, what: str) -> Script:
    if at >= len(answers):
        raise ModelError(f"the script has {len(answers)} answers, {what} {at + 1} came", kind="invalid")
    return answers[at]


# -- the model ----------------------------------------------------------------------------------


class ScriptedModel:
    """Answers by a script: a list used up request by request, one answer for all, or a function of the request.

    `requests` holds the newest `keep` of them. A list that is used up refuses (`invalid`).
    """

    def __init__(
        self,
        script: Script | Sequence[Script],
        *,
        name: str = "scripted",
        context_window: int | None = None,
        clock: Clock | None = None,
        keep: int = 1000,
    ) -> None:
        self.name = name
        self.context_window = context_window
        self.requests: deque[Request] = deque(maxlen=keep)
        self.asked = 0  #: how many requests came, kept or not
        self._listed = _listed(script)
        self._script = script
        self._clock = clock or SystemClock()

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        self.asked += 1
        script: Any = self._script if self._listed is None else _nth(self._listed, self.asked - 1, "request")
        while callable(script):
            script = script(request)
        found = script if isinstance(script, Answer) else Answer((script,))
        index = 0
        for part in found.parts:
            match part:
                case Cut():
                    return
                case Fail(message, kind, after):
                    raise ModelError(message, kind=kind, after=after)
                case Hang():
                    await asyncio.get_running_loop().create_future()
                case Pause(seconds):
                    await self._clock.sleep(seconds)
                case Wait(event):
                    await event.wait()
                case Say() | Think() | Beat() | Call():
                    for event in _events(part, index):
                        yield event
                    index += isinstance(part, Call)
        yield Finished(found.stop or ("tool_calls" if index else "stop"), found.usage)


def _events(part: Say | Think | Beat | Call, index: int) -> Iterator[ModelEvent]:
    match part:
        case Say(text, pieces):
            for piece in _pieces(text, pieces):
                yield TextDelta(piece)
        case Think(text, signature, complete):
            yield ThinkingDelta(text, signature if complete else None, complete)
        case Beat():
            yield Heartbeat()
        case Call(name, arguments, provider_id, pieces):
            yield CallStart(index, name, provider_id)
            for piece in _pieces(arguments, pieces):
                yield CallDelta(index, piece)


def _pieces(text: str, count: int) -> Iterator[str]:
    size = max(1, -(-len(text) // max(1, count)))
    for start in range(0, len(text), size):
        yield text[start : start + size]
