"""Background agents: they outlive runs and aborts, answer into their conversation once, and are stopped by name (H29,
K30)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.harness.conftest import entries, messages, results

from perdure.errors import NotFound, TaskRefused, UsageError
from perdure.extensions.subagents import subagents
from perdure.harness.agents import KEPT
from perdure.harness.harness import Settings
from perdure.harness.registry import Registry
from perdure.messages import text_of
from perdure.testing.scripted import answer, by_prompt, call, fail, hang, say, wait

pytestmark = pytest.mark.anyio


async def opened(world: Any, script: Any, **options: Any) -> Any:
    session = await world.open(by_prompt(script), registry=Registry([subagents()]), **options)
    return await session.conversation("a")


async def said(chat: Any) -> list[str]:
    """What agents told the conversation, in the order of its entries."""
    texts = [text_of(message) for message in await messages(chat)]
    return [text for text in texts if text.startswith("[Agent ")]


@pytest.mark.invariant("SA-20")
async def test_an_agent_answers_into_its_conversation_and_wakes_it(world: Any):
    chat = await opened(world, {"[Agent": say("I see"), "count": say("three")})
    agent = await chat.agents.start("count")
    await world.running(chat.wait_idle(background=True))

    assert await said(chat) == [f"[Agent {agent.id} (agent) answered]\nthree"]
    assert text_of((await messages(chat))[-1]) == "I see"
    assert [each.state for each in await chat.agents.list()] == ["idle"]


@pytest.mark.invariant("SA-20")
async def test_by_setting_an_answer_is_an_entry_that_wakes_nobody(world: Any):
    chat = await opened(world, {"count": say("three"), "hello": say("hi")}, settings=Settings(agent_wakes=False))
    agent = await chat.agents.start("count")
    (after,) = await world.running(chat.agents.wait())
    assert (after.id, after.state, chat.busy) == (agent.id, "idle", False)
    assert [entry.kind for entry in await entries(chat)] == ["perdure.agent_said"]
    await (await chat.submit("hello")).wait()

    shown = world.strict[-1].inner.requests[-1].messages
    assert [text_of(message) for message in shown] == [f"[Agent {agent.id} (agent) answered]\nthree", "hello"]


@pytest.mark.invariant("SA-21")
async def test_wherever_the_process_dies_each_answer_is_posted_once(memory_world: Any):
    world = memory_world
    script = {"go": [call("agent_start", {"task": "count"}), say("started")], "[Agent": say("I see")}
    crashed = 0
    for crash_after in range(1, 20):
        await opened(world, {**script, "count": say("three")})
        chat = await world.session.conversation(f"run {crash_after}")
        seen: list[int] = []
        world.session.observe(lambda change, seen=seen: seen.append(change.seq))
        await chat.submit("go", request_id="go")

        def over() -> bool:
            return len(seen) >= crash_after or world.session._harness.scheduler.idle(background=True)  # noqa: B023

        await world.until(over)
        finished = len(seen) < crash_after
        await world.crash()
        await world.reopen()
        chat = await world.session.find(chat.id)
        await world.running(world.session.wait_idle(background=True))

        assert len(await said(chat)) == 1
        assert len(await chat.agents.list()) == 1
        assert [text_of(message) for message in await messages(chat)].count("I see") == 1
        await world.close()
        if finished:
            break
        crashed += 1
    assert crashed >= 5


@pytest.mark.invariant("SA-21")
@pytest.mark.parametrize("seconds", [0.0, 0.05, 5.0])
async def test_an_agent_that_ends_after_the_turn_wakes_its_conversation_once(memory_world: Any, seconds: float):
    # I71: the wake-up is lost between "agent idle" and "background job ended"
    world = memory_world
    gate = asyncio.Event()
    script = {
        "go": [call("agent_start", {"task": "slow"}), say("started")],
        "slow": answer(wait(gate), say("at last")),
        "[Agent": say("I see"),
    }
    chat = await opened(world, script)
    assert (await (await chat.submit("go")).wait()).text == "started"
    assert not world.session._harness.scheduler.idle(background=True)
    if seconds:
        await world.clock.advance(seconds)
    gate.set()
    await world.running(world.session.wait_idle(background=True))

    assert len(await said(chat)) == 1
    assert text_of((await messages(chat))[-1]) == "I see"


@pytest.mark.invariant("SA-22")
async def test_an_agent_outlives_the_run_that_started_it_and_an_abort_and_a_restart(world: Any):
    gate = asyncio.Event()
    script = {
        "go": [call("agent_start", {"task": "slow"}), answer(say("hm"), hang())],
        "slow": answer(wait(gate), say("at last")),
        "[Agent": say("I see"),
    }
    chat = await opened(world, script)
    await chat.submit("go")
    await world.until(lambda: [each for each in world.session.inspect().tasks if each.kind == "perdure.agent"])
    await world.running(chat.abort())
    (agent,) = await chat.agents.list()
    assert agent.state == "working"
    chat = await (await world.restart()).find(chat.id)
    assert (await chat.agents.find(agent.id)).state == "working"
    gate.set()
    await world.running(chat.agents.wait([agent.id]))

    assert len(await said(chat)) == 1


@pytest.mark.invariant("SA-22")
@pytest.mark.parametrize("how", ["stop", "abort", "task"])
async def test_a_stop_reaches_all_below_an_agent_and_waits_for_it(world: Any, how: str):
    # I68: children outlive the parent; I69: a child is recorded as running for ever
    script = {
        "outer": [call("agent_start", {"task": "inner"}), call("agent", {"task": "inner"})],
        "inner": answer(say("on and on"), hang()),
        "hello": say("hi"),
    }
    chat = await opened(world, script)
    agent = await chat.agents.start("outer")
    await world.until(lambda: len([each for each in world.session.inspect().tasks if each.phase == "request"]) == 2)
    if how == "stop":
        after = await world.running(chat.agents.stop(agent.id))
        assert after.state == "ended"
    elif how == "abort":
        await world.running(chat.abort(background=True))
    else:
        await world.running(world.session.abort_task(agent.id, "no more"))
        await world.running(world.session.wait_idle(background=True))

    assert world.session.inspect().tasks == []
    assert world.session.inspect().submissions == []
    assert await chat.agents.list() == []
    assert (await chat.agents.find(agent.id)).state == "ended"
    assert len(await said(chat)) == (0 if how == "stop" else 1)


@pytest.mark.invariant("SA-23")
async def test_an_agent_can_be_told_more_and_steered_and_each_message_is_answered(world: Any):
    gate = asyncio.Event()
    script = {
        "first": [answer(wait(gate), call("agent_list")), say("never asked")],
        "between": say("steered"),
        "then": say("second answer"),
    }
    chat = await opened(world, script, settings=Settings(agent_wakes=False))
    agent = await chat.agents.start("first")
    await chat.agents.send(agent.id, "then")
    told = await chat.agents.send(agent.id, "between", when_busy="steer")
    assert told.waiting == 3
    gate.set()
    (after,) = await world.running(chat.agents.wait())

    assert after.waiting == 0
    assert sorted(each.split("\n")[1] for each in await said(chat)) == ["second answer", "steered", "steered"]


@pytest.mark.invariant("SA-23")
async def test_a_message_behind_a_run_that_failed_is_still_answered(world: Any):
    gate = asyncio.Event()
    script = {"first": answer(wait(gate), fail("auth", message="no key")), "then": say("fine")}
    chat = await opened(world, script, settings=Settings(agent_wakes=False))
    agent = await chat.agents.start("first")
    await chat.agents.send(agent.id, "then")
    gate.set()
    await world.running(chat.agents.wait())

    assert [each.split("]")[0].split(") ")[1][:20] for each in await said(chat)] == [
        "gave no answer: model"[:20],
        "answered",
    ]


@pytest.mark.invariant("SA-24")
async def test_only_so_many_agents_work_at_a_time_and_those_that_rest_give_way(world: Any):
    gate = asyncio.Event()
    script = {"slow": answer(wait(gate), say("late")), "quick": say("done")}
    chat = await opened(world, script, settings=Settings(max_children=1, agent_wakes=False))
    for _ in range(KEPT + 2):
        await chat.agents.start("quick")
        await world.running(chat.agents.wait())
    resting = await chat.agents.list()
    await chat.agents.start("slow")
    with pytest.raises(TaskRefused, match="max_children"):
        await chat.agents.start("slow")
    with pytest.raises(TaskRefused, match="max_children"):
        await chat.agents.send(resting[-1].id, "quick")
    gate.set()

    assert len(resting) == KEPT
    assert len([each for each in await said(chat) if "nothing to do" in each]) >= 2


async def test_what_is_asked_of_an_agent_that_is_not_there_is_refused_by_name(world: Any):
    chat = await opened(world, {"quick": say("done")}, settings=Settings(agent_wakes=False))
    other = await world.session.conversation("other")
    agent = await chat.agents.start("quick")
    await world.running(chat.agents.wait(seconds=5))
    await chat.agents.stop(agent.id)

    with pytest.raises(NotFound, match="there are: none"):
        await chat.agents.find(99_999)
    with pytest.raises(NotFound):
        await other.agents.find(agent.id)
    with pytest.raises(TaskRefused, match="ended"):
        await chat.agents.send(agent.id, "more")
    with pytest.raises(UsageError, match="from 0 up"):
        await chat.agents.wait(seconds=-1)


async def test_a_wait_with_a_time_limit_says_who_still_works_and_cancels_nothing(memory_world: Any):
    world = memory_world
    chat = await opened(world, {"slow": answer(say("hm"), hang())})
    await chat.agents.start("slow")
    (after,) = await world.running(chat.agents.wait(seconds=3.0))

    assert (after.state, after.waiting) == ("working", 1)
    assert (await chat.agents.list())[0].state == "working"


async def test_models_start_tell_wait_for_read_and_stop_agents(world: Any):
    script = {
        "[Agent": say("I see"),
        "go": [
            call("agent_start", {"task": "count"}),
            call("agent_wait", {"seconds": 60}),
            lambda request: _then(request),
        ],
        "count": say("three"),
        "more": say("four"),
    }
    steps = iter(["agent_send", "agent_list", "agent_read", "agent_stop", "agent_list"])

    def _then(request: Any) -> Any:
        step = next(steps, None)
        number = next(int(text.split()[1]) for text in map(text_of, request.messages) if text.startswith("[agent "))
        given: dict[str, Any] = {} if step == "agent_list" else {"agent": number}
        if step is None:
            return say("all done")
        return call(step, {**given, "message": "more", "steer": False} if step == "agent_send" else given)

    script["[Agent"] = lambda request: _then(request)
    chat = await opened(world, script)
    await chat.submit("go")
    await world.running(chat.wait_idle(background=True))
    told = [result.text for result in await results(chat)]

    assert [result.error for result in await results(chat)] == [None] * len(told)
    assert "works; its answer comes into this conversation" in told[0]
    assert "(agent): idle" in told[1]
    assert any("agent: three" in text and "user: count" in text for text in told)
    assert any("ended" in text for text in told)
    assert told[-1] == "[no agents]"
