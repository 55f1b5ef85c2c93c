"""Taking back, and stopping (H7, K31, K32, I12, I24, I27)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from perdure.errors import NotFound, UsageError
from perdure.harness.registry import tool
from perdure.messages import text_of
from perdure.session.transaction import entry_kind
from perdure.testing.scripted import answer, by_prompt, call, fail, hang, say, wait

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")


def tool_runs(session: Any) -> bool:
    return any(task.kind == "perdure.tool" and task.state == "running" for task in session.inspect().tasks)


async def results(chat: Any) -> list[Any]:
    found = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    return sorted(found, key=lambda message: message.call)


async def test_a_queued_item_of_any_type_is_withdrawn(world: Any):
    chat = await (await world.open(hang())).conversation("a")
    live = await chat.submit("one")
    queued, note = await chat.submit("two"), await chat.write(NOTE, 1)
    assert [await queued.abort(), await note.abort()] == ["aborted", "aborted"]
    assert await live.abort() == "already_placed"
    assert [await queued.status(), await note.status()] == ["unanswered(aborted)"] * 2
    assert (await note.wait()).reason == "aborted"
    assert await queued.abort() == "settled"
    assert chat.inbox() == []


async def test_withdrawing_what_does_not_exist_is_not_found(world: Any):
    session = await world.open()
    with pytest.raises(NotFound):
        await session.submission(77).abort()


async def test_a_withdrawn_request_id_stays_taken(world: Any):
    chat = await (await world.open(hang())).conversation("a")
    await chat.submit("one")
    queued = await chat.submit("two", request_id="r")
    await queued.abort()
    again = await chat.submit("two", request_id="r")
    assert again.id == queued.id
    assert await again.status() == "unanswered(aborted)"


@pytest.mark.invariant("HA-8")
async def test_abort_stops_the_run_withdraws_queued_inputs_and_leaves_queued_writes(world: Any):
    chat = await (await world.open(hang())).conversation("a")
    live, queued, note = await chat.submit("one"), await chat.submit("two"), await chat.write(NOTE, 1)
    await world.running(chat.abort(reason="enough"))
    assert [await one.status() for one in (live, queued, note)] == ["unanswered(aborted)"] * 2 + ["queued"]
    assert (await live.wait()).detail == "enough"
    assert not chat.busy


async def test_abort_with_keep_leaves_queued_inputs(world: Any):
    chat = await (await world.open(by_prompt({"one": hang(), "": say("ok")}))).conversation("a")
    live, queued = await chat.submit("one"), await chat.submit("two")
    await world.running(chat.abort(queue="keep"))
    assert [await live.status(), await queued.status()] == ["unanswered(aborted)", "queued"]
    last = await chat.submit("three")
    await last.wait()
    assert await queued.status() == "done"


async def test_an_unknown_way_with_the_queue_is_named(world: Any):
    chat = await (await world.open(hang())).conversation("a")
    with pytest.raises(UsageError, match="burn"):
        await chat.abort(queue="burn")


async def test_abort_while_idle_withdraws_what_a_failed_run_left(world: Any):
    gate = asyncio.Event()
    chat = await (await world.open(answer(wait(gate), fail("auth")))).conversation("a")
    failed, left = await chat.submit("one"), await chat.submit("two")
    gate.set()
    await failed.wait()
    await chat.abort()
    assert await left.status() == "unanswered(aborted)"


async def test_inputs_that_arrive_during_an_abort_are_answered_and_older_writes_go_before_them(world: Any):
    slow = asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Takes its time to stop."""
        try:
            await asyncio.Event().wait()
        finally:
            await slow.wait()
        return "never"

    script = by_prompt({"one": [call("stubborn")], "": say("fine")})
    session = await world.open(script, stubborn)
    chat = await session.conversation("a")
    await chat.submit("one")
    await world.until(lambda: tool_runs(session))
    note = await chat.write(NOTE, 1)
    aborting = asyncio.ensure_future(chat.abort())
    await world.until(lambda: session.inspect().tasks[0].aborting)
    later = await chat.submit("two")
    slow.set()
    await world.running(aborting)
    assert (await world.running(later.wait())).text == "fine"
    kinds = [entry.kind async for entry in chat.history()][::-1]
    assert kinds.index("test.note") < kinds.index("perdure.user", 1)
    assert await note.status() == "done"


async def test_every_call_of_an_aborted_round_has_its_result(world: Any):
    """I12: what had finished is kept, what ran is marked, what had not begun says so; the next prompt goes on."""

    @tool
    async def quick() -> str:
        """Quick."""
        return "done"

    @tool
    async def slow(call: Any) -> str:
        """Slow."""
        call.output("half way\n")
        await asyncio.Event().wait()
        return "never"

    @tool(sequential=True)
    async def turn(n: int) -> str:
        """One after another."""
        await asyncio.Event().wait()
        return str(n)

    round = answer(call("quick"), call("slow"), call("turn", {"n": 1}), call("turn", {"n": 2}))
    session = await world.open(by_prompt({"one": [round], "": say("fine")}), quick, slow, turn)
    chat = await session.conversation("a")
    await chat.submit("one")
    await world.until(lambda: sum(t.state == "running" for t in session.inspect().tasks) == 2 and tool_runs(session))
    await world.running(chat.abort())

    found = await results(chat)
    assert [message.error for message in found] == [None, "aborted", "aborted", "aborted"]
    assert "half way" in found[1].text
    assert "It had begun" in found[1].text
    assert "It had not begun" in found[3].text
    assert (await (await chat.submit("two")).wait()).text == "fine"


