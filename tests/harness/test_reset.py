"""Resets and other heads: where the model's context starts, and where they are placed (H5, H8, H9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import NotFound, RequestConflict
from perdure.harness.harness import Settings
from perdure.harness.registry import tool
from perdure.harness.submissions import submit_reset
from perdure.messages import UserMessage, text_of
from perdure.records import Entry
from perdure.session.transaction import entry_kind
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, call, fail, say, wait

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")


def said(model: ScriptedModel) -> list[str]:
    """What the users of the newest request said."""
    return [text_of(message) for message in model.requests[-1].messages if isinstance(message, UserMessage)]


async def entries(chat: Any) -> list[Entry]:
    return [entry async for entry in chat.history()][::-1]


def gate_tool(gate: asyncio.Event) -> Any:
    @tool
    async def work() -> str:
        """Wait for the test."""
        await gate.wait()
        return "worked"

    return work


async def calling(world: Any) -> None:
    await world.until(lambda: any(task.kind == "perdure.tool" for task in world.session.inspect().tasks))


@pytest.mark.invariant("HC-1")
async def test_the_models_context_starts_at_a_reset_and_everything_stays_in_storage(world: Any):
    model = ScriptedModel(say("ok"))
    chat = await (await world.open(model)).conversation("a")
    await (await chat.submit("one")).wait()
    sent = await chat.reset("We were fixing the login test.")
    await (await chat.submit("two")).wait()
    assert (await sent.wait()).entry == (await entries(chat))[2].id
    assert said(model) == ["We were fixing the login test.", "two"]
    assert [entry.kind for entry in await entries(chat)][:3] == ["perdure.user", "perdure.assistant", "perdure.reset"]


async def test_a_reset_without_a_handoff_starts_with_the_next_input(world: Any):
    model = ScriptedModel(say("ok"))
    chat = await (await world.open(model)).conversation("a")
    await (await chat.submit("one")).wait()
    await chat.reset()
    await (await chat.submit("two")).wait()
    assert said(model) == ["two"]


async def test_a_reset_during_a_run_is_placed_at_its_final_answer_before_the_next_input(world: Any):
    gate = asyncio.Event()
    model = ScriptedModel(answer(wait(gate), say("ok")))
    chat = await (await world.open(model)).conversation("a")
    first = await chat.submit("one")
    reset = await chat.reset("handed off")
    second = await chat.submit("two")
    assert await reset.status() == "queued"
    gate.set()
    await second.wait()
    assert (await first.wait()).text == "ok"
    assert said(model) == ["handed off", "two"]


@pytest.mark.invariant("HC-2")
async def test_a_reset_placed_after_a_tool_round_ends_the_run_and_what_waits_starts_the_next(world: Any):
    gate = asyncio.Event()
    model = ScriptedModel(by_prompt({"one": [call("work"), say("never")], "two": say("fresh")}))
    chat = await (await world.open(model, gate_tool(gate))).conversation("a")
    first = await chat.submit("one")
    await calling(world)
    reset = await chat.reset()
    second = await chat.submit("two")
    gate.set()
    assert (await second.wait()).text == "fresh"
    settled = await first.wait()
    assert (settled.reason, str(reset.id) in settled.detail) == ("reset", True)
    assert said(model) == ["two"]


async def test_a_steer_that_waits_beside_a_reset_starts_the_next_run(world: Any):
    gate = asyncio.Event()
    model = ScriptedModel(by_prompt({"one": [call("work"), say("never")], "turn": say("turned")}))
    chat = await (await world.open(model, gate_tool(gate))).conversation("a")
    first = await chat.submit("one")
    await calling(world)
    steer = await chat.submit("turn", when_busy="steer")
    await chat.reset("the plan")
    gate.set()
    assert (await steer.wait()).text == "turned"
    assert ((await first.wait()).reason, said(model)) == ("reset", ["the plan", "turn"])


async def test_writes_and_resets_are_placed_in_the_order_of_their_ids(world: Any):
    gate = asyncio.Event()
    chat = await (await world.open(answer(wait(gate), say("ok")))).conversation("a")
    await chat.submit("one")
    await chat.write(NOTE, 1)
    await chat.reset()
    await chat.write(NOTE, 2)
    gate.set()
    await chat.wait_idle()
    kinds = [entry.data if entry.kind == "test.note" else entry.kind for entry in await entries(chat)]
    assert kinds[2:] == [1, "perdure.reset", 2]


async def test_a_run_that_fails_leaves_a_reset_in_the_inbox_for_the_next_submission(world: Any):
    gate = asyncio.Event()
    model = ScriptedModel(by_prompt({"one": answer(wait(gate), fail("invalid")), "two": say("ok")}))
    chat = await (await world.open(model)).conversation("a")
    first = await chat.submit("one")
    reset = await chat.reset()
    gate.set()
    await first.wait()
    assert await reset.status() == "queued"
    await (await chat.submit("two")).wait()
    assert (await reset.status(), said(model)) == ("done", ["two"])


async def test_an_abort_leaves_a_queued_reset_which_can_be_taken_back(world: Any):
    gate = asyncio.Event()
    chat = await (await world.open(answer(wait(gate), say("ok")))).conversation("a")
    await chat.submit("one")
    reset = await chat.reset()
    await chat.abort()
    assert await reset.status() == "queued"
    assert await reset.abort() == "aborted"
    assert (await reset.wait()).reason == "aborted"


async def test_one_request_id_is_one_reset_and_with_another_handoff_a_conflict(world: Any):
    chat = await (await world.open(say("ok"))).conversation("a")
    first = await chat.reset("x", request_id="r")
    assert await chat.reset("x", request_id="r") == first
    with pytest.raises(RequestConflict, match="'r'"):
        await chat.reset("y", request_id="r")
    with pytest.raises(RequestConflict):
        await chat.submit("x", request_id="r")


async def test_a_tool_hands_off_in_a_commit_of_its_call(world: Any):
    @tool
    async def hand_off(call: Any) -> str:
        """Start anew with a plan."""
        async with call.commit() as tx:
            await submit_reset(world.session._harness, tx, call.conversation, "the plan", request_id="h")
        return "handed off"

    model = ScriptedModel(by_prompt({"one": [call("hand_off"), say("never")], "two": say("ok")}))
    chat = await (await world.open(model, hand_off)).conversation("a")
    assert (await (await chat.submit("one")).wait()).reason == "reset"
    await (await chat.submit("two")).wait()
    assert said(model) == ["the plan", "two"]


@pytest.mark.invariant("HC-3")
async def test_a_write_whose_head_is_older_than_the_present_one_is_stale(world: Any):
    model = ScriptedModel(say("ok"))
    chat = await (await world.open(model)).conversation("a")
    first = await chat.submit("one")
    entry = (await first.wait()).entry
    await chat.reset()
    stale = await chat.write(NOTE, 1, head=entry)
    assert (await stale.wait()).reason == "stale"
    assert "test.note" not in [found.kind for found in await entries(chat)]


async def test_a_write_with_a_head_starts_the_context_there(world: Any):
    model = ScriptedModel(say("ok"))
    chat = await (await world.open(model)).conversation("a")
    await (await chat.submit("one")).wait()
    second = await (await chat.submit("two")).wait()
    await chat.write(NOTE, 1, head=second.entry)
    await (await chat.submit("three")).wait()
    assert said(model) == ["two", "three"]


async def test_a_head_that_is_not_seen_from_here_is_refused(world: Any):
    session = await world.open(say("ok"))
    chat, other = await session.conversation("a"), await session.conversation("b")
    there = await (await other.submit("there")).wait()
    with pytest.raises(NotFound, match=f"sees no entry {there.entry}"):
        await chat.write(NOTE, 1, head=there.entry)


async def test_a_queued_head_is_judged_where_it_is_placed(world: Any):
    gate = asyncio.Event()
    chat = await (await world.open(by_prompt({"one": say("ok"), "two": answer(wait(gate), say("ok"))}))).conversation(
        "a"
    )
    entry = (await (await chat.submit("one")).wait()).entry
    await chat.submit("two")
    await chat.reset()
    late = await chat.write(NOTE, 1, head=entry)
    gate.set()
    assert (await late.wait()).reason == "stale"


async def test_a_fork_below_a_reset_starts_where_its_parent_did(world: Any):
    model = ScriptedModel(say("ok"))
    chat = await (await world.open(model)).conversation("a")
    before = await (await chat.submit("one")).wait()
    await chat.reset("from here")
    after = await (await chat.submit("two")).wait()
    early, late = await chat.fork(before.answer.id), await chat.fork(after.answer.id)
    await (await early.submit("early")).wait()
    assert said(model) == ["one", "early"]
    await (await late.submit("late")).wait()
    assert said(model) == ["from here", "two", "late"]


async def test_a_queued_reset_is_placed_after_a_crash(world: Any):
    gate = asyncio.Event()
    model = ScriptedModel(by_prompt({"one": [call("work"), say("done")], "two": say("ok")}))
    session = await world.open(model, gate_tool(gate), settings=Settings())
    chat = await session.conversation("a")
    first = await chat.submit("one")
    await calling(world)
    reset = await chat.reset("the plan")
    session = await world.restart()
    assert (await session.submission(first.id).wait()).reason == "reset"
    assert await session.submission(reset.id).status() == "done"
