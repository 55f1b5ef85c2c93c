"""A model request: what is shown of it, how long it may take, how often it is tried (H12, H13, H15, I39, I48)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import ModelError
from perdure.harness.conversation import ConversationHandle
from perdure.harness.harness import RequestLimits
from perdure.harness.registry import tool
from perdure.harness.retry import RetryPolicy, wait_before_retry
from perdure.messages import text_of
from perdure.model import Finished, TextDelta
from perdure.testing.clock import settle
from perdure.testing.scripted import (
    answer,
    beat,
    by_attempt,
    by_prompt,
    by_round,
    call,
    cut,
    fail,
    hang,
    pause,
    say,
    think,
)

pytestmark = pytest.mark.anyio


async def started(world: Any, script: Any, *tools: Any, **options: Any) -> tuple[Any, Any]:
    session = await world.open(script, *tools, **options)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await settle()
    return chat, sent


# -- what is shown ------------------------------------------------------------------------------


@pytest.mark.invariant("HA-30")
async def test_what_streams_is_committed_every_100_ms_and_not_more_often(memory_world: Any):
    world = memory_world
    drops = [part for n in range(50) for part in (say(f"{n} ", pieces=1), pause(0.01))]
    chat, sent = await started(world, answer(think("Hm."), *drops))
    commits: list[Any] = []
    world.session.observe(commits.append)
    seen: list[str] = []
    live: Any = None
    for _ in range(4):
        await world.clock.advance(0.1)
        live = await chat.live()
        assert live is not None
        seen.append(live["text"])
    assert live["thinking"] == "Hm."
    assert [len(text.split()) for text in seen] == [10, 20, 30, 40] or all(
        9 <= len(text.split()) - 10 * at <= 11 for at, text in enumerate(seen)
    )
    assert len(commits) <= 5
    assert (await world.running(sent.wait())).text == "".join(f"{n} " for n in range(50))


async def test_the_interval_is_a_setting(memory_world: Any):
    world = memory_world
    chat, _ = await started(world, answer(say("some"), hang()), progress_interval=2.0)
    await world.clock.advance(1.9)
    assert (await chat.live())["text"] == ""
    await world.clock.advance(0.2)
    assert (await chat.live())["text"] == "some"


async def test_an_answer_without_a_pause_costs_no_progress_commit(memory_world: Any):
    world = memory_world
    session = await world.open(say("quick", pieces=5))
    chat = await session.conversation("a")
    commits: list[Any] = []
    session.observe(commits.append)
    await (await chat.submit("go")).wait()
    assert len(commits) == 2  # admission with the pin, answer


async def test_a_character_that_is_cut_in_two_is_whole_again(memory_world: Any):
    """I58: surrogates, NUL; what is shown and what is stored agree."""
    world = memory_world
    text = "a\ud83d\ude00b\0c\ud800d"
    chat, sent = await started(world, answer(say(text, pieces=len(text)), pause(1), say(" end", pieces=1)))
    await world.clock.advance(0.5)
    assert (await chat.live())["text"] == "a😀b␀c�d"
    assert (await world.running(sent.wait())).text == "a😀b␀c�d end"


async def test_a_partial_answer_with_broken_characters_is_kept_when_the_attempt_fails(memory_world: Any):
    world = memory_world
    chat, sent = await started(world, answer(say("half\ud800\0", pieces=1), fail("auth")))
    assert (await world.running(sent.wait())).reason == "model_error"
    found = [entry.messages[0] async for entry in chat.history()][::-1]
    assert text_of(found[1]) == "half�␀"
    assert found[1].stop == "error"


# -- time limits --------------------------------------------------------------------------------

LIMITS = RequestLimits(first_byte=20, progress=5, total=60)
ONCE = RetryPolicy(attempts=1)


@pytest.mark.invariant("HA-31")
@pytest.mark.parametrize(
    "script, ends, what",
    [
        (hang(), 20, "answered nothing"),
        (answer(say("x"), hang()), 5, "stopped answering"),
        (answer(*[part for _ in range(100) for part in (beat(), pause(1))]), 20, "answered nothing"),
        (answer(say("x"), *[part for _ in range(100) for part in (beat(), pause(1))]), 5, "stopped answering"),
        (answer(*[part for _ in range(100) for part in (say("x"), pause(4))]), 60, "stopped answering"),
    ],
    ids=["first byte", "progress", "heartbeats before", "heartbeats between", "total"],
)
async def test_a_silent_stream_ends_at_its_limit(memory_world: Any, script: Any, ends: float, what: str):
    """I39: heartbeats are no progress; the limits are separate, whichever comes first."""
    world = memory_world
    _, sent = await started(world, script, limits=LIMITS, retry=ONCE)
    await world.clock.advance(ends - 0.5)
    assert await sent.status() == "running"
    await world.clock.advance(1.0)
    ended = await sent.wait()
    assert (ended.reason, what in ended.detail) == ("model_error", True)


async def test_a_stream_that_ignores_its_cancellation_does_not_hold_the_run(memory_world: Any):
    world = memory_world
    free = asyncio.Event()

    class Deaf:
        name, context_window = "deaf", None

        async def stream(self, request: Any) -> Any:
            while not free.is_set():
                try:
                    await free.wait()
                except asyncio.CancelledError:
                    continue
            yield None

    _, sent = await started(world, Deaf(), limits=LIMITS, retry=ONCE)
    assert (await world.running(sent.wait())).reason == "model_error"
    free.set()


async def test_a_stream_that_is_slow_to_close_costs_no_answer(memory_world: Any):
    world = memory_world

    class Slow:
        name, context_window = "slow", None

        async def stream(self, request: Any) -> Any:
            try:
                for event in events:
                    yield event
            finally:
                await asyncio.Event().wait()

    events = [TextDelta("whole"), Finished("stop")]
    _, sent = await started(world, Slow(), limits=LIMITS, retry=ONCE)
    assert (await world.running(sent.wait())).text == "whole"


# -- retries ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["retryable", "rate_limited", "timeout"])
async def test_a_failure_that_may_pass_is_tried_again(memory_world: Any, kind: str):
    chat, sent = await started(memory_world, by_attempt(fail(kind), fail(kind), say("ok")))
    assert (await memory_world.running(sent.wait())).text == "ok"
    assert memory_world.strict[-1].inner.asked == 3
    assert (await chat.usage())["models"]["scripted"] == {"requests": 3, "unknown": 3}


@pytest.mark.parametrize("kind", ["auth", "quota", "invalid"])
async def test_a_failure_that_stays_is_not_tried_again(memory_world: Any, kind: str):
    _, sent = await started(memory_world, fail(kind))
    ended = await memory_world.running(sent.wait())
    assert (ended.reason, ended.detail.split(":")[0]) == ("model_error", kind)
    assert memory_world.strict[-1].inner.asked == 1


async def test_an_overflow_is_recorded_as_that(memory_world: Any):
    _, sent = await started(memory_world, fail("overflow"))
    assert (await memory_world.running(sent.wait())).reason == "overflow"


async def test_a_cut_stream_is_tried_again_and_its_text_not_offered_twice(memory_world: Any):
    chat, sent = await started(memory_world, by_attempt(answer(say("half"), cut()), say("whole")))
    assert (await memory_world.running(sent.wait())).text == "whole"
    found = [entry.messages[0] async for entry in chat.history()][::-1]
    assert [text_of(message) for message in found] == ["go", "half", "whole"]
    await memory_world.running((await chat.submit("more")).wait())
    texts = [text_of(message) for message in memory_world.strict[-1].inner.requests[-1].messages]
    assert "half" not in texts


async def test_nothing_of_a_cut_answer_runs(memory_world: Any):
    ran: list[str] = []

    @tool
    async def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    _, sent = await started(memory_world, by_attempt(answer(call("pay"), cut()), say("ok")), pay)
    assert (await memory_world.running(sent.wait())).text == "ok"
    assert ran == []


@pytest.mark.invariant("HA-32")
async def test_a_hint_is_honoured_and_shown_and_no_tool_runs_again(memory_world: Any):
    """I48: a 429 after four tool rounds."""
    world = memory_world
    ran: list[int] = []

    @tool
    async def work() -> str:
        """Work."""
        ran.append(1)
        return "ok"

    def script(request: Any) -> Any:
        rounds = by_round(*[call("work")] * 4, by_attempt(fail("rate_limited", after=2.0), say("done")))
        return rounds(request)

    chat, sent = await started(world, script, work)
    live = await chat.live()
    assert live["retry"]["kind"] == "rate_limited"
    assert 2.0 <= live["retry"]["at"] - world.clock.now() <= 2.3
    await world.clock.advance(1.9)
    assert world.strict[-1].inner.asked == 5
    await world.clock.advance(0.4)
    assert (await sent.wait()).text == "done"
    assert len(ran) == 4


async def test_a_hint_that_does_not_fit_the_budget_fails_at_once(memory_world: Any):
    _, sent = await started(memory_world, fail("rate_limited", after=86_400.0))
    assert (await sent.wait()).reason == "model_error"
    assert memory_world.clock.monotonic() < 1.0


async def test_a_back_off_survives_the_process(world: Any):
    session = await world.open(by_attempt(fail("rate_limited", after=30.0), say("ok")))
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: any(task.kind == "perdure.timer" for task in session.inspect().tasks))
    session = await world.restart()
    await session.resume()
    await world.clock.advance(20)
    assert await session.submission(sent.id).status() == "running"
    waiting = asyncio.ensure_future(session.submission(sent.id).wait())
    assert (await world.running(waiting)).text == "ok"
    assert (await chat_of(session).usage())["models"]["scripted"]["requests"] == 2


def chat_of(session: Any) -> Any:
    (id,) = session._line.memory.published.conversations
    return ConversationHandle(session._harness, id)


async def test_while_the_repeated_request_streams_it_does_not_show_a_wait(memory_world: Any):
    world = memory_world
    chat, _ = await started(world, by_attempt(fail("rate_limited", after=1.0), answer(say("now"), hang())))
    await world.clock.advance(1.5)
    live = await chat.live()
    assert (live["text"], live["retry"], live["attempt"]) == ("now", None, 2)


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_waits_grow_within_bounds_and_with_jitter(chance: float):
    policy = RetryPolicy(attempts=2000, budget=1e12, first=0.5, longest=60)
    waits = [
        wait_before_retry(ModelError("x"), policy, attempt=attempt, elapsed=0, chance=chance)
        for attempt in (1, 2, 3, 10, 1500)
    ]
    assert all(wait is not None and 0.25 <= wait <= 60 for wait in waits)
    assert waits[0] < waits[1] < waits[2] < waits[3]  # type: ignore[operator]


@pytest.mark.parametrize(
    "error, attempt, elapsed",
    [
        (ModelError("x", kind="auth"), 1, 0.0),
        (ModelError("x"), 5, 0.0),
        (ModelError("x"), 1, 299.9),
        (ModelError("x", after=400.0), 1, 0.0),
        (ModelError("x", after=float("nan")), 1, 0.0),
        (ModelError("x", after=float("inf")), 1, 0.0),
    ],
    ids=["kind", "attempts", "budget", "hint", "nan", "infinite"],
)
def test_when_no_further_attempt_is_made(error: ModelError, attempt: int, elapsed: float):
    assert wait_before_retry(error, RetryPolicy(), attempt=attempt, elapsed=elapsed, chance=0.5) is None


def test_a_hint_in_the_past_means_at_once():
    assert wait_before_retry(ModelError("x", after=-5.0), RetryPolicy(), attempt=1, elapsed=0, chance=0.5) == 0.0


# -- runs that end without an answer ------------------------------------------------------------


@pytest.mark.parametrize("model, said", [(None, "no model is configured"), ("nope:1", "nope:1")])
async def test_without_a_model_the_input_is_unanswered_and_the_conversation_goes_on(
    memory_world: Any, model: Any, said: str
):
    """H15: a session opens, is configured and closed with no model."""
    session = await memory_world.open(say("ok"), model=model)
    chat = await session.conversation("a")
    ended = await (await chat.submit("go")).wait()
    assert (ended.reason, said in ended.detail) == ("no_model", True)
    await memory_world.close()
    session = await memory_world.open(say("fine"))
    assert (await (await (await session.conversation("a")).submit("again")).wait()).text == "fine"


@pytest.mark.invariant("HA-33")
async def test_a_run_that_faults_settles_what_it_had_to_answer(memory_world: Any):
    """H15: in the commit in which it ends; the conversation goes on working."""
    session = await memory_world.open(by_prompt({"go": say("never"), "": say("fine")}))
    build = session._harness.generation._build

    async def broken(*args: Any) -> Any:
        raise RuntimeError("a bug of ours")

    session._harness.generation._build = broken
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    ended = await sent.wait()
    assert (ended.reason, "a bug of ours" in ended.detail) == ("faulted", True)
    assert await chat.live() is None
    session._harness.generation._build = build
    assert (await (await chat.submit("again")).wait()).text == "fine"


async def test_an_empty_answer_is_an_answer(memory_world: Any):
    chat, sent = await started(memory_world, by_prompt({"go": answer(), "": say("fine")}))
    assert (await sent.wait()).text == ""
    assert (await (await chat.submit("again")).wait()).text == "fine"
