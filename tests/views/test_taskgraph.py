"""The task graph: live tasks, who waits on whom, who owns whom, and what conversations they own (K38)."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.surface import Deltas, task_graph

pytestmark = pytest.mark.anyio


class Parent(perdure.Task):
    """Makes a conversation, asks two questions, and waits for them."""

    kind = "test.parent"

    @perdure.phase(first=True)
    async def begin(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            tx.create_conversation(key="theirs", owner=invocation.id)
            asked = [tx.ask({"n": number}, owner=invocation) for number in range(2)]
            await tx.wait(asked, then=self.end)

    @perdure.phase
    async def end(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            tx.complete(None)


async def parent(kernel: Any) -> Any:
    session = await kernel.open(Parent)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Parent)
    return session, chat, task


@pytest.mark.invariant("V-8")
async def test_the_graph_shows_who_owns_whom_and_who_waits_on_whom_after_each_commit(kernel: Any, told: Any):
    session, chat, task = await parent(kernel)
    async with session.task_graph() as graph, session.watch_task_graph() as watch:
        await session.resume()
        await kernel.until(lambda: len(session.inspect().questions) == 2)
        seen = task_graph(graph.value)
        first, second = seen.owned(task.id)
        assert (
            [each.id for each in seen.waiters(first.id)] == [task.id] == [each.id for each in seen.waiters(second.id)]
        )
        assert seen.tasks[str(task.id)].on == (first.id, second.id)
        assert seen.tasks[str(task.id)].conversation == chat.id
        assert [each.key for each in seen.conversations.values()] == ["theirs"]
        assert [each.owner for each in seen.conversations.values()] == [task.id]

        await session.answer(first.id, "yes")
        assert str(first.id) not in graph.value["tasks"]
        await session.answer(second.id, "no")
        await kernel.until(lambda: not session.inspect().tasks)
        assert graph.value == {"tasks": {}, "conversations": {}}

        replica = perdure.Replica()
        ended: list[str] = []
        for frame in await told(watch):
            replica.apply(frame)
            ended += [each.path for each in frame.ended] if isinstance(frame, Deltas) else []
        assert replica.value == graph.value
        assert sorted(ended) == sorted(f"/tasks/{id}" for id in (first.id, second.id, task.id))


async def test_whoever_attaches_late_sees_the_same_graph(memory_kernel: Any):
    session, _, _ = await parent(memory_kernel)
    async with session.task_graph() as early:
        await session.resume()
        await memory_kernel.until(lambda: len(session.inspect().questions) == 2)
        value = early.value
    async with session.task_graph() as late:
        assert late.value == value


async def test_the_graph_survives_a_restart_with_the_tasks_in_it(kernel: Any):
    session, _, _ = await parent(kernel)
    await session.resume()
    await kernel.until(lambda: len(session.inspect().questions) == 2)
    async with session.task_graph() as graph:
        before = graph.value
    session = await kernel.reopen()
    async with session.task_graph() as graph:
        assert graph.value == before


async def test_what_a_task_owned_leaves_the_graph_with_it(memory_kernel: Any):
    session, _, task = await parent(memory_kernel)
    await session.resume()
    await memory_kernel.until(lambda: len(session.inspect().questions) == 2)
    async with session.task_graph() as graph:
        await session.abort_task(task.id)
        assert graph.value == {"tasks": {}, "conversations": {}}
