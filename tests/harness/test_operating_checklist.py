"""What to try before serving anybody: the operating checklist, a test for each of its lines."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from tests.harness.summarised import SMALL, WORDS, model_of, talk_of

import perdure
from perdure.errors import ConversationBusy, RequestConflict, TaskRefused
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import ToolMessage, UserMessage, text_of
from perdure.model import Usage
from perdure.records import Orphaned
from perdure.session.change import Change
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, by_round, call, fail, hang, say
from perdure.testing.strict import StrictModel

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")
TODOS = perdure.document("test.todos", scope="conversation", initial=lambda: {"items": []})


async def said(chat: Any) -> list[str]:
    return [text_of(entry.messages[0]) async for entry in chat.history() if entry.messages][::-1]


def running(world: Any, kind: str) -> bool:
    return any(task.kind == kind and task.state == "running" for task in world.session.inspect().tasks)


class Sleeper(TaskDefinition):
    """Work that never ends by itself."""

    kind = "test.sleeper"

    @phase(first=True)
    async def sleep(self, invocation: Invocation) -> None:
        await asyncio.Event().wait()

    async def abort(self, invocation: Invocation) -> None:
        async with invocation.commit() as tx:
            tx.append(invocation.conversation, NOTE, data=f"stopped {invocation.input}")
            tx.aborted()


class Other(Sleeper):
    """Of another kind, and the code for it will be gone."""

    kind = "test.other"


class Boss(TaskDefinition):
    """Work that waits for what it owns."""

    kind = "test.boss"

    @phase(first=True)
    async def begin(self, invocation: Invocation) -> None:
        async with invocation.commit() as tx:
            child = tx.create_task(Sleeper, "below", owner=invocation)
            tx.wait([child], then=self.over)

    @phase
    async def over(self, invocation: Invocation) -> None:
        async with invocation.commit() as tx:
            tx.complete()

    async def abort(self, invocation: Invocation) -> None:
        async with invocation.commit() as tx:
            tx.append(invocation.conversation, NOTE, data="stopped above")
            tx.aborted()


async def notes(chat: Any) -> list[Any]:
    return [entry.data async for entry in chat.history() if entry.kind == "test.note"][::-1]


@pytest.mark.parametrize("at", ["admission", "generation", "tool call"])
async def test_1_a_process_that_stops_anywhere_settles_the_original_submission_at_the_next_start(world: Any, at: str):
    reached = asyncio.Event()

    @tool(replay="safe")
    async def work() -> str:
        """Work."""
        reached.set()
        if at == "tool call" and len(world.strict) == 1:
            await asyncio.Event().wait()
        return "worked"

    script = by_round(answer(hang()) if at == "generation" else call("work"), say("done"))
    session = await world.open(script, work)
    sent = await (await session.conversation("a")).submit("go")
    if at == "generation":
        await world.until(lambda: world.strict[0].inner.asked)
    elif at == "tool call":
        await world.until(reached.is_set)
    world.strict.append(StrictModel(ScriptedModel(by_round(call("work"), say("done")))))
    session = await world.restart(model=world.strict[-1])
    await session.resume()
    assert (await session.submission(sent.id).wait()).text == "done"


async def test_2_an_unsafe_tool_is_interrupted_and_a_safe_one_repeats_with_the_same_key_of_its_effect(world: Any):
    keys: dict[str, list[str]] = {"pay": [], "book": []}
    books: dict[str, str] = {}  # a service that knows a repetition by its key

    async def effect(at: str, key: str) -> str:
        keys[at].append(key)
        books.setdefault(key, at)
        if len(keys[at]) == 1:
            await asyncio.Event().wait()
        return books[key]

    @tool
    async def pay(call: perdure.ToolCall) -> str:
        """Pay; nobody knows whether it happened once it was interrupted."""
        return await effect("pay", call.idempotency_key)

    @tool(replay="safe")
    async def book(call: perdure.ToolCall) -> str:
        """Book, at a service that takes a key."""
        return await effect("book", call.idempotency_key)

    script = by_round(answer(call("pay"), call("book")), say("done"))
    session = await world.open(script, pay, book)
    sent = await (await session.conversation("a")).submit("go")
    await world.until(lambda: keys["pay"] and keys["book"])
    session = await world.restart()
    await session.submission(sent.id).wait()
    chat = await session.conversation("a")
    results = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    told = {found.name: found.error for found in results if isinstance(found, ToolMessage)}
    assert told == {"pay": "interrupted", "book": None}
    assert len(keys["pay"]) == 1
    assert len(keys["book"]) == 2
    assert len(books) == 2


async def test_3_a_cancelled_wait_cancels_no_work_and_each_kind_of_abort_stops_what_it_names(world: Any):
    registry = Registry([Extension(name="test", tasks=[Sleeper])])
    session = await world.open(hang(), registry=registry)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        alone = tx.create_task(Sleeper, "alone")
        beside = tx.create_task(Sleeper, "beside", background=True)
    sent, queued = await chat.submit("one"), await chat.submit("two")
    waiting = asyncio.ensure_future(session.wait_task(alone.id))
    await world.until(lambda: running(world, "test.sleeper"))
    waiting.cancel()
    await asyncio.wait([waiting])
    assert {task.id for task in session.inspect().tasks} >= {alone.id, beside.id}

    assert await queued.abort() == "aborted"  # the submission
    await world.running(session.abort_task(alone.id))  # the task
    assert await notes(chat) == ["stopped alone"]
    assert await sent.status() == "running"
    await world.running(chat.abort())  # the conversation in the foreground
    assert await sent.status() == "unanswered(aborted)"
    assert [task.id for task in session.inspect().tasks] == [beside.id]
    await world.running(chat.abort(background=True))
    assert (await notes(chat), session.inspect().tasks) == (["stopped alone", "stopped beside"], [])


async def test_4_an_entry_a_document_and_a_task_of_one_commit_are_seen_together_or_not_at_all(world: Any):
    session = await world.open(registry=Registry([Extension(name="test", tasks=[Sleeper])]))
    chat = await session.conversation("a")
    seen: list[tuple[bool, bool, bool]] = []

    def observe(change: Change) -> None:
        entry = any(each.kind == NOTE.name for each in change.entries)
        document = any(each.record.kind == TODOS.kind for each in change.documents)
        seen.append((entry, document, any(task.kind == Sleeper.kind for task in change.tasks.values())))

    stop = session.observe(observe)
    for fails in (True, False):
        with pytest.raises(RuntimeError) if fails else nullcontext():
            async with chat.commit() as tx:
                tx.append(chat.id, NOTE, data="received")
                (await tx.doc(TODOS))["items"].append("pack")
                tx.create_task(Sleeper, "ship")
                if fails:
                    raise RuntimeError("the commit's body fails")
    stop()
    assert seen == [(True, True, True)]
    assert (await notes(chat), await chat.snapshot(TODOS)) == (["received"], {"items": ["pack"]})


async def test_5_the_same_request_id_is_the_same_submission_also_after_a_restart(world: Any):
    session = await world.open(say("once"))
    chat = await session.conversation("a")
    first = await chat.submit("pay", request_id="order-17")
    assert (await chat.submit("pay", request_id="order-17")).id == first.id
    await first.wait()
    session = await world.restart()
    chat = await session.conversation("a")
    again = await chat.submit("pay", request_id="order-17")
    assert (again.id, (await again.wait()).text) == (first.id, "once")
    assert await said(chat) == ["pay", "once"]
    with pytest.raises(RequestConflict):
        await chat.submit("pay more", request_id="order-17")


async def test_6_steers_follow_ups_writes_and_resets_are_placed_at_their_boundaries_and_reject_writes_nothing(
    world: Any,
):
    gate = asyncio.Event()

    @tool
    async def work() -> str:
        """Wait for the test."""
        await gate.wait()
        return "worked"

    worked = [call("work"), say("ok")]
    script = by_prompt({"one": worked, "two": worked, "steer": say("ok"), "later": say("ok"), "three": say("ok")})
    model = ScriptedModel(script)
    chat = await (await world.open(model, work)).conversation("a")
    first = await chat.submit("one")
    await world.until(lambda: running(world, "perdure.tool"))
    with pytest.raises(ConversationBusy):
        await chat.submit("rejected", when_busy="reject")
    later = await chat.submit("later")
    steer = await chat.submit("steer", when_busy="steer")
    await chat.write(NOTE, "noted")
    gate.set()
    await first.wait()
    await steer.wait()
    await later.wait()
    kinds = [f"{entry.kind.split('.')[1]}" async for entry in chat.history()][::-1]
    assert kinds[:6] == ["user", "assistant", "tool_result", "note", "user", "assistant"]
    assert [text for text in await said(chat) if text in ("one", "steer", "later")] == ["one", "steer", "later"]

    gate.clear()
    last = await chat.submit("two")
    await world.until(lambda: running(world, "perdure.tool"))
    reset = await chat.reset("Go on from here.")
    gate.set()
    await reset.wait()
    assert await last.status() == "unanswered(reset)"
    await (await chat.submit("three")).wait()
    users = [text_of(message) for message in model.requests[-1].messages if isinstance(message, UserMessage)]
    assert users == ["Go on from here.", "three"]


@pytest.mark.parametrize("forced", ["threshold", "overflow"])
async def test_7_a_compaction_at_the_threshold_or_an_overflow_is_counted_and_keeps_the_old_entries(
    world: Any, forced: str
):
    used = Usage(input=50, output=5)

    def talk(request: Any) -> Any:
        size = sum(len(text_of(message)) for message in request.messages)
        return fail("overflow") if forced == "overflow" and size > 1700 else say("ok")

    model = model_of(talk, answer(say("THE SUMMARY"), usage=used), window=1000 if forced == "threshold" else None)
    chat = await (await world.open(model)).conversation("a")
    await chat.configure(**SMALL)
    await talk_of(chat, 4 if forced == "threshold" else 3)
    before = [entry.id async for entry in chat.history()]
    assert (await (await chat.submit(f"last {WORDS * 3}")).wait()).text == "ok"
    after = [entry async for entry in chat.history()]
    assert [entry.data["reason"] for entry in after if entry.kind == "perdure.compaction"] == [forced]
    assert set(before) < {entry.id for entry in after}
    ledger = (await chat.usage())["models"]["scripted"]
    assert (ledger["requests"], ledger["unknown"]) == (
        model.asked,
        model.asked - 1,
    )  # only the summary says what it took
    assert (ledger["input"], ledger["output"]) == (50, 5)


async def test_8_a_late_or_slow_reader_is_given_the_newest_view_in_bounded_memory_and_leaves_nothing_behind(
    memory_world: Any,
):
    session = await memory_world.open(say("ok"))
    chat = await session.conversation("a")
    await (await chat.submit("before")).wait()
    async with chat.watch() as watch, chat.events() as events:
        replica = perdure.Replica()
        replica.apply(await anext(watch))
        assert [entry["kind"] for entry in replica.value["entries"]] == ["perdure.user", "perdure.assistant"]
        for number in range(150):  # nobody reads meanwhile
            await chat.write(NOTE, number)
        replica.apply(await anext(watch))
        assert replica.value["entries"][-1]["data"] == 149
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert not waiting.done()  # that one frame stood for all that was missed
        await chat.write(NOTE, "next")
        replica.apply(await waiting)
        assert replica.value["entries"][-1]["data"] == "next"
        batch = await anext(events)
        assert [type(event).__name__ for event in batch.events] == ["Snapshot"]
    assert await said(chat) == ["before", "ok"]
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_9_work_whose_code_is_missing_is_shown_waits_and_goes_on_or_is_given_up_on_purpose(world: Any):
    with_code = Registry([Extension(name="test", tasks=[Sleeper])])
    session = await world.open(registry=with_code)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        work = tx.create_task(Sleeper, "held")
    session = await world.restart(registry=Registry())
    await session.resume()
    await world.until(lambda: [task.state for task in session.inspect().tasks] == ["held"])
    assert "test.sleeper" in repr(session.inspect().tasks[0])

    class Newer(Sleeper):
        version = 2

        def migrate(self, version: int, input: Any, checkpoint: Any) -> Any:
            return {"was": input}, checkpoint.phase, checkpoint.data

        @phase(first=True)
        async def sleep(self, invocation: Invocation) -> None:
            async with invocation.commit() as tx:
                tx.complete(invocation.input)

    await session.install(Registry([Extension(name="test", tasks=[Newer])]))
    assert (await session.wait_task(work.id)).result == {"was": "held"}
    async with (await session.conversation("a")).commit() as tx:
        lost = tx.create_task(Other, "given up")
    session = await world.restart(registry=Registry())
    outcome = await world.running(session.abort_task(lost.id, "no code any more"))
    assert isinstance(outcome, Orphaned)


async def test_10_a_fork_has_its_parents_history_settings_of_its_own_and_goes_its_own_way(world: Any):
    session = await world.open(say("ok"))
    chat = await session.conversation("a")
    await chat.configure(max_rounds=7)
    first = await (await chat.submit("one")).wait()
    child = await chat.fork(first.answer.id)
    await child.configure(max_rounds=3)
    await (await chat.submit("parent")).wait()
    await (await child.submit("child")).wait()
    assert await said(chat) == ["one", "ok", "parent", "ok"]
    assert await said(child) == ["one", "ok", "child", "ok"]
    assert ((await chat.settings()).max_rounds, (await child.settings()).max_rounds) == (7, 3)


async def test_11_an_abort_settles_from_the_bottom_up_and_stops_at_a_background_task(world: Any):
    registry = Registry([Extension(name="test", tasks=[Sleeper, Boss])])
    session = await world.open(registry=registry)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        tx.create_task(Boss)
        beside = tx.create_task(Sleeper, "beside", background=True)
    await session.resume()
    await world.until(lambda: sum(task.kind == "test.sleeper" for task in session.inspect().tasks) == 2)
    await world.until(lambda: running(world, "test.sleeper"))
    await world.running(chat.abort())
    assert await notes(chat) == ["stopped below", "stopped above"]
    assert [task.id for task in session.inspect().tasks] == [beside.id]
    with pytest.raises(TaskRefused):
        async with chat.commit() as tx:
            tx.create_task(Sleeper, "child", owner=beside, background=True)
    await world.running(chat.abort(background=True))
