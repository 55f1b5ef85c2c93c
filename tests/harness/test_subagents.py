"""Foreground sub-agents: a call delegates, waits as a task, and answers with what its sub-agent said (H29, H42)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.harness.conftest import entries, results

from perdure.errors import UsageError
from perdure.extensions.subagents import Profile, subagents
from perdure.harness.handover import WaitFor
from perdure.harness.harness import RequestLimits, Settings
from perdure.harness.registry import Extension, Registry, tool
from perdure.harness.submissions import NotAnswered
from perdure.messages import text_of
from perdure.testing.scripted import answer, by_prompt, call, fail, hang, say, wait

pytestmark = pytest.mark.anyio


def delegate(text: str, **more: Any) -> Any:
    return call("agent", {"task": text, **more})


NESTED = {
    "go": [delegate("upper"), say("all done")],
    "upper": [answer(delegate("left"), delegate("right")), say("upper done")],
    "left": say("left done"),
    "right": say("right done"),
}


async def opened(world: Any, script: Any, *profiles: Profile, seconds: float | None = None, **options: Any) -> Any:
    registry = Registry([subagents(profiles, seconds=seconds)])
    session = await world.open(by_prompt(script), registry=registry, **options)
    return await session.conversation("a")


async def children(world: Any) -> list[Any]:
    return [each for each in await world.session.conversations(limit=100) if each.owner is not None]


@pytest.mark.invariant("SA-1")
async def test_a_call_answers_with_what_its_sub_agent_said_at_any_depth(world: Any):
    chat = await opened(world, NESTED)
    done = await (await chat.submit("go")).wait()

    assert done.text == "all done"
    assert [result.text for result in await results(chat)] == ["upper done"]
    assert len(await children(world)) == 3
    assert world.session.inspect().tasks == []


@pytest.mark.invariant("SA-1")
async def test_the_answer_of_a_sub_agent_its_call_s_result_and_the_next_request_are_one_commit(memory_world: Any):
    world = memory_world
    chat = await opened(world, NESTED)
    kinds: list[list[str]] = []
    world.session.observe(
        lambda change: kinds.append([entry.kind.removeprefix("perdure.") for entry in change.entries])
    )
    await (await chat.submit("go")).wait()

    assert ["assistant", "tool_result"] in kinds
    assert len(kinds) == 13  # nothing waits for a commit of its own to learn that something below it ended


@pytest.mark.invariant("SA-2")
async def test_wherever_the_process_dies_each_sub_agent_is_made_once_and_goes_on(memory_world: Any):
    world = memory_world
    asked: list[int] = []
    for crash_after in range(1, 20):
        chat = await opened(world, NESTED)
        chat = await world.session.conversation(f"run {crash_after}")
        seen: list[int] = []
        world.session.observe(lambda change, seen=seen: seen.append(change.seq))
        before = len(await children(world))
        sent = await chat.submit("go", request_id="go")
        await world.until(lambda seen=seen, at=crash_after: len(seen) >= at or not world.session.inspect().tasks)
        finished = not world.session.inspect().tasks
        await world.crash()
        await world.reopen()
        chat = await world.session.find(chat.id)
        done = await world.running(world.session.submission(sent.id).wait())

        assert done.text == "all done"
        assert len(await children(world)) - before == 3
        assert [each.kind for each in await entries(chat)].count("perdure.tool_result") == 1
        assert world.session.inspect().tasks == []
        await world.close()
        if finished:
            break
        asked.append(crash_after)
    assert len(asked) > 10


@pytest.mark.invariant("SA-3")
@pytest.mark.parametrize("how", ["conversation", "run", "tool"])
async def test_an_abort_stops_sub_agents_bottom_up_and_waits_for_them(world: Any, how: str):
    ended: list[str] = []

    @tool
    async def work() -> str:
        """Work until told to stop."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")
        return "never"

    script = by_prompt({"go": [delegate("upper"), say("went on")], "upper": delegate("lower"), "lower": call("work")})
    registry = Registry([subagents(), Extension(name="test", tools=[work])])
    session = await world.open(script, registry=registry)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: any(each.label == "work" and each.begun for each in session.inspect().tasks))
    order: list[int] = []
    session.observe(lambda change: order.extend(id for id, task in change.tasks.items() if not task.live))
    run, outermost = [each.id for each in session.inspect().tasks][:2]
    below = session.subtree(run)
    if how == "conversation":
        await world.running(chat.abort())
    else:
        await world.running(session.abort_task({"run": run, "tool": outermost}[how]))
    assert ended == ["work"]
    assert [id for id in order if id in below] == sorted(below, reverse=True)
    settled = await sent.wait()

    assert session.inspect().tasks == []
    assert session.inspect().submissions == []
    assert (settled.text if how == "tool" else settled.reason) == ("went on" if how == "tool" else "aborted")
    assert [result.error for result in await results(chat)] == ["aborted"]


