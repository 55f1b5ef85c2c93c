"""Whatever happened in a conversation, its next request is one that a provider takes, and it goes on.

The strict model behind each test refuses what any provider might: pairs, order, empty parts, foreign reasoning.
"""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import msgspec
import pytest

from perdure.harness.hooks import Block
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import AssistantMessage, Thinking, ToolMessage, UserMessage, calls_of, text_of
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, call, cut, fail, hang, say, think
from perdure.testing.strict import StrictModel

pytestmark = pytest.mark.anyio


class Gates:
    """Three tools that return when the test says so, in the order that it says."""

    def __init__(self) -> None:
        self.open = {name: asyncio.Event() for name in "abc"}
        self.ran: list[str] = []
        self.tools = [self._tool(name) for name in "abc"]

    def _tool(self, name: str) -> Any:
        @tool(name=name)
        async def work() -> str:
            """Work."""
            self.ran.append(name)
            await self.open[name].wait()
            return f"result of {name}"

        return work


async def told(chat: Any) -> list[ToolMessage]:
    """The stored results, in call order."""
    found = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    return sorted(found, key=lambda message: [int(part) for part in message.call.split(".")])


def all_run(session: Any, count: int) -> bool:
    return sum(task.kind == "perdure.tool" and task.state == "running" for task in session.inspect().tasks) == count


# I05: identity is what a call is, whoever comes first
@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
async def test_parallel_calls_keep_their_identity_in_whatever_order_they_ran_before_a_crash_and_after_it(
    memory_world: Any, order: tuple[str, ...]
):
    world, gates = memory_world, Gates()
    script = by_prompt({"go": [answer(*(call(name) for name in "abc")), say("done")]})
    session = await world.open(script, *gates.tools)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: len(gates.ran) == 3)
    for count, name in enumerate(order[:2], 1):
        gates.open[name].set()
        await world.until(lambda left=3 - count: all_run(session, left))

    session = await world.restart()

    assert (await session.submission(sent.id).wait()).text == "done"
    found = await told(await session.conversation("a"))
    assert [message.name for message in found] == ["a", "b", "c"]
    last = order[2]
    assert [message.error for message in found] == ["interrupted" if name == last else None for name in "abc"]
    assert [message.text for message in found if message.error is None] == [
        f"result of {name}" for name in "abc" if name != last
    ]
    assert sorted(gates.ran) == ["a", "b", "c"]


# I11: not the conversation only, a fork of it too
async def test_a_conversation_that_died_inside_a_round_goes_on_and_so_does_a_fork_from_the_middle_of_it(world: Any):
    gates = Gates()
    script = by_prompt({"go": [answer(*(call(name) for name in "abc")), say("done")], "": say("fine")})
    session = await world.open(script, *gates.tools)
    chat = await session.conversation("a")
    await chat.submit("go")
    await world.until(lambda: len(gates.ran) == 3)
    gates.open["b"].set()
    await world.until(lambda: all_run(session, 2))
    session = await world.restart()
    chat = await session.conversation("a")
    asked, one_result = [entry async for entry in chat.history()][::-1][1:3]

    before_any, after_one = await chat.fork(asked.id), await chat.fork(one_result.id)

    for each in (chat, before_any, after_one):
        assert (await (await each.submit("continue")).wait()).text == "fine"
    assert [message.error for message in await told(chat)] == ["interrupted", None, "interrupted"]
    assert [message.name for message in await told(after_one)] == ["b"]
    assert len(gates.ran) == 3
    await world.close()  # the forks hold calls without results for good: only what is sent has all


# I12: stopped while arguments still come
async def test_a_call_whose_answer_was_stopped_before_its_end_never_runs_and_the_next_prompt_goes_on(memory_world: Any):
    world, gates = memory_world, Gates()
    half = answer(say("I look."), call("a", '{"path": "/ho'), hang())
    session = await world.open(by_prompt({"go": half, "": say("fine")}), *gates.tools)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.clock.advance(0.5)
    await world.running(chat.abort())

    assert (await sent.wait()).reason == "aborted"
    assert (await (await chat.submit("two")).wait()).text == "fine"
    assert gates.ran == []
    request = world.strict[-1].inner.requests[-1]
    assert not [each for message in request.messages for each in calls_of(message)]
    assert "I look." in text_of(request.messages[1])


