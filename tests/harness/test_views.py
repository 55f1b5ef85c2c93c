"""What a conversation's view shows, and how it follows a run (H30, H42)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.harness.job import JOBS
from perdure.harness.registry import tool
from perdure.harness.view import TAIL
from perdure.surface import ConversationView, Deltas, conversation_view
from perdure.testing.clock import settle
from perdure.testing.scripted import answer, call, fail, hang, say, wait

pytestmark = pytest.mark.anyio
NOTE = perdure.entry_kind("test.note")


@tool(replay="safe")
async def lookup(call: perdure.ToolCall, city: str) -> str:
    """Population of a city."""
    call.output("looking\n")
    return city


def typed(view: Any) -> ConversationView:
    return conversation_view(view.value)


async def until_shown(world: Any, chat: Any, text: str) -> None:
    """Let time pass until this much of the answer is committed."""

    async def shown() -> None:
        replica = perdure.Replica()
        async with chat.watch() as watch:
            async for frame in watch:
                replica.apply(frame)
                if text in (replica.value["live"] or {"text": ""})["text"]:
                    return

    await world.running(shown())


async def test_a_view_shows_the_live_run_its_partial_answer_and_what_waits_and_then_the_answer(world: Any):
    gate = asyncio.Event()
    session = await world.open([answer(say("Half of"), wait(gate), say(" it")), say("more")])
    chat = await session.conversation("a")
    async with chat.view() as view:
        assert typed(view).run is None
        assert typed(view).live is None
        first = await chat.submit("one")
        second = await chat.submit("two")
        await world.until(lambda: session.inspect().tasks)
        await until_shown(world, chat, "Half of")
        seen = typed(view)
        assert seen.run == session.inspect().tasks[0].id
        assert {key: type(item.state).__name__ for key, item in seen.inbox.items()} == {
            str(first.id): "Placed",
            str(second.id): "Queued",
        }
        gate.set()
        await world.running(second.wait())
        seen = typed(view)
        assert (seen.run, seen.live, seen.inbox) == (None, None, {})
        assert [entry.kind for entry in seen.entries] == ["perdure.user", "perdure.assistant"] * 2
        assert list(seen.usage["models"].values())[0]["requests"] == 2  # noqa: RUF015


async def test_a_view_shows_open_calls_with_their_output(memory_world: Any):
    gate = asyncio.Event()

    @tool
    async def work(call: perdure.ToolCall) -> str:
        """Work."""
        call.output("half\n")
        await gate.wait()
        return "done"

    chat = await (await memory_world.open([call("work"), say("ok")], work)).conversation("a")
    async with chat.view() as view:
        sent = await chat.submit("go")
        await settle()
        await memory_world.clock.advance(0.2)
        live = typed(view).live
        assert live is not None
        assert [(slot["name"], slot["output"]) for slot in live["tools"].values()] == [("work", "half\n")]
        gate.set()
        await memory_world.running(sent.wait())


async def test_a_view_attached_late_is_the_one_that_followed(world: Any):
    gate = asyncio.Event()
    session = await world.open([call("lookup", {"city": "B"}), answer(say("x"), wait(gate))], lookup)
    chat = await session.conversation("a")
    await chat.configure(max_rounds=5)
    async with chat.view() as early:
        sent = await chat.submit("go")
        await chat.submit("then")
        await until_shown(world, chat, "x")
        value = early.value
    async with chat.view() as late:
        assert late.value == value
    assert value["agent"] == {"max_rounds": 5}
    gate.set()
    await world.running(sent.wait())


async def test_after_a_restart_a_view_shows_the_same_run_and_inbox_and_what_was_kept_of_the_answer(world: Any):
    session = await world.open([answer(say("x"), hang())])
    chat = await session.conversation("a")
    async with chat.view() as view:
        await chat.submit("go")
        await chat.submit("then")
        await until_shown(world, chat, "x")
        before = view.value
    session = await world.restart()
    async with (await session.conversation("a")).view() as view:
        assert (view.value["run"], view.value["inbox"]) == (before["run"], before["inbox"])
        assert view.value["entries"][:1] == before["entries"]
        assert view.value["entries"][1]["messages"][0]["parts"] == [{"type": "text", "text": "x"}]
    await world.running((await session.conversation("a")).abort())


async def test_a_view_holds_the_newest_entries_and_says_that_there_are_older_ones(memory_world: Any):
    chat = await (await memory_world.open()).conversation("a")
    async with chat.view() as view:
        async with chat.commit() as tx:
            for number in range(TAIL):
                tx.append(chat.id, NOTE, data=number)
        assert not typed(view).older
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data=TAIL)
        assert typed(view).older
        assert [entry.data for entry in typed(view).entries] == list(range(1, TAIL + 1))
        assert [entry.data for entry in await chat.entries(before=typed(view).entries[0].id)] == [0]


async def test_a_fork_shows_what_it_sees_of_its_parent_and_the_settings_it_inherits(memory_world: Any):
    chat = await (await memory_world.open()).conversation("a")
    await chat.configure(max_rounds=3)
    await chat.write(NOTE, "parent")
    fork = await chat.fork((await chat.entries())[0].id)
    async with fork.view() as view:
        await chat.write(NOTE, "later")
        await fork.write(NOTE, "own")
        assert [entry.data for entry in typed(view).entries] == ["parent", "own"]
        assert typed(view).agent == {"max_rounds": 3}
        await fork.configure(max_rounds=4)
        assert typed(view).agent == {"max_rounds": 4}


class Delegate(perdure.Task):
    """Asks in a conversation of its own."""

    kind = "test.delegate"

    @perdure.phase(first=True)
    async def begin(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            home = tx.create_conversation(owner=invocation.id)
            question = tx.ask({"from": "below"}, owner=home)
            await tx.wait([question], then=self.end)

    @perdure.phase
    async def end(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            tx.complete(None)


@pytest.mark.parametrize("background", [False, True])
async def test_questions_of_conversations_that_its_work_owns_are_shown_but_not_those_of_background_work(
    kernel: Any, background: bool
):
    session = await kernel.open(Delegate)
    chat = await session.conversation("a")
    async with chat.view() as view:
        async with chat.commit() as tx:
            tx.create_task(Delegate, background=background)
        await session.resume()
        await kernel.until(lambda: session.inspect().questions)
        found = [question.payload for question in typed(view).questions.values()]
        assert found == ([] if background else [{"from": "below"}])
        assert sorted(typed(view).questions) == sorted(str(question.id) for question in await chat.questions())
        async with chat.view() as late:
            assert late.value == view.value
        await session.answer(session.inspect().questions[0].id, True)
        assert typed(view).questions == {}
        await session.wait_idle()


async def test_a_failed_run_leaves_the_view_with_its_submission_and_says_why(memory_world: Any):
    chat = await (await memory_world.open([fail("invalid")])).conversation("a")
    async with chat.watch() as watch:
        await memory_world.running((await chat.submit("go")).wait())
        await chat.write(NOTE, "the end")
        ended: dict[str, Any] = {}
        async for frame in watch:
            if isinstance(frame, Deltas):
                ended |= {each.path.split("/")[1]: each.record for each in frame.ended}
                if any(op.get("value", {}).get("data") == "the end" for op in frame.ops if op["path"] == "/entries/-"):
                    break
        assert ended["inbox"]["state"]["reason"] == "model_error"
        assert ended["run"]["state"]["outcome"]["type"] == "failed"


async def test_background_jobs_are_a_part_of_the_view(memory_world: Any):
    chat = await (await memory_world.open()).conversation("a")
    async with chat.view() as view:
        async with chat.commit() as tx:
            (await tx.doc(JOBS))["7"] = {"command": "sleep", "state": "running", "at": 1.0}
        assert typed(view).jobs == {"7": {"command": "sleep", "state": "running", "at": 1.0}}
