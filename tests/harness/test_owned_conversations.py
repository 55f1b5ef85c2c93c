"""Conversations that a task owns: what they were handed settles when their owner ends (K29)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import TaskRefused
from perdure.harness.registry import Extension, Registry
from perdure.harness.submissions import NotAnswered
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.scripted import answer, by_prompt, say, wait

pytestmark = pytest.mark.anyio


class Owner(TaskDefinition):
    """Owns a conversation and waits for a person."""

    kind = "test.owner"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.create_conversation(key="below", owner=invocation.id)
            tx.wait([tx.ask("stay?", owner=invocation)], then=self.end)

    @phase
    async def end(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.complete()


async def owning(world: Any, script: Any) -> tuple[Any, Any, Any]:
    session = await world.open(script, registry=Registry([Extension(name="test", tasks=[Owner])]))
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Owner)
    await session.resume()
    await world.until(lambda: session.inspect().questions)
    return session, task, await session.conversation("below")


@pytest.mark.invariant("T-25")
async def test_what_waits_below_a_task_that_is_stopped_settles_with_it(world: Any):
    gate = asyncio.Event()
    session, task, below = await owning(world, by_prompt({"one": answer(say("I begin"), wait(gate)), "two": say("no")}))
    sent = [await below.submit("one"), await below.submit("two"), await below.write(entry_kind("note"), "x")]
    await world.until(lambda: below.busy)
    await world.running(session.abort_task(task.id, "no more"))

    assert [type(await each.wait()) for each in sent] == [NotAnswered] * 3
    assert {(await each.wait()).reason for each in sent} == {"aborted"}
    assert session.inspect().submissions == []
    with pytest.raises(TaskRefused):
        await below.submit("three")


@pytest.mark.invariant("T-25")
async def test_what_a_failed_run_left_in_the_inbox_settles_when_the_owner_completes(world: Any):
    gate = asyncio.Event()
    session, task, below = await owning(world, by_prompt({"one": answer(wait(gate), say(""), stop="refusal")}))
    first = await below.submit("one")
    await world.until(lambda: below.busy)
    left = await below.submit("two")
    await world.running(below.abort(queue="keep"))
    assert (await first.wait()).reason == "aborted"
    assert await left.status() == "queued"
    await session.answer(session.inspect().questions[0].id, "no")
    await session.wait_task(task.id)

    assert "owns this conversation" in (await left.wait()).detail
