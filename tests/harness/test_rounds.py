"""A round: one answer, its calls, their results; and what it costs (H18, H22, I18)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.harness.harness import Settings
from perdure.harness.hooks import Block
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import ToolMessage, call_key, calls_of
from perdure.storage import Batch, Claim
from perdure.testing.faults import Relay
from perdure.testing.scripted import answer, by_prompt, by_round, call, say

pytestmark = pytest.mark.anyio


class Counting(Relay):
    """A storage that counts the commits that it is given."""

    commits = 0

    def commit(self, claim: Claim, batch: Batch) -> Any:
        self.commits += 1
        return self.inner.commit(claim, batch)


@tool
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


@tool(sequential=True)
async def turn(n: int = 0) -> str:
    """In turn."""
    return f"turned {n}"


async def cost_of_a_round(world: Any, calls: int, *tools: Any, registry: Registry | None = None) -> float:
    """Commits of a run of two rounds less those of a run without a round; progress commits do not happen here."""
    world.wrap = Counting
    names = [tools[index % len(tools)].name for index in range(calls)]
    round = answer(*(call(name, {"n": index}) for index, name in enumerate(names)))
    script = by_prompt({"none": [say("ok")], "two": [round, round, say("ok")]})
    session = await world.open(script, *tools, registry=registry)
    spent: list[int] = []
    for text in ("none", "two"):
        chat = await session.conversation(text)
        before = world.storage.commits
        await (await chat.submit(text)).wait()
        spent.append(world.storage.commits - before)
    return (spent[1] - spent[0]) / 2


@pytest.mark.invariant("HA-10")
@pytest.mark.parametrize("calls", [1, 2, 5, 20])
@pytest.mark.parametrize("tools", [(look,), (turn,), (look, turn)], ids=["parallel", "sequential", "both"])
async def test_a_round_of_n_calls_costs_at_most_1_and_n_commits(world: Any, calls: int, tools: Any):
    """H18 allows one more: the next request is pinned in the commit of the last result."""
    assert await cost_of_a_round(world, calls, *tools) <= 1 + calls


async def test_a_hook_costs_one_commit_a_call_more(world: Any):
    async def pass_all(call: Any) -> None:
        return None

    registry = Registry([Extension(name="x", tools=[look], before_tool=[pass_all])])
    assert await cost_of_a_round(world, 3, look, registry=registry) <= 1 + 3 + 3


async def test_refused_calls_cost_no_commit_of_their_own(world: Any):
    world.wrap = Counting
    bad = answer(call("no_such"), call("look", "{"), call("look", {"n": "x"}))
    session = await world.open(by_round(bad, say("ok")), look)
    chat = await session.conversation("a")
    before = world.storage.commits
    await (await chat.submit("one")).wait()
    assert world.storage.commits - before <= 4  # with the one that resumes the session


@pytest.mark.invariant("HA-11")
async def test_results_are_stored_as_they_come_and_sent_in_call_order(world: Any):
    """I18, I5: the same bytes on every repetition."""
    gates = [asyncio.Event() for _ in range(3)]

    @tool
    async def slow(n: int) -> str:
        """Wait."""
        await gates[n].wait()
        return f"result {n}"

    round = answer(*(call("slow", {"n": n}) for n in range(3)))
    session = await world.open(by_round(round, say("ok")), slow)
    chat = await session.conversation("a")
    sent = await chat.submit("one")
    await world.until(lambda: sum(task.kind == "perdure.tool" for task in session.inspect().tasks) == 3)
    for n in (2, 0, 1):
        gates[n].set()
        await world.until(lambda left=n: len(session.inspect().tasks) < 4 or left)
    await sent.wait()

    asked = world.strict[-1].inner.requests[-1].messages
    told = [message.text for message in asked if isinstance(message, ToolMessage)]
    assert told == ["result 0", "result 1", "result 2"]


async def test_calls_of_a_round_run_at_the_same_time(world: Any):
    here = 0
    all_here = asyncio.Event()

    @tool
    async def meet() -> str:
        """Meet the others."""
        nonlocal here
        here += 1
        if here == 4:
            all_here.set()
        await all_here.wait()
        return "met"

    session = await world.open(by_round(answer(*[call("meet")] * 4), say("ok")), meet)
    assert (await (await (await session.conversation("a")).submit("one")).wait()).text == "ok"


@pytest.mark.parametrize("by", ["tool", "settings"])
async def test_sequential_calls_run_one_after_another_in_call_order(world: Any, by: str):
    trace: list[str] = []

    @tool(sequential=by == "tool")
    async def step(n: int) -> str:
        """One step."""
        trace.append(f"+{n}")
        for _ in range(3):
            await asyncio.sleep(0)
        trace.append(f"-{n}")
        return "ok"

    round = answer(*(call("step", {"n": n}) for n in range(3)))
    session = await world.open(by_round(round, say("ok")), step, settings=Settings(sequential=by == "settings"))
    await (await (await session.conversation("a")).submit("one")).wait()
    assert trace == ["+0", "-0", "+1", "-1", "+2", "-2"]


async def test_a_sequential_call_runs_though_the_one_before_it_failed(world: Any):
    ran: list[int] = []

    @tool(sequential=True)
    async def step(n: int) -> str:
        """One step."""
        ran.append(n)
        if n == 0:
            raise RuntimeError("no")
        return "ok"

    round = answer(call("step", {"n": 0}), call("step", {"n": 1}))
    session = await world.open(by_round(round, say("ok")), step)
    await (await (await session.conversation("a")).submit("one")).wait()
    assert ran == [0, 1]


async def test_200_calls_in_one_answer_all_have_their_result(world: Any):
    session = await world.open(by_round(answer(*(call("look", {"n": n}) for n in range(200))), say("ok")), look)
    chat = await session.conversation("a")
    assert (await (await chat.submit("one")).wait()).text == "ok"
    texts = {entry.messages[0].text async for entry in chat.history() if entry.kind == "perdure.tool_result"}
    assert texts == {f"saw {n}" for n in range(200)}


async def test_the_tasks_of_a_round_are_owned_by_its_run_and_live_shows_their_slots(world: Any):
    """H10, H42."""
    gate = asyncio.Event()

    @tool
    async def held(call: Any) -> str:
        """Wait."""
        await gate.wait()
        return "ok"

    session = await world.open(by_round(answer(call("held"), call("held")), say("ok")), held)
    chat = await session.conversation("a")
    sent = await chat.submit("one")
    await world.until(lambda: sum(task.state == "running" for task in session.inspect().tasks) == 2)
    tasks = session.inspect().tasks
    run = next(task for task in tasks if task.kind == "perdure.generation")
    assert {task.owner for task in tasks if task.kind == "perdure.tool"} == {run.id}
    live = await chat.live()
    assert live is not None
    assert sorted(live["tools"]) == [str(task.id) for task in tasks if task.kind == "perdure.tool"]
    assert {slot["name"] for slot in live["tools"].values()} == {"held"}
    gate.set()
    await sent.wait()
    assert await chat.live() is None


async def test_the_identity_of_a_call_is_its_answer_and_its_position(world: Any):
    """I21: a provider that repeats its ids disturbs nobody."""
    ids: list[str] = []

    @tool
    async def note(call: Any) -> str:
        """Note."""
        ids.append(call.id)
        return "ok"

    twice = answer(call("note", id="call_1"), call("note", id="call_1"))
    session = await world.open(by_round(twice, twice, say("ok")), note)
    chat = await session.conversation("a")
    await (await chat.submit("one")).wait()
    assert len(set(ids)) == 4
    wanted = [
        call_key(entry.id, index) async for entry in chat.history() for index in range(len(calls_of(entry.messages[0])))
    ]
    assert sorted(ids) == sorted(wanted)


async def test_a_blocked_call_leaves_its_siblings_alone(world: Any):
    async def block_one(call: Any) -> Block | None:
        return Block("not today") if call.arguments["n"] == 1 else None

    registry = Registry([Extension(name="x", tools=[look], before_tool=[block_one])])
    session = await world.open(
        by_round(answer(call("look", {"n": 0}), call("look", {"n": 1})), say("ok")), registry=registry
    )
    chat = await session.conversation("a")
    await (await chat.submit("one")).wait()
    found = {
        entry.messages[0].text: entry.messages[0].error
        async for entry in chat.history()
        if entry.data and "call" in entry.data
    }
    assert found == {"saw 0": None, "not today": "blocked"}
