"""The strict model refuses what a provider might, and answers the rest."""

from __future__ import annotations

import pytest

from perdure.errors import ModelError
from perdure.messages import AssistantMessage, Message, Text, Thinking, ToolCall, ToolMessage, user
from perdure.model import Finished, Request, ToolSpec
from perdure.records import ROOT, Entry, EntryId, Seq
from perdure.testing.model_contract import LOOKUP, ModelContract
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, call, cut, fail, hang, say
from perdure.testing.strict import StrictModel, broken_pairs, refusals

pytestmark = pytest.mark.anyio


class TestStrictModel(ModelContract):
    deterministic = True

    @pytest.fixture
    def model(self):
        return StrictModel(
            ScriptedModel(
                by_prompt(
                    {
                        "population": [call("lookup", {"city": "Berlin"}), say("3.6 million")],
                        "cut": answer(say("Once upon"), cut()),
                        "hang": answer(say("Once upon"), hang()),
                        "fail": fail("auth"),
                        "Hello": say("Hi."),
                    }
                )
            )
        )

    def failing_request(self, model):
        return Request(model=model.name, messages=())

    def cut_request(self, model):
        return Request(model=model.name, messages=(user("cut"),))

    def hanging_request(self, model):
        return Request(model=model.name, messages=(user("hang"),))


async def test_a_violation_is_an_invalid_request_and_is_kept():
    model = StrictModel(ScriptedModel(say("hi")))

    with pytest.raises(ModelError, match="the last message is an answer") as caught:
        async for _ in model.stream(
            Request(model="m", messages=(user("a"), AssistantMessage(parts=(Text(text="b"),))))
        ):
            pass

    assert caught.value.kind == "invalid"
    assert model.violations == ["message 1: the last message is an answer"]


async def test_a_valid_request_never_reaches_the_violations():
    model = StrictModel(ScriptedModel(say("hi")))

    events = [event async for event in model.stream(Request(model="m", messages=(user("a"),), tools=(LOOKUP,)))]

    assert isinstance(events[-1], Finished)
    assert model.violations == []


def tool(name: str, parameters: dict[str, object]) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters=parameters)


OBJECT: dict[str, object] = {"type": "object"}


@pytest.mark.parametrize(
    "request_, violation",
    [
        (Request(model="m", messages=(user("a"),), tools=(tool("a", OBJECT), tool("a", OBJECT))), "offered 2 times"),
        (Request(model="m", messages=(user("a"),), tools=(tool("a b", OBJECT),)), "the tool name 'a b' is not made of"),
        (Request(model="m", messages=(user("a"),), tools=(tool("a", {}),)), "are not the schema of an object"),
        (
            Request(model="m", messages=(user("a"),), tools=(tool("a", {**OBJECT, "required": ["x"]}),)),
            "'a' requires x, which it does not describe",
        ),
        (Request(model="m", messages=(user("\ud800"),)), "the request cannot be sent"),
        (
            Request(
                model="m",
                messages=(
                    user("a"),
                    AssistantMessage(parts=(Text(text="b"), Thinking(text="c", model="n", complete=True))),
                    user("d"),
                ),
            ),
            "thinking of 'n', which 'm' did not make",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_refuses(request_: Request, violation: str):
    assert any(violation in each for each in refusals(request_))


def stored(*messages: Message) -> list[Entry]:
    return [
        Entry(id=EntryId(id), conversation=ROOT, kind="test", seq=Seq(id), at=0.0, messages=(message,))
        for id, message in enumerate(messages, 1)
    ]


def asked(*names: str, stop: str = "tool_calls") -> AssistantMessage:
    return AssistantMessage(parts=tuple(ToolCall(name=name, arguments={}) for name in names), stop=stop)  # pyright: ignore[reportArgumentType]


def result(key: str, name: str = "pay") -> ToolMessage:
    return ToolMessage(call=key, name=name, text="ok")


@pytest.mark.parametrize(
    "entries, wrong",
    [
        (stored(user("a"), asked("pay", "look"), result("2.1", "look"), result("2.0")), []),
        (stored(user("a"), asked("pay", stop="aborted")), []),
        (stored(user("a"), asked("pay")), ["call '2.0' of 'pay' has no result"]),
        (stored(user("a"), asked("pay"), result("2.0"), result("2.0")), ["entry 4: a second result for '2.0'"]),
        (stored(user("a"), result("9.0")), ["entry 2: a result for '9.0', which nobody called before it"]),
        (stored(asked("pay"), result("1.0", "look")), ["entry 2: '1.0' called 'pay', not 'look'"]),
    ],
    ids=["whole", "stopped", "missing", "twice", "nobody", "another name"],
)
def test_a_stored_transcript_at_rest_has_one_result_for_each_call(entries: list[Entry], wrong: list[str]):
    assert broken_pairs(entries) == wrong
