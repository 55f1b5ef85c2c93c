"""Models that yield nonsense: the run goes on or ends with a reason, and what is stored can be read again."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from perdure.errors import UsageError
from perdure.harness.answer import MOST_CALLS, Answer
from perdure.harness.registry import Extension, Registry, tool
from perdure.harness.retry import RetryPolicy
from perdure.messages import Thinking, calls_of
from perdure.model import CallDelta, CallStart, Finished, TextDelta, ThinkingDelta, Usage

pytestmark = pytest.mark.anyio
STOP = Finished("stop")
Start: Any = CallStart
Delta: Any = CallDelta
Said: Any = TextDelta
End: Any = Finished


class Raw:
    """Yields these events in the first request, and a good answer afterwards."""

    name, context_window = "raw", None

    def __init__(self, *events: Any) -> None:
        self.events = events
        self.asked = 0

    async def stream(self, request: Any) -> Any:
        self.asked += 1
        for event in self.events if self.asked == 1 else (TextDelta("fine"), STOP):
            if isinstance(event, BaseException):
                raise event
            yield event


@tool
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


async def asked(world: Any, *events: Any, **options: Any) -> tuple[Any, Any]:
    """How the input was settled; then the conversation still answers, also after a restart."""
    session = await world.open(Raw(*events), look, retry=RetryPolicy(attempts=1), **options)
    chat = await session.conversation("a")
    settled = await world.running((await chat.submit("go")).wait())
    assert (await world.running((await chat.submit("again")).wait())).text == "fine"
    await world.close()
    session = await world.reopen()
    chat = await session.conversation("a")
    assert (await world.running((await chat.submit("once more")).wait())).text == "fine"
    return settled, chat


@pytest.mark.invariant("HA-34")
@pytest.mark.parametrize(
    "events",
    [
        [CallDelta(0, "{}"), STOP],
        [CallStart(1, "look"), STOP],
        [CallStart(0, "look"), CallStart(0, "look"), STOP],
        [CallStart(0, "look"), CallDelta(5, "{}"), STOP],
        [CallStart(0, "look"), CallDelta(-1, "{}"), STOP],
        [Start(0, None), STOP],
        [Start(0, "look", 7), STOP],
        [CallStart(0, "look"), Delta(0, {"n": 1}), STOP],
        [Start("0", "look"), STOP],
        [Said(None), STOP],
        [Said(b"bytes"), STOP],
        [ThinkingDelta("x", signature=object()), STOP],
        [ThinkingDelta("x", signature=math.nan), STOP],
        [TextDelta("x"), Finished("error")],
        [TextDelta("x"), Finished("interrupted")],
        [TextDelta("x"), End("weird")],
        [TextDelta("x"), End(None)],
        [],
        [TextDelta("x")],
        [ValueError("adapter bug")],
        [KeyError("choices")],
        [TextDelta("x"), ConnectionResetError("gone")],
        [asyncio.CancelledError()],
        [SystemExit(1)],
        [StopAsyncIteration()],
        [TextDelta("x"), TimeoutError()],
        [TextDelta("x" * 9_000_000), STOP],
        [*(CallStart(n, "look") for n in range(MOST_CALLS + 1)), STOP],
    ],
    ids=range(28),
)
async def test_nonsense_ends_the_run_with_a_model_error_and_nothing_else(memory_world: Any, events: Any):
    settled, _ = await asked(memory_world, *events)
    assert settled.reason == "model_error"


async def test_a_model_that_does_not_even_stream_is_a_model_error(memory_world: Any):
    class NoStream:
        name, context_window = "none", None

        def stream(self, request: Any) -> Any:
            return "an answer"

    session = await memory_world.open(NoStream(), retry=RetryPolicy(attempts=1))
    ended = await (await (await session.conversation("a")).submit("go")).wait()
    assert ended.reason == "model_error"


@pytest.mark.parametrize(
    "events, text",
    [
        ([TextDelta("one"), STOP, Finished("stop"), TextDelta("more")], "one"),
        ([TextDelta(""), TextDelta("a"), TextDelta(""), STOP], "a"),
        ([ThinkingDelta("only thinking"), STOP], ""),
        ([TextDelta("a"), Finished("tool_calls")], "a"),
        ([TextDelta("a"), Finished("length")], "a"),
        ([TextDelta("a"), Finished("refusal")], "a"),
        ([None, "text", 7, TextDelta("a"), STOP], "a"),
    ],
    ids=["twice", "empty deltas", "thinking", "no calls", "length", "refusal", "strange events"],
)
async def test_what_makes_sense_somehow_is_taken(memory_world: Any, events: Any, text: str):
    settled, _ = await asked(memory_world, *events)
    assert settled.text == text
    assert settled.answer.messages[0].stop in ("stop", "length", "refusal")


async def test_calls_run_though_the_model_says_that_it_just_stopped(memory_world: Any):
    settled, chat = await asked(memory_world, CallStart(0, "look"), CallDelta(0, '{"n": 3}'), STOP)
    assert settled.text == "fine"
    found = [entry.messages[0] async for entry in chat.history()]
    assert [message.text for message in found if hasattr(message, "call")] == ["saw 3"]
    assert [message.stop for message in found if calls_of(message)] == ["tool_calls"]


@pytest.mark.parametrize(
    "usage, counted",
    [
        (
            Usage(input=3, cache_read=19464, cache_write=1124, output=954),
            {"input": 3, "cache_read": 19464, "cache_write": 1124, "output": 954},
        ),
        (Usage(output=0), {"output": 0}),
        (Usage(), {}),
        (None, {}),
        ({"input": 5}, {}),
        (Usage(input=-5, output=math.nan, cost=math.inf, cache_read="7", reasoning=True, cache_write=10**400), {}),  # type: ignore[arg-type]
    ],
    ids=["exclusive", "zero", "empty", "none", "dict", "nonsense"],
)
async def test_usage_is_counted_by_buckets_and_unknown_is_not_zero(
    memory_world: Any, usage: Any, counted: dict[str, int]
):
    """H17, I47."""
    session = await memory_world.open(Raw(TextDelta("a"), Finished("stop", usage)))
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    assert (await chat.usage())["models"]["raw"] == {"requests": 1, "unknown": 0 if counted else 1, **counted}


def test_thinking_that_the_limit_cut_is_not_complete():
    """I17: it has no signature; it never goes back to the model."""
    for stop, complete in (("length", False), ("stop", True)):
        answer = Answer("m")
        answer.add(ThinkingDelta("half a tho"))
        answer.add(Finished(stop))  # type: ignore[arg-type]
        (part,) = answer.message().parts
        assert isinstance(part, Thinking)
        assert part.complete is complete


def test_a_function_that_is_no_tool_is_named_with_the_remedy():
    def look(city: str) -> str:
        return city

    with pytest.raises(UsageError, match=r"look is no tool: put @perdure\.tool above it"):
        Registry([Extension(name="x", tools=[look])])  # type: ignore[list-item]
