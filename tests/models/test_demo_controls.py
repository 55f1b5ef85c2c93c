"""The control words of the demo model, and its clock."""

from __future__ import annotations

import asyncio

import pytest

from perdure.errors import ModelError
from perdure.messages import user
from perdure.model import CallDelta, CallStart, Finished, Heartbeat, Request, TextDelta, ThinkingDelta
from perdure.providers.demo import DemoModel
from perdure.testing.clock import ManualClock
from perdure.testing.strict import StrictModel

pytestmark = pytest.mark.anyio


async def read(model, prompt, attempt=1, tools=()):
    request = Request(model="demo", messages=(user(prompt),), tools=tools, options={"attempt": attempt})
    return [event async for event in model.stream(request)]


@pytest.mark.parametrize("word", ["fail", "auth", "quota", "invalid", "rate=2.5", "overflow"])
async def test_a_word_for_an_error_raises_it_before_the_first_event(word):
    kinds = {"fail": "retryable", "rate=2.5": "rate_limited"}

    with pytest.raises(ModelError) as caught:
        await read(DemoModel(), f"hello demo:{word}")

    assert caught.value.kind == kinds.get(word, word)
    assert caught.value.after == (2.5 if word == "rate=2.5" else None)


@pytest.mark.parametrize("word, last", [("fail=2", 2), ("auth=1", 1), ("rate=9", 1)])
async def test_an_error_for_some_attempts_is_over_after_them(word, last):
    for attempt in range(1, last + 1):
        with pytest.raises(ModelError):
            await read(DemoModel(), f"hello demo:{word}", attempt)

    assert isinstance((await read(DemoModel(), f"hello demo:{word}", last + 1))[-1], Finished)


async def test_a_word_concerns_its_own_step_only(shop, talk):
    conversation = talk(StrictModel(DemoModel()), shop)

    with pytest.raises(ModelError):
        await conversation.ask("pay 5 to Ann, then demo:fail run `ls`")

    assert [name for name, _ in conversation.calls] == ["pay"]


async def test_a_word_alone_belongs_to_the_step_after_it(shop, talk):
    conversation = talk(StrictModel(DemoModel()), shop)

    with pytest.raises(ModelError):
        await conversation.ask("pay 5 to Ann. demo:fail. Run `ls`.")

    assert [name for name, _ in conversation.calls] == ["pay"]


async def test_an_overflow_may_be_a_number_of_tokens():
    await read(DemoModel(), "demo:overflow=500 hello")

    with pytest.raises(ModelError, match="takes 500") as caught:
        await read(DemoModel(), "demo:overflow=500 hello " + "word " * 1000)
    assert caught.value.kind == "overflow"


async def test_what_does_not_fit_the_window_overflows():
    model = DemoModel(window=100)
    await read(model, "hello")

    with pytest.raises(ModelError) as caught:
        await read(model, "word " * 200)
    assert caught.value.kind == "overflow"


async def test_a_cut_stream_ends_in_the_middle():
    events = await read(DemoModel(), "demo:cut=1 hello")

    assert events
    assert not any(isinstance(event, Finished) for event in events)
    assert isinstance((await read(DemoModel(), "demo:cut=1 hello", 2))[-1], Finished)


async def test_the_output_limit_is_met_inside_the_last_call(shop):
    events = await read(DemoModel(), "demo:length run `a` and `b` in parallel", tools=shop)
    arguments = [
        "".join(event.arguments for event in events if isinstance(event, CallDelta) and event.index == at)
        for at in (0, 1)
    ]

    assert arguments[0] == '{"command":"a"}'
    assert arguments[1] == '{"comma'
    assert isinstance(events[-1], Finished)
    assert events[-1].stop == "length"


async def test_a_call_that_was_cut_is_not_asked_for_again(shop, talk):
    conversation = talk(StrictModel(DemoModel()), shop)

    answer = await conversation.ask("demo:length pay 5 to Ann, then run `ls`")

    assert [name for name, _ in conversation.calls] == ["bash"]
    assert "pay failed (invalid_arguments)" in answer


async def test_garbage_is_no_json_and_the_run_goes_on(shop, talk):
    conversation = talk(StrictModel(DemoModel()), shop)

    answer = await conversation.ask("demo:garbage pay 5 to Ann, then run `ls`")

    assert [name for name, _ in conversation.calls] == ["bash"]
    assert "pay failed (invalid_arguments)" in answer


async def test_an_unknown_tool_is_called_once_and_the_run_goes_on(shop, talk):
    conversation = talk(StrictModel(DemoModel()), shop)

    answer = await conversation.ask("demo:unknown pay 5 to Ann, then run `ls`")

    assert [name for name, _ in conversation.calls] == ["bash"]
    assert "no_such_tool failed (tool_unavailable)" in answer


async def test_thinking_comes_first_and_is_complete():
    events = await read(DemoModel(), "demo:think hello")
    thoughts = [event for event in events if isinstance(event, ThinkingDelta)]

    assert events[: len(thoughts)] == thoughts
    assert [thought.done for thought in thoughts] == [False, True]
    assert thoughts[-1].signature


async def test_a_refusal_ends_without_calls(shop):
    events = await read(DemoModel(), "demo:refuse pay 5 to Ann", tools=shop)

    assert isinstance(events[-1], Finished)
    assert events[-1].stop == "refusal"
    assert not any(isinstance(event, CallStart) for event in events)


async def test_a_word_that_does_not_exist_is_named_with_those_that_do():
    events = await read(DemoModel(), "demo:explode hello")
    text = "".join(event.text for event in events if isinstance(event, TextDelta))

    assert "demo:explode" in text
    assert "garbage" in text


class Listener:
    """Reads a stream in the background."""

    def __init__(self, model, prompt):
        self.events = []
        self.task = asyncio.create_task(self.listen(model, prompt))

    async def listen(self, model, prompt):
        async for event in model.stream(Request(model="demo", messages=(user(prompt),))):
            self.events.append(event)

    async def stop(self):
        self.task.cancel()
        await asyncio.wait([self.task])
        return self.task.cancelled()


async def test_it_may_fall_silent_in_the_middle():
    clock = ManualClock()
    listener = Listener(DemoModel(clock), "demo:hang hello")

    await clock.advance(100_000)

    assert listener.events
    assert not any(isinstance(event, Finished) for event in listener.events)
    assert await listener.stop()


async def test_it_may_be_silent_from_the_start():
    clock = ManualClock()
    listener = Listener(DemoModel(clock), "demo:silent hello")

    await clock.advance(100_000)

    assert listener.events == []
    assert await listener.stop()


async def test_it_may_send_nothing_but_heartbeats():
    clock = ManualClock()
    listener = Listener(DemoModel(clock), "demo:pulse hello")

    await clock.advance(10)

    assert listener.events == [Heartbeat()] * 10
    assert await listener.stop()


async def test_it_sleeps_before_the_answer_by_the_clock():
    clock = ManualClock()
    listener = Listener(DemoModel(clock), "demo:sleep=5 hello")

    await clock.advance(4.9)
    assert listener.events == []
    await clock.advance(0.2)
    await listener.task

    assert isinstance(listener.events[-1], Finished)


@pytest.mark.parametrize(
    "model, prompt", [(DemoModel, "demo:slow=1 hello"), (lambda clock: DemoModel(clock, slow=1), "hello")]
)
async def test_it_waits_before_each_delta_by_the_clock(model, prompt):
    clock = ManualClock()
    listener = Listener(model(clock), prompt)

    await clock.advance(2)

    assert len(listener.events) == 2
    assert await listener.stop()