# I13: the call first, then what became of it
async def test_a_denied_call_is_stored_with_its_denial_and_both_survive_a_restart(world: Any):
    async def deny(seen: Any) -> Block:
        return Block("not on a Sunday")

    gates = Gates()
    registry = Registry([Extension(name="x", tools=gates.tools, before_tool=[deny])])
    session = await world.open(by_prompt({"go": [call("a"), say("ok")], "": say("fine")}), registry=registry)
    await (await (await session.conversation("a")).submit("go")).wait()

    session = await world.restart()

    chat = await session.conversation("a")
    assert (await (await chat.submit("and now")).wait()).text == "fine"
    messages = world.strict[-1].inner.requests[-1].messages
    (asked,) = calls_of(messages[1])
    assert (asked.name, messages[2].error, messages[2].text) == ("a", "blocked", "not on a Sunday")
    assert gates.ran == []


# I14: order is the order of commits, whatever a clock says
async def test_results_follow_their_calls_though_the_clock_was_set_back_and_several_came_in_one_moment(world: Any):
    gates = Gates()
    script = by_prompt({"go": [answer(*(call(name) for name in "abc")), say("done")], "": say("fine")})
    session = await world.open(script, *gates.tools)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: len(gates.ran) == 3)
    world.clock.shift(-600.0)
    for name in "cab":
        gates.open[name].set()
    await sent.wait()
    world.clock.shift(-300.0)

    session = await world.restart()

    chat = await session.conversation("a")
    assert (await (await chat.submit("two")).wait()).text == "fine"
    found = [entry async for entry in chat.history()][::-1]
    assert [entry.id for entry in found] == sorted(entry.id for entry in found)
    assert [entry.kind.removeprefix("perdure.") for entry in found] == [
        *("user", "assistant", "tool_result", "tool_result", "tool_result", "assistant"),
        *("user", "assistant"),
    ]
    assert found[-1].at < found[0].at
    assert len({entry.at for entry in found[2:5]}) == 1


# I17: reasoning goes back to the model that it is from, whole, and to no other
async def test_reasoning_is_sent_to_its_own_model_only_and_only_when_it_is_complete(world: Any):
    first = ScriptedModel(lambda _: answer(think("deep", signature="s1"), say("from one")), name="one")
    second = ScriptedModel(lambda _: answer(think("wide", signature="s2"), say("from two")), name="two")
    one, two = StrictModel(first), StrictModel(second)
    session = await world.open(models={"one": one, "two": two})
    chat = await session.conversation("a")
    for model in ("one", "two", "one"):
        await chat.configure(model=model)
        await (await chat.submit(f"to {model}")).wait()

    def thoughts(model: ScriptedModel, at: int) -> list[Any]:
        messages = model.requests[at].messages
        parts = [part for message in messages if isinstance(message, AssistantMessage) for part in message.parts]
        return [(part.text, part.signature) for part in parts if isinstance(part, Thinking)]

    assert thoughts(second, 0) == []
    assert thoughts(first, 1) == [("deep", "s1")]
    assert one.violations == two.violations == []
    stored = [message async for entry in chat.history() for message in entry.messages]
    assert sum(isinstance(part, Thinking) for message in stored for part in getattr(message, "parts", ())) == 3


@pytest.mark.parametrize("end", [cut(), fail("retryable"), hang()], ids=["cut", "error", "abort"])
async def test_reasoning_that_was_cut_before_its_signature_is_not_sent_again(memory_world: Any, end: Any):
    world = memory_world  # I17
    half = answer(think("I was about to", complete=False), end)
    session = await world.open(by_prompt({"go": half, "": say("fine")}))
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.clock.advance(0.5)
    await world.running(chat.abort())
    await world.running(sent.wait())

    assert (await world.running((await chat.submit("two")).wait())).text == "fine"

    parts = [part for message in world.strict[-1].inner.requests[-1].messages for part in getattr(message, "parts", ())]
    assert not [part for part in parts if isinstance(part, Thinking)]