async def test_a_tool_that_absorbs_the_cancellation_does_not_go_on_with_the_run(world: Any):
    """I24: no request after the abort; what the tool still returned is in the result."""

    @tool
    async def sponge() -> str:
        """Absorbs."""
        try:
            await asyncio.Event().wait()
        except BaseException:
            return "ok"
        return "never"

    session = await world.open(by_prompt({"one": [call("sponge"), say("never")], "": say("fine")}), sponge)
    chat = await session.conversation("a")
    sent = await chat.submit("one")
    await world.until(lambda: tool_runs(session))
    asked = world.strict[-1].inner.asked
    await world.running(chat.abort())
    assert world.strict[-1].inner.asked == asked
    assert (await sent.wait()).reason == "aborted"
    (result,) = await results(chat)
    assert result.error == "aborted"
    assert "It still returned:\nok" in result.text


async def test_a_tool_that_ignores_the_abort_loses_its_right_after_the_grace(memory_world: Any):
    world = memory_world
    free = asyncio.Event()
    kept: list[Any] = []

    @tool
    async def deaf(call: Any) -> str:
        """Ignores."""
        kept.append(call)
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    session = await world.open(by_prompt({"one": [call("deaf")], "": say("fine")}), deaf)
    chat = await session.conversation("a")
    sent = await chat.submit("one")
    await world.until(lambda: kept)
    await world.running(chat.abort())
    assert (await sent.wait()).reason == "aborted"
    assert len(session.inspect().detached) == 1
    free.set()
    await world.until(lambda: not session.inspect().detached)
    (result,) = await results(chat)
    assert "too late" not in result.text


async def test_a_thread_that_returns_within_the_grace_is_heard(memory_world: Any):
    """K31, H20: it cannot be cancelled, so it is waited for; its clean-up runs first, and may be what ends it."""
    world = memory_world
    free, begun = threading.Event(), threading.Event()

    @tool
    def blocking(call: Any) -> str:
        """Blocks."""
        call.on_cleanup(free.set)
        begun.set()
        free.wait(30)
        return "finished after all"

    session = await world.open(by_prompt({"one": [call("blocking")], "": say("fine")}), blocking)
    chat = await session.conversation("a")
    await chat.submit("one")
    await world.until(begun.is_set)
    await chat.abort()
    (result,) = await results(chat)
    assert result.error == "aborted"
    assert "finished after all" in result.text


async def test_what_was_seen_of_an_answer_is_kept_and_offered_to_the_model(memory_world: Any):
    """I25, I26: user message, partial answer, and the next request knows both."""
    world = memory_world
    session = await world.open(by_prompt({"one": answer(say("half an answer"), hang()), "": say("fine")}))
    chat = await session.conversation("a")
    await chat.submit("one")
    await world.clock.advance(0.2)
    await chat.abort()
    found = [entry.messages[0] async for entry in chat.history()][::-1]
    assert [text_of(message) for message in found] == ["one", "half an answer"]
    assert found[1].stop == "aborted"

    await (await chat.submit("two")).wait()
    request = world.strict[-1].inner.requests[-1]
    assert "half an answer" in text_of(request.messages[1])


async def test_stopped_before_the_first_word_nothing_is_kept_but_the_input(world: Any):
    session = await world.open(by_prompt({"one": hang(), "": say("fine")}))
    chat = await session.conversation("a")
    await chat.submit("one")
    await world.until(lambda: world.strict[-1].inner.asked)
    await chat.abort()
    assert [entry.kind async for entry in chat.history()] == ["perdure.user"]
    assert (await (await chat.submit("two")).wait()).text == "fine"


@pytest.mark.parametrize("phase", ["request sent", "streaming", "tool", "retry", "sequential", "hand-over"])
async def test_in_every_phase_the_abort_settles_and_the_next_message_runs(memory_world: Any, phase: str):
    """I27."""
    world = memory_world

    @tool(sequential=True)
    async def work(n: int = 0) -> str:
        """Works."""
        await asyncio.Event().wait()
        return "never"

    scripts = {
        "request sent": hang(),
        "streaming": answer(say("some"), hang()),
        "tool": [call("work")],
        "sequential": [answer(call("work"), call("work"))],
        "retry": fail("rate_limited", after=20.0),
        "hand-over": say("quick"),
    }
    session = await world.open(by_prompt({"one": scripts[phase], "": say("fine")}), work)
    chat = await session.conversation("a")
    sent = await chat.submit("one")
    if phase != "hand-over":
        await world.clock.advance(0.3)
    await world.running(chat.abort())
    assert await sent.status() in ("unanswered(aborted)", "done")
    assert not chat.busy
    assert session.inspect().tasks == []
    assert (await world.running((await chat.submit("two")).wait())).text == "fine"


async def test_an_abort_during_the_back_off_counts_no_request_that_was_never_sent(memory_world: Any):
    world = memory_world
    chat = await (await world.open(fail("rate_limited", after=20.0))).conversation("a")
    await chat.submit("one")
    await world.clock.advance(1.0)
    await world.running(chat.abort())
    assert (await chat.usage())["models"]["scripted"]["requests"] == 1


async def test_a_crash_during_an_abort_ends_it_at_the_next_start(world: Any):
    free = asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Does not stop."""
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    session = await world.open(by_prompt({"one": [call("stubborn")], "": say("fine")}), stubborn)
    chat = await session.conversation("a")
    sent = await chat.submit("one")
    await world.until(lambda: tool_runs(session))
    aborting = asyncio.ensure_future(chat.abort())
    await world.until(lambda: session.inspect().tasks[0].aborting)
    assert not aborting.done()
    await world.storage.close()
    free.set()
    session = await world.restart()

    assert (await session.submission(sent.id).wait()).reason == "aborted"
    chat = await session.conversation("a")
    (result,) = await results(chat)
    assert result.error == "aborted"
