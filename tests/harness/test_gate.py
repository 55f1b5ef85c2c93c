"""What a call passes before any effect (H14, I15, I19 to I21)."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from perdure.harness.generation import REFUSED_ROUNDS
from perdure.harness.registry import tool
from perdure.messages import AssistantMessage, ToolCall
from perdure.testing.scripted import answer, by_prompt, by_round, call, length, say

pytestmark = pytest.mark.anyio


def explode(value: int) -> int:
    raise RuntimeError("inside a validator")


class Ran:
    def __init__(self) -> None:
        self.what: list[Any] = []

        @tool
        async def delete(path: str = "/") -> str:
            """Delete everything below a path."""
            self.what.append(path)
            return f"deleted {path}"

        @tool
        async def look(n: int) -> str:
            """Look."""
            self.what.append(n)
            return f"saw {n}"

        self.tools = (delete, look)


async def round_of(world: Any, *calls: Any, ran: Ran, cut: bool = False) -> list[Any]:
    """The results of one round, in call order."""
    round = length(*calls) if cut else answer(*calls)
    session = await world.open(by_round(round, say("ok")), *ran.tools)
    chat = await session.conversation("a")
    assert (await (await chat.submit("go")).wait()).text == "ok"
    found = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    return sorted(found, key=lambda message: [int(part) for part in message.call.split(".")])


@pytest.mark.invariant("HA-12")
@pytest.mark.parametrize(
    "arguments",
    [
        '{"path": "/ho',
        '{"path": "/home"}"',
        '{"path": "/home",}',
        "",
        "null",
        "[]",
        '"/home"',
        "7",
        '{"path": NaN}',
        '{"path": "/a", "path": "/b"}',
        "{" * 5000,
        '{"path": 1e999999}',
    ],
)
async def test_arguments_that_are_no_json_object_never_run(world: Any, arguments: str):
    """I15: not even where every argument has a default; nothing is repaired, nothing is made up."""
    ran = Ran()
    found = await round_of(world, call("delete", arguments), call("look", {"n": 1}), ran=ran)
    assert ran.what == [1]
    assert [message.error for message in found] == ["invalid_arguments", None]
    assert "delete" in found[0].text
    assert "path" in found[0].text  # the schema tells how to do better
    assert len(found[0].text) < 6000


@pytest.mark.parametrize("arguments", [{"n": "seven"}, {}, {"n": None}, {"n": 1.5}, {"n": {"deep": [1]}}])
async def test_arguments_that_do_not_fit_the_schema_never_run(world: Any, arguments: Any):
    ran = Ran()
    (found,) = await round_of(world, call("look", arguments), ran=ran)
    assert (ran.what, found.error) == ([], "invalid_arguments")


async def test_a_validator_that_raises_anything_refuses_the_call_and_not_the_run(world: Any):
    @tool
    async def odd(n: Annotated[int, AfterValidator(explode)]) -> str:
        """Odd."""
        return "never"

    session = await world.open(by_round(call("odd", {"n": 1}), say("ok")), odd)
    chat = await session.conversation("a")
    assert (await (await chat.submit("go")).wait()).text == "ok"
    (found,) = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    assert found.error == "invalid_arguments"


async def test_a_tool_that_no_model_could_be_told_of_ends_the_run_and_says_what_to_do(world: Any):
    @tool
    async def odd(n: NoSuchType) -> str:  # type: ignore[name-defined] # noqa: F821
        """Odd."""
        return "never"

    session = await world.open(say("ok"), odd)
    ended = await (await (await session.conversation("a")).submit("go")).wait()
    assert (ended.reason, "odd" in ended.detail) == ("faulted", True)


@pytest.mark.parametrize(
    "name", ["shel", "", " ", "a/b~c", "näme", "x" * 10_000, "bad\0\ud800", "perdure.tool", "__class__"]
)
async def test_a_tool_that_does_not_exist_is_an_error_that_names_those_that_do(world: Any, name: str):
    """I20."""
    ran = Ran()
    found = await round_of(world, call(name, {"n": 1}), call("look", {"n": 2}), ran=ran)
    assert ran.what == [2]
    assert [message.error for message in found] == ["tool_unavailable", None]
    assert "delete, look" in found[0].text
    assert len(found[0].text) < 1000


async def test_invented_names_are_counted_together(world: Any):
    """A model can invent any number of names; the usage document does not grow with them."""
    session = await world.open(by_round(answer(*(call(f"t{n}", {}) for n in range(50))), say("ok")), *Ran().tools)
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    assert (await chat.usage())["tools"] == {"(unknown)": {"calls": 50, "errors": 50}}


async def test_nothing_of_a_call_that_the_output_limit_cut_runs(world: Any):
    """I19."""
    ran = Ran()
    found = await round_of(world, call("look", {"n": 1}), call("delete", {"path": "/home/ann"}), ran=ran, cut=True)
    assert ran.what == [1]
    assert [message.error for message in found] == [None, "truncated"]
    assert "smaller" in found[1].text


async def test_a_last_call_that_looks_whole_does_not_run_either_when_the_limit_was_reached(world: Any):
    ran = Ran()
    session = await world.open(by_round(answer(call("delete", {"path": "/a"}), stop="length"), say("ok")), *ran.tools)
    await (await (await session.conversation("a")).submit("go")).wait()
    assert ran.what == []


async def test_no_call_of_a_refused_answer_runs(world: Any):
    ran = Ran()
    session = await world.open(by_round(answer(call("look", {"n": 1}), stop="refusal"), say("ok")), *ran.tools)
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    assert ran.what == []
    (found,) = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    assert found.error == "blocked"


@pytest.mark.invariant("HA-13")
async def test_rounds_without_a_call_that_can_run_are_bounded(world: Any):
    session = await world.open(by_prompt({"bad": call("no_such"), "": say("fine")}), *Ran().tools)
    chat = await session.conversation("a")
    ended = await (await chat.submit("bad")).wait()
    assert (ended.reason, str(REFUSED_ROUNDS) in ended.detail) == ("limit", True)
    assert world.strict[-1].inner.asked == REFUSED_ROUNDS
    assert (await (await chat.submit("good")).wait()).text == "fine"


async def test_one_good_call_gives_the_model_its_chances_back(world: Any):
    ran = Ran()
    bad = call("no_such")
    rounds = [*[bad] * (REFUSED_ROUNDS - 1), call("look", {"n": 1}), *[bad] * (REFUSED_ROUNDS - 1), say("done")]
    session = await world.open(by_round(*rounds), *ran.tools)
    assert (await (await (await session.conversation("a")).submit("go")).wait()).text == "done"


async def test_a_tool_that_is_not_offered_to_this_conversation_does_not_run(world: Any):
    ran = Ran()
    session = await world.open(by_round(call("delete", {}), say("ok")), *ran.tools)
    chat = await session.conversation("a")
    await chat.configure(tools=["look", "gone"])
    await (await chat.submit("go")).wait()
    assert ran.what == []
    assert [spec.name for spec in world.strict[-1].inner.requests[0].tools] == ["look"]


async def test_what_the_model_asked_for_is_stored_as_it_came(world: Any):
    """The stored answer keeps the broken text; the request that follows is valid all the same."""
    session = await world.open(by_round(call("look", '{"n": 1'), say("ok")), *Ran().tools)
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    asked = [
        m async for e in chat.history() for m in e.messages if isinstance(m, AssistantMessage) and m.stop != "stop"
    ]
    (part,) = asked[0].parts
    assert isinstance(part, ToolCall)
    assert (part.arguments, part.raw) == (None, '{"n": 1')
