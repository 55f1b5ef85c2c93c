"""Stopping reaches everything that a run started, and what was accepted runs once, in its order."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import AlreadyAnswered, SessionClosed
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import text_of
from perdure.records import Placed
from perdure.sandboxes.local import LocalSandbox
from perdure.testing.faults import Failing
from perdure.testing.processes import descendants
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, by_round, call, say, wait
from perdure.tools.builtins import BUILTINS

pytestmark = pytest.mark.anyio


def tools_that_run(session: Any) -> int:
    return sum(task.kind == "perdure.tool" and task.state == "running" for task in session.inspect().tasks)


async def inputs(chat: Any) -> list[str]:
    found = [entry.messages[0].parts[0].text async for entry in chat.history() if entry.kind == "perdure.user"]
    return found[::-1]


# I23: the abort returns when nothing works any more
async def test_an_abort_returns_only_when_every_tool_coroutine_has_ended(memory_world: Any):
    world = memory_world
    ticks: list[float] = []
    ended: list[str] = []

    @tool(timeout=100)
    async def tick(call: Any) -> str:
        """Tick for ever."""
        try:
            while True:
                ticks.append(world.clock.now())
                await world.clock.sleep(0.1)
        finally:
            await world.clock.sleep(0.5)  # it takes its time to stop
            ended.append("tool")

    session = await world.open(by_prompt({"go": answer(call("tick"), call("tick"))}), tick)
    chat = await session.conversation("a")
    await chat.submit("go")
    await world.clock.advance(1.0)
    assert len(ticks) > 10
    await world.running(chat.abort())

    assert ended == ["tool", "tool"]
    seen = len(ticks)
    await world.clock.advance(5.0)
    assert len(ticks) == seen


@pytest.mark.slow
async def test_an_abort_returns_only_when_every_process_of_a_command_has_ended(memory_world: Any, tmp_path: Path):
    world = memory_world  # I23
    looping = "echo begun; (while :; do date >>ticks; sleep .05; done) & wait"
    sandbox = LocalSandbox(str(tmp_path))
    registry = Registry([Extension(name="tools", tools=BUILTINS)])
    script = by_prompt({"go": call("bash", {"command": looping})})
    session = await world.open(script, registry=registry, sandbox=sandbox)
    chat = await session.conversation("a")
    before = {each.pid for each in descendants(os.getpid())}
    await chat.submit("go")
    ticks = tmp_path / "ticks"
    await world.until(ticks.exists)
    assert len({each.pid for each in descendants(os.getpid())} - before) > 1

    await chat.abort()  # no time passes for the session, whose grace is not the kernel's

    left = [each for each in descendants(os.getpid()) if each.pid not in before]
    assert [each for each in left if "ticks" in each.read_command()] == []
    (result,) = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    assert result.error == "aborted"
    assert "begun" in result.text


# I28: a question does not outlive the turn that asked it
async def test_an_abort_takes_the_open_question_back_and_a_late_answer_is_told_so(world: Any):
    went_on: list[Any] = []

    @tool(timeout=1000)
    async def ask(call: Any) -> str:
        """Ask a person."""
        async with call.commit() as tx:
            question = tx.ask({"may I": "delete it"})
        went_on.append(await session.wait_task(question.id))
        return "answered"

    session = await world.open(by_prompt({"go": call("ask"), "": say("fine")}), ask)
    chat = await session.conversation("a")
    await chat.submit("go")
    await world.until(lambda: chat.questions())
    (question,) = await chat.questions()
    await world.running(chat.abort())

    assert await chat.questions() == []
    with pytest.raises(AlreadyAnswered, match="no longer pending"):
        await session.answer(question.id, "allow")
    assert went_on == []
    assert (await (await chat.submit("two")).wait()).text == "fine"


# I30: accepted means that it runs, also through a restart in order
async def test_messages_accepted_while_busy_run_once_and_in_order_after_a_close_in_the_middle(world: Any):
    gate = asyncio.Event()
    session = await world.open(by_prompt({"zero": answer(wait(gate), say("never"))}))
    chat = await session.conversation("a")
    accepted = [await chat.submit(text) for text in ("zero", "one", "two", "three")]
    await world.close()
    with pytest.raises(SessionClosed):
        await chat.submit("too late")

    session = await world.reopen(model=ScriptedModel(lambda request: say(text_of(request.messages[-1]))))

    settled = [await session.submission(each.id).wait() for each in accepted]
    assert [each.text for each in settled] == ["zero", "one", "two", "three"]
    assert await inputs(await session.conversation("a")) == ["zero", "one", "two", "three"]


# I31: there is no moment between "taken from the queue" and "its turn has started"
async def test_a_queued_message_is_taken_and_its_turn_started_in_one_commit(world: Any):
    gate = asyncio.Event()
    session = await world.open(by_prompt({"first": answer(wait(gate), say("a")), "second": say("b")}))
    chat = await session.conversation("a")
    await chat.submit("first")
    queued = await chat.submit("second")
    changes: list[Any] = []
    session.observe(changes.append)
    gate.set()
    await queued.wait()

    (taking,) = [
        change
        for change in changes
        if queued.id in change.submissions and type(change.submissions[queued.id].state) is Placed
    ]
    assert [entry.messages[0].parts[0].text for entry in taking.entries if entry.kind == "perdure.user"] == ["second"]
    assert [task.kind for task in taking.tasks.values() if task.live] == ["perdure.generation"]


@pytest.mark.parametrize("how", ["refused", "poison", "poison_after"])
async def test_a_message_is_answered_once_wherever_the_store_failed_on_its_way(memory_world: Any, how: Any):
    """I31: stored once, answered once, though the client sends it again after each failure."""
    world = memory_world
    for at in range(2, 9):
        world.memory = type(world.memory)(clock=world.clock)
        world.wrap = lambda storage: Failing(storage, at, how)  # noqa: B023
        model = ScriptedModel(by_prompt({"": say("fine")}))
        await sent_until_it_is_accepted(world, model)
        chat = await world.session.conversation("a")
        assert await inputs(chat) == ["pay"], at
        kinds = [entry.kind async for entry in chat.history()]
        assert kinds.count("perdure.assistant") == 1, at
        await world.close()


async def sent_until_it_is_accepted(world: Any, model: Any) -> None:
    """As a client does that knows its request id: after any failure it opens again and sends again."""
    world.options = {"model": model, "registry": Registry()}
    for _ in range(3):
        try:
            session = await world.reopen() if world.session is None else world.session
            chat = await session.conversation("a")
            sent = await chat.submit("pay", request_id="order-1")
            assert (await world.running(sent.wait())).text == "fine"
            return
        except Exception:
            world.wrap = lambda storage: storage
            if world.session is not None and world.session.inspect().storage != "ok":
                await world.crash()
    raise AssertionError("never accepted")


# I01: the outcome of a step and the place where its run stands are one commit
async def test_with_every_result_comes_what_its_run_does_next(world: Any):
    ran: list[int] = []

    @tool
    async def step(n: int) -> str:
        """Step."""
        ran.append(n)
        return f"step {n}"

    script = by_round(call("step", {"n": 1}), answer(call("step", {"n": 2}), call("step", {"n": 3})), say("done"))
    session = await world.open(script, step)
    chat = await session.conversation("a")
    changes: list[Any] = []
    session.observe(changes.append)
    await (await chat.submit("go")).wait()

    storing = [change for change in changes if any(entry.kind == "perdure.tool_result" for entry in change.entries)]
    assert len(storing) == 3
    for change in storing:
        ended = [task for task in change.tasks.values() if task.kind == "perdure.tool" and not task.live]
        assert len(ended) == 1
        assert "perdure.usage" in {each.record.kind for each in change.documents}
    after = [{task.kind for task in change.tasks.values() if task.live} for change in storing]
    assert ["perdure.generation" in kinds for kinds in after] == [True, False, True]  # with a round's last result
    assert sorted(ran) == [1, 2, 3]
