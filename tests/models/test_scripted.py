"""The scripted model says what was written, and chooses by what a request says."""

from __future__ import annotations

import asyncio

import pytest

from perdure.errors import ModelError
from perdure.harness.context import INTERRUPTED
from perdure.messages import AssistantMessage, Text, ToolCall, ToolMessage, user
from perdure.model import (
    CallDelta,
    CallStart,
    Finished,
    Heartbeat,
    Request,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from perdure.testing.clock import ManualClock
from perdure.testing.model_contract import ModelContract
from perdure.testing.scripted import (
    ScriptedModel,
    answer,
    beat,
    by_attempt,
    by_prompt,
    by_round,
    call,
    cut,
    fail,
    hang,
    length,
    pause,
    say,
    think,
    wait,
)

pytestmark = pytest.mark.anyio


def request(*messages, **options):
    return Request(model="scripted", messages=messages or (user("hello"),), options=options)


async def read(model, asked=None):
    return [event async for event in model.stream(asked or request())]


def said(text):
    return AssistantMessage(parts=(Text(text=text),))


class TestScriptedModel(ModelContract):
    deterministic = True

    @pytest.fixture
    def model(self):
        return ScriptedModel(
            by_prompt(
                {
                    "population": [answer(say("I look."), call("lookup", {"city": "Berlin"})), say("3.6 million")],
                    "fail": fail("quota"),
                    "cut": answer(say("Once upon"), cut()),
                    "hang": answer(say("Once upon"), hang()),
                    "Hello": say("Hi."),
                }
            )
        )

    def failing_request(self, model):
        return request(user("fail"))

    def cut_request(self, model):
        return request(user("cut"))

    def hanging_request(self, model):
        return request(user("hang"))


async def test_parts_come_as_written():
    usage = Usage(input=3)
    script = answer(
        think("hm"), beat(), say("abcd"), call("a", {"x": 1}), call("b", '{"y', id=None, pieces=1), usage=usage
    )

    assert await read(ScriptedModel(script)) == [
        ThinkingDelta("hm", "signed", True),
        Heartbeat(),
        TextDelta("ab"),
        TextDelta("cd"),
        CallStart(0, "a", "call_1"),
        CallDelta(0, '{"x"'),
        CallDelta(0, ":1}"),
        CallStart(1, "b"),
        CallDelta(1, '{"y'),
        Finished("tool_calls", usage),
    ]


async def test_thinking_that_is_cut_has_no_signature():
    assert (await read(ScriptedModel(think("hm", complete=False))))[0] == ThinkingDelta("hm", None, False)


async def test_an_answer_at_the_output_limit_has_half_of_its_last_call():
    events = await read(ScriptedModel(length(call("a", {"x": 1}), call("a", {"x": 1}))))
    texts = [
        "".join(event.arguments for event in events if isinstance(event, CallDelta) and event.index == at)
        for at in (0, 1)
    ]

    assert texts == ['{"x":1}', '{"x']
    assert events[-1] == Finished("length")


async def test_a_list_is_used_up_request_by_request():
    model = ScriptedModel([say("one"), say("two")])

    assert [(await read(model))[0] for _ in range(2)] == [TextDelta("on"), TextDelta("tw")]
    with pytest.raises(ModelError, match="has 2 answers, request 3 came"):
        await read(model)


async def test_the_newest_requests_are_kept():
    model = ScriptedModel(say("hi"), keep=2)
    for text in "abc":
        await read(model, request(user(text)))

    assert [each.messages for each in model.requests] == [(user("b"),), (user("c"),)]
    assert model.asked == 3


async def test_a_failure_may_come_in_the_middle():
    stream = ScriptedModel(answer(say("abcd"), fail("rate_limited", after=2.0))).stream(request())

    assert [await anext(stream), await anext(stream)] == [TextDelta("ab"), TextDelta("cd")]
    with pytest.raises(ModelError) as caught:
        await anext(stream)
    assert (caught.value.kind, caught.value.after) == ("rate_limited", 2.0)


async def test_a_round_is_known_by_the_answers_before_it():
    """Interrupted text is no answer, and steers do not count."""
    model = ScriptedModel(by_round(say("1"), say("2"), say("3")))
    asked = AssistantMessage(parts=(ToolCall(name="a", arguments={}, provider_id="c"),), stop="tool_calls")
    result = ToolMessage(call="c", name="a", text="ok")
    cases = [
        ((user("go"),), "1"),
        ((user("go"), said(f"par\n\n{INTERRUPTED}"), user("[Go on.]")), "1"),
        ((user("go"), asked, result), "2"),
        ((user("go"), asked, result, user("steer")), "2"),
        ((user("go"), asked, result, said("done"), user("more")), "3"),
    ]

    for messages, expected in cases:
        assert (await read(model, request(*messages)))[0] == TextDelta(expected)


async def test_a_prompt_is_found_in_the_newest_input_that_has_it():
    model = ScriptedModel(by_prompt({"pay": [say("1"), say("2")], "look": say("3")}))
    cases = [
        ((user("pay Ann"),), "1"),
        ((user("pay Ann"), said("ok"), user("go on")), "2"),
        ((user("look"), said("ok"), user("pay Bob")), "1"),
        ((user("pay Ann"), said("ok"), user("look")), "3"),
    ]

    for messages, expected in cases:
        assert (await read(model, request(*messages)))[0] == TextDelta(expected)
    with pytest.raises(ModelError, match="no input contains one of 'pay', 'look'"):
        await read(model, request(user("sing")))


async def test_an_attempt_is_known_by_its_number():
    model = ScriptedModel(by_attempt(fail(), say("ok")))

    with pytest.raises(ModelError):
        await read(model, request(attempt=1))
    for attempt in (2, 3):
        assert (await read(model, request(attempt=attempt)))[-1] == Finished("stop")


async def test_choices_nest():
    model = ScriptedModel(by_round(by_attempt(fail(), say("one")), lambda asked: say(str(len(asked.messages)))))

    assert (await read(model, request(attempt=2)))[0] == TextDelta("on")
    assert (await read(model, request(user("a"), said("b"), user("c"))))[0] == TextDelta("3")


async def test_pauses_go_by_the_clock():
    clock = ManualClock()
    reading = asyncio.create_task(read(ScriptedModel(answer(pause(5), say("hi")), clock=clock)))

    await clock.advance(4)
    assert not reading.done()
    await clock.advance(2)

    assert (await reading)[-1] == Finished("stop")


async def test_an_answer_may_wait_for_the_test():
    event = asyncio.Event()
    reading = asyncio.create_task(read(ScriptedModel(answer(say("hi"), wait(event)))))
    await asyncio.sleep(0)
    assert not reading.done()

    event.set()

    assert (await reading)[-1] == Finished("stop")