@pytest.mark.invariant("SA-4")
async def test_a_sub_agent_that_gives_no_answer_is_an_error_result_that_says_why(world: Any):
    chat = await opened(world, {"go": [delegate("broken"), say("I see")], "broken": fail("auth", message="no key")})
    assert (await (await chat.submit("go")).wait()).text == "I see"
    (result,) = await results(chat)

    assert result.error == "tool_error"
    assert "model_error" in result.text
    assert "no key" in result.text


@pytest.mark.invariant("SA-4")
async def test_a_sub_agent_has_no_time_limit_of_30_seconds_but_may_have_one_of_its_own(memory_world: Any):
    world = memory_world
    gate = asyncio.Event()
    script = {
        "go": [answer(delegate("slow", profile="free"), delegate("slow", profile="bound")), say("went on")],
        "slow": answer(say("I think"), wait(gate)),
    }
    profiles = (Profile(name="free"), Profile(name="bound", seconds=100.0))
    limits = RequestLimits(first_byte=1e6, progress=1e6, total=1e6)
    chat = await opened(world, script, *profiles, limits=limits)
    sent = await chat.submit("go")
    await world.until(lambda: len([each for each in world.session.inspect().tasks if each.phase == "collect"]) == 2)
    await world.clock.advance(90.0)
    chat = await (await world.restart()).find(chat.id)
    await world.session.resume()
    await world.until(lambda: [each.on for each in world.session.inspect().tasks if each.phase == "collect"])
    await world.clock.advance(11.0)
    await world.until(lambda: len([each for each in world.session.inspect().tasks if each.phase == "collect"]) == 1)
    gate.set()

    assert (await world.running(world.session.submission(sent.id).wait())).text == "went on"
    assert [result.error for result in await results(chat)] == [None, "timeout"]


@pytest.mark.invariant("SA-5")
async def test_sub_agents_are_nested_no_deeper_than_the_settings_say(world: Any):
    deep = {f"level {at}.": [delegate(f"level {at + 1}."), say(f"back at {at}")] for at in range(5)}
    chat = await opened(world, deep, settings=Settings(max_depth=2))
    done = await (await chat.submit("level 0.")).wait()
    deepest = await world.session.find((await children(world))[0].id)
    (refused,) = await results(deepest)

    assert done.text == "back at 0"
    assert len(await children(world)) == 2
    assert refused.error == "tool_error"
    assert "max_depth is 2" in refused.text


@pytest.mark.invariant("SA-5")
async def test_no_more_sub_agents_work_at_a_time_than_the_settings_say(world: Any):
    gate = asyncio.Event()
    script = {"go": [answer(*[delegate("slow")] * 4), say("done")], "slow": answer(wait(gate), say("late"))}
    chat = await opened(world, script, settings=Settings(max_children=3))
    sent = await chat.submit("go")
    await world.until(lambda: [each.phase for each in world.session.inspect().tasks].count("collect") == 3)
    gate.set()

    assert (await sent.wait()).text == "done"
    told = [result.text for result in await results(chat)]
    assert told[:3] == ["late"] * 3
    assert "max_children" in told[3]


@pytest.mark.invariant("SA-10")
async def test_nested_sub_agents_finish_with_any_number_of_permits(world: Any):
    # I70: parents hold all slots while they wait for children
    wide = {f"level {at}.": [answer(*[delegate(f"level {at + 1}.")] * 2), say(f"back at {at}")] for at in range(3)}
    await opened(world, {**wide, "level 3.": say("bottom")}, limits=RequestLimits(at_once=1))
    done = [await (await world.session.conversation(f"parent {at}")).submit("level 0.") for at in range(3)]

    assert [(await world.running(each.wait())).text for each in done] == ["back at 0"] * 3
    assert len(await children(world)) == 3 * (2 + 4 + 8)
    assert world.session.inspect().tasks == []


