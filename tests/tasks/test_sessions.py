"""Waiting, looking and closing (K7, K33, K38, K40, K41)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import NotFound, SessionClosed
from perdure.records import Completed
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.clock import settle

pytestmark = pytest.mark.anyio


class Hanging(TaskDefinition):
    kind = "test.hanging"
    replay = "safe"
    started: Any = None
    finish: Any = None

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        self.started.append(invocation.id)
        await self.finish.wait()
        async with invocation.commit() as tx:
            tx.complete()


def hanging(**also: Any) -> Any:
    return type("Hanging", (Hanging,), {"kind": "test.hanging", "started": [], "finish": asyncio.Event(), **also})


async def running(kernel: Any, definition: Any) -> tuple[Any, Any, Any]:
    session = await kernel.open(definition)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(definition, {"name": "pay"})
    await session.resume()
    await kernel.until(lambda: definition.started)
    return session, chat, task


@pytest.mark.invariant("T-20")
async def test_inspect_lists_live_work_at_one_point_of_the_line(kernel: Any):
    session, chat, task = await running(kernel, hanging())
    async with chat.commit() as tx:
        question = tx.ask("sure?", owner=task)
    seen = session.inspect()

    assert [(one.id, one.state, one.kind) for one in seen.tasks] == [
        (task.id, "running", "test.hanging"),
        (question.id, "waiting", "perdure.question"),
    ]
    assert (seen.tasks[0].phase, seen.tasks[0].attempt, seen.tasks[0].label) == ("run", 1, "pay")
    assert [(one.payload, one.asker) for one in seen.questions] == [("sure?", task.id)]
    assert (seen.held, seen.detached, seen.storage) == ([], [], "ok")
    assert seen.seq == session._line.memory.published_seq
    assert session.subtree(task.id) == [question.id]


@pytest.mark.invariant("T-21")
async def test_close_writes_no_outcome_ends_waits_and_leaves_the_work_for_the_next_owner(kernel: Any):
    definition = hanging()
    session, chat, task = await running(kernel, definition)
    waits = [asyncio.create_task(wait) for wait in (session.wait_task(task.id), chat.wait_idle(), session.wait_idle())]
    await kernel.until(lambda: len(session._harness.scheduler._conditions) == 3)
    await session.close()
    await session.close()

    for wait in waits:
        with pytest.raises(SessionClosed):
            await wait
    session = await kernel.reopen()
    assert [(one.id, one.state) for one in session.inspect().tasks] == [(task.id, "pending")]
    definition.finish.set()
    assert await session.wait_task(task.id) == Completed()


@pytest.mark.invariant("T-21")
async def test_a_wait_that_comes_while_the_session_closes_ends_too(memory_kernel: Any):
    kernel = memory_kernel

    class Deaf(hanging()):
        kind = "test.hanging"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            self.started.append(invocation.id)
            for _ in range(10):
                try:
                    await self.finish.wait()
                    break
                except asyncio.CancelledError:
                    continue

    session, chat, task = await running(kernel, Deaf)
    closing = asyncio.create_task(session.close())
    await settle()
    assert not closing.done()
    for wait in (session.wait_task(task.id), chat.wait_idle(), session.resume()):
        with pytest.raises(SessionClosed):
            await wait
    with pytest.raises(SessionClosed):
        async with chat.commit():
            pass
    await kernel.pass_time(5.1, closing.done)
    assert session.inspect().detached == [task.id]
    Deaf.finish.set()
    await kernel.until(lambda: not session.inspect().detached)


@pytest.mark.invariant("T-21")
async def test_cancelling_a_close_cancels_only_that_wait(memory_kernel: Any):
    kernel = memory_kernel
    definition = hanging()
    session, _, _ = await running(kernel, definition)
    closing = asyncio.create_task(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    await session.close()

    assert closing.cancelled()
    assert not session._harness.scheduler._runners
    kernel.session = None
    await kernel.storage.close()
    session = await kernel.open()
    assert [one.state for one in session.inspect().tasks] == ["pending"]


async def test_close_leaves_no_task_of_the_loop_behind(memory_kernel: Any):
    before = asyncio.all_tasks()
    session, chat, _ = await running(memory_kernel, hanging())
    async with chat.commit() as tx:
        tx.timer(1e9)
    await session.close()
    await settle()

    assert asyncio.all_tasks() == before


async def test_waiting_for_what_never_was(kernel: Any):
    session = await kernel.open()
    with pytest.raises(NotFound):
        await session.wait_task(99_999)


async def test_an_idle_session_waits_for_nothing(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    await session.wait_idle()
    await chat.wait_idle()
    assert not chat.busy


async def test_an_application_s_task_makes_a_scope_non_idle_but_not_busy(kernel: Any):
    _, chat, _ = await running(kernel, hanging())
    waiting = asyncio.create_task(chat.wait_idle())
    await settle()

    assert not chat.busy
    assert not waiting.done()
    waiting.cancel()


async def test_a_condition_that_raises_reaches_who_waits_and_nobody_else(kernel: Any):
    session, chat, _ = await running(kernel, hanging())
    calls: list[int] = []

    def breaks() -> bool:
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError
        return False

    waiting = asyncio.create_task(session.until(breaks))
    await kernel.until(lambda: calls)
    async with chat.commit() as tx:
        tx.ask("?")
    with pytest.raises(ZeroDivisionError):
        await waiting