# I18
async def test_two_runs_send_the_same_bytes_whatever_order_their_results_came_in(memory_world: Any):
    world = memory_world
    sent_bytes: list[list[bytes]] = []
    script = by_prompt({"go": [answer(*(call(name, id=f"c{name}") for name in "abc")), say("done")], "": say("fine")})
    for order in ("abc", "cba", "bca"):
        gates = Gates()
        world.memory = type(world.memory)(clock=world.clock)  # a new store: the same ids again
        session = await world.open(script, *gates.tools)
        chat = await session.conversation("a")
        sent = await chat.submit("go")
        await world.until(lambda: len(gates.ran) == 3)  # noqa: B023
        for left, name in zip((2, 1, 0), order, strict=True):
            gates.open[name].set()
            await world.until(lambda: all_run(session, left))  # noqa: B023
        await sent.wait()
        await (await chat.submit("two")).wait()
        asked = world.strict[-1].inner.requests
        sent_bytes.append([msgspec.json.encode(request.messages) for request in asked])
        await world.close()
    assert sent_bytes[0] == sent_bytes[1] == sent_bytes[2]


# I21: provider ids are data
async def test_a_repeated_provider_id_settles_each_call_once_however_often_the_process_restarts(world: Any):
    gates = Gates()
    gates.open["a"].set()
    twice = answer(call("a", id="call_1"), call("b", id="call_1"))
    script = by_prompt({"go": [call("a", id="call_1"), twice, say("done")], "": say("fine")})
    session = await world.open(script, *gates.tools)
    sent = await (await session.conversation("a")).submit("go")
    await world.until(lambda: "b" in gates.ran and all_run(session, 1))
    session = await world.restart()
    asked = world.strict[-1].inner.asked
    await world.until(lambda: True)
    assert world.strict[-1].inner.asked == asked  # opening asks nobody anything

    session = await world.restart()

    assert (await session.submission(sent.id).wait()).text == "done"
    chat = await session.conversation("a")
    assert [(message.name, message.error) for message in await told(chat)] == [
        ("a", None),
        ("a", None),
        ("b", "interrupted"),
    ]
    assert (await (await chat.submit("two")).wait()).text == "fine"


# I25: what was seen of an answer is kept when the provider fails for good, too
async def test_text_that_was_streamed_before_a_final_error_is_kept_and_offered_to_the_model(memory_world: Any):
    world = memory_world
    session = await world.open(by_prompt({"go": answer(say("fifty words"), fail("auth")), "": say("fine")}))
    chat = await session.conversation("a")
    ended = await world.running((await chat.submit("go")).wait())
    assert ended.reason != "aborted"

    assert (await world.running((await chat.submit("two")).wait())).text == "fine"

    messages = world.strict[-1].inner.requests[-1].messages
    assert [type(message) for message in messages][:2] == [UserMessage, AssistantMessage]
    assert "fifty words" in text_of(messages[1])


# I26: a stopped turn is part of the conversation
async def test_what_an_aborted_turn_had_finished_is_in_the_requests_of_the_next(memory_world: Any):
    world, gates = memory_world, Gates()
    gates.open["a"].set()
    turn = [say("first answer")], [call("a"), answer(say("so far"), hang())], [say("third answer")]
    session = await world.open(by_prompt({"one": turn[0], "two": turn[1], "three": turn[2]}), *gates.tools)
    chat = await session.conversation("a")
    await (await chat.submit("one")).wait()
    await chat.submit("two")
    await world.clock.advance(0.5)
    await world.running(chat.abort())

    await (await chat.submit("three")).wait()

    texts = [text_of(message) for message in world.strict[-1].inner.requests[-1].messages]
    assert texts[:2] == ["one", "first answer"]
    assert texts[2:5] == ["two", "", "result of a"]
    assert texts[5].startswith("so far")
    assert texts[-1] == "three"