@pytest.mark.invariant("SA-6")
async def test_a_profile_says_what_a_sub_agent_is_and_the_rest_it_has_from_its_parent(world: Any):
    profiles = [Profile(name="poet", description="rhymes", instructions="You rhyme."), Profile(name="plain")]
    script = {"go": [answer(delegate("ode", profile="poet"), delegate("ode")), say("done")], "ode": say("an ode")}
    chat = await opened(world, script, *profiles, instructions="You help.")
    await chat.configure(max_rounds=7, tools=["agent"])
    await (await chat.submit("go")).wait()
    first, second = [await world.session.find(each.id) for each in (await children(world))[::-1]]
    requests = world.strict[-1].inner.requests
    offered = next(spec for spec in requests[0].tools if spec.name == "agent")

    assert [(await each.settings()).instructions for each in (first, second)] == ["You rhyme.", "You rhyme."]
    assert (await second.settings()).max_rounds == 7
    assert offered.parameters["properties"]["profile"]["enum"] == ["poet", "plain"]
    assert "poet: rhymes" in str(offered.parameters["properties"]["profile"])
    assert [spec.name for spec in requests[1].tools] == ["agent"]
    assert (await first.record()).title == "poet"


def test_two_profiles_cannot_have_one_name_and_a_limit_is_more_than_nothing():
    with pytest.raises(UsageError, match="one name"):
        subagents([Profile(name="a"), Profile(name="a")])
    with pytest.raises(UsageError, match="more than 0"):
        subagents(seconds=0)


@pytest.mark.invariant("SA-9")
async def test_what_a_sub_agent_left_in_the_background_ends_with_its_call(world: Any):
    script = {
        "go": [delegate("careless"), say("done")],
        "careless": [call("agent_start", {"task": "endless"}), say("started one")],
        "endless": answer(say("on and on"), hang()),
    }
    chat = await opened(world, script)
    done = await (await chat.submit("go")).wait()
    assert done.text == "done"
    await world.running(world.session.wait_idle(background=True))

    assert world.session.inspect().tasks == []


@pytest.mark.invariant("SA-1")
async def test_usage_of_a_sub_agent_is_its_conversation_s(world: Any):
    chat = await opened(world, {"go": [delegate("count"), say("done")], "count": say("three")})
    await (await chat.submit("go")).wait()
    (child,) = await children(world)

    assert (await (await world.session.find(child.id)).usage())["models"]["scripted"]["requests"] == 1
    assert (await chat.usage())["models"]["scripted"]["requests"] == 2


async def test_an_input_below_a_call_that_is_stopped_is_settled(world: Any):
    script = {"go": delegate("slow"), "slow": answer(say("hm"), hang()), "more": say("never")}
    chat = await opened(world, script)
    await chat.submit("go")
    await world.until(lambda: [each for each in world.session.inspect().tasks if each.phase == "collect"])
    (child,) = await children(world)
    more = await (await world.session.find(child.id)).submit("more")
    await world.running(chat.abort())

    assert isinstance(await more.wait(), NotAnswered)
    assert all("more" not in text_of(request.messages[-1]) for request in world.strict[-1].inner.requests)


@tool(replay="safe")
async def confirm(call: Any, what: str) -> WaitFor:
    """Ask a person."""
    return WaitFor([await call.once("ask", lambda tx: tx.ask({"confirm": what}))])


@pytest.mark.invariant("SA-2")
async def test_a_question_below_a_sub_agent_is_answered_through_the_parent_after_a_restart(world: Any):
    # I10: child state is not persisted, so resume cannot find it
    script = {
        "go": [delegate("careful"), say("all done")],
        "careful": [call("confirm", {"what": "delete it"}), say("deleted")],
    }
    registry = Registry([subagents(), Extension(name="test", tools=[confirm])])
    session = await world.open(by_prompt(script), registry=registry)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: session.inspect().questions)
    session = await world.restart()
    chat = await session.find(chat.id)
    (question,) = await chat.questions()
    await question.answer(True, by="ann")

    assert (await session.submission(sent.id).wait()).text == "all done"
    asked = [result.text for each in await children(world) for result in await results(await session.find(each.id))]
    assert asked == ['{"answer":true,"by":"ann"}']
