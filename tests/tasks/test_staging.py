"""Phases that only stage are parts of the commits that make them due: nothing of them is kept by halves (K26)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import HandleExpired
from perdure.records import Completed, Faulted
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.staging import MOST_PARTS
from perdure.testing.faults import Failing

pytestmark = [pytest.mark.anyio, pytest.mark.invariant("T-23")]
NOTE = entry_kind("test.note")
COUNTS = document("test.counts", initial=lambda: {"n": 0, "by": {}})


def staging(body: Any) -> Any:
    """A definition whose first phase only stages; `body` is given its transaction."""

    class Staging(TaskDefinition):
        kind = "test.staging"

        @phase(first=True, stages=True)
        async def begin(self, tx: Any) -> None:
            await body(tx)

    return Staging


async def go(kernel: Any, definition: Any, *, count: int = 1) -> tuple[Any, list[Any], list[Any]]:
    """Make tasks in a session that runs; their outcomes, and what was published meanwhile."""
    session = kernel.session or await kernel.open(definition)
    chat = await session.conversation("a")
    await session.resume()
    changes: list[Any] = []
    session.observe(changes.append)
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data="made")
        (await tx.doc(COUNTS))["by"]["maker"] = 1
        tasks = [tx.create_task(definition) for _ in range(count)]
    outcomes = [await session.wait_task(task.id) for task in tasks]
    return chat, outcomes, changes


async def told(chat: Any) -> list[Any]:
    return [entry.data async for entry in chat.history()][::-1]


async def test_what_a_phase_stages_is_in_the_commit_that_makes_it_due(kernel: Any):
    async def body(tx: Any) -> None:
        tx.append(tx.conversation, NOTE, data="staged")
        (await tx.doc(COUNTS))["n"] += 1
        tx.complete("done")

    chat, outcomes, changes = await go(kernel, staging(body))
    assert outcomes == [Completed(result="done")]
    assert len(changes) == 1
    assert [entry.data for entry in changes[0].entries] == ["made", "staged"]
    assert await chat.snapshot(COUNTS) == {"n": 1, "by": {"maker": 1}}


@pytest.mark.parametrize("how", ["raise", "commit", "idle"])
async def test_a_phase_that_fails_in_there_takes_nothing_with_it_and_tells_in_its_own_commit(kernel: Any, how: str):
    runs: list[int] = []

    async def body(tx: Any) -> None:
        runs.append(1)
        tx.append(tx.conversation, NOTE, data="half")
        doc = await tx.doc(COUNTS)
        doc["n"] += 1
        doc["by"]["phase"] = 1
        if how != "idle":
            tx.create_task(staging(body))
        if how == "raise":
            raise RuntimeError("no")
        if how == "commit":
            async with tx.invocation.commit():
                pass

    chat, outcomes, _ = await go(kernel, staging(body))
    assert isinstance(outcomes[0], Faulted)
    assert len(runs) == 2
    assert await told(chat) == (["made", "half"] if how == "idle" else ["made"])
    assert (await chat.snapshot(COUNTS))["by"].get("phase") == (1 if how == "idle" else None)


async def test_a_part_that_ended_stages_nothing_more(kernel: Any):
    kept: list[Any] = []

    async def body(tx: Any) -> None:
        kept.append(tx)
        tx.complete()

    await go(kernel, staging(body))
    with pytest.raises(HandleExpired):
        kept[0].append(kept[0].conversation, NOTE)


async def test_a_part_may_read_what_is_not_in_memory(kernel: Any):
    async def body(tx: Any) -> None:
        entries = (await tx.transcript(tx.conversation)).entries
        tx.complete([[entry.data for entry in entries], (await tx.doc(COUNTS))["n"]])

    session = await kernel.open(staging(body))
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data="old")
        (await tx.doc(COUNTS))["n"] = 7
    session = await kernel.reopen()
    await session.resume()
    chat = await session.conversation("a")
    commits: list[Any] = []
    session.observe(commits.append)
    async with chat.commit() as tx:
        task = tx.create_task(kernel._tasks[0])
    assert await session.wait_task(task.id) == Completed(result=[["old"], 7])
    assert len(commits) == 1


async def test_more_phases_than_fit_one_commit_run_in_their_own(kernel: Any):
    async def body(tx: Any) -> None:
        tx.append(tx.conversation, NOTE, data="staged")
        tx.complete()

    count = MOST_PARTS + 3
    chat, outcomes, changes = await go(kernel, staging(body), count=count)
    assert outcomes == [Completed(result=None)] * count
    assert (await told(chat)).count("staged") == count
    assert len(changes) > 1


async def test_a_phase_that_goes_on_with_itself_lets_the_commit_end(kernel: Any):
    class Counting(TaskDefinition):
        kind = "test.counting"

        @phase(first=True, stages=True)
        async def count(self, tx: Any, n: int = 0) -> None:
            if n == 3 * MOST_PARTS:
                tx.complete(n)
            else:
                tx.next(self.count, n=n + 1)

    _, outcomes, changes = await go(kernel, Counting)
    assert outcomes == [Completed(result=3 * MOST_PARTS)]
    assert 1 < len(changes) <= 5


async def test_the_last_child_s_outcome_and_what_its_owner_makes_of_it_are_one_commit(kernel: Any):
    class Child(TaskDefinition):
        kind = "test.child"

        @phase(first=True)
        async def work(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.append(tx.conversation, NOTE, data="child")
                tx.complete(1)

    class Parent(TaskDefinition):
        kind = "test.parent"

        @phase(first=True)
        async def ask(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                await tx.wait([tx.create_task(Child)], then=self.conclude)

        @phase(stages=True)
        async def conclude(self, tx: Any) -> None:
            tx.append(tx.conversation, NOTE, data="parent")
            tx.complete(2)

    session = await kernel.open(Child, Parent)
    _, outcomes, changes = await go(kernel, Parent)
    assert session is kernel.session
    assert outcomes == [Completed(result=2)]
    assert [entry.data for entry in changes[-1].entries] == ["child", "parent"]


@pytest.mark.parametrize("at", range(4, 6))
@pytest.mark.parametrize("how", ["refused", "lost", "after", "full"])
async def test_a_commit_that_is_refused_takes_its_parts_along(memory_kernel: Any, how: Any, at: int):
    class Two(TaskDefinition):
        kind = "test.two"

        @phase(first=True)
        async def work(self, invocation: Any) -> None:
            async def body(tx: Any) -> None:
                tx.append(tx.conversation, NOTE, data="one")
                tx.next(self.conclude)

            await invocation.record(body)

        @phase(stages=True)
        async def conclude(self, tx: Any) -> None:
            tx.append(tx.conversation, NOTE, data="two")
            tx.complete()

    kernel = memory_kernel
    kernel.wrap = lambda storage: Failing(storage, at=at, how=how)
    session = await kernel.open(Two)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Two)
    await session.resume()
    for _ in range(8):
        await kernel.pass_time(0.5)
    assert await session.wait_task(task.id) == Completed(result=None)
    assert await told(chat) == ["one", "two"]


async def test_after_a_crash_a_phase_that_only_stages_runs_once(kernel: Any):
    async def body(tx: Any) -> None:
        tx.append(tx.conversation, NOTE, data="staged")
        tx.complete()

    session = await kernel.open(staging(body))
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(kernel._tasks[0])
    session = await kernel.restart()
    assert await session.wait_task(task.id) == Completed(result=None)
    assert await told(await session.conversation("a")) == ["staged"]
