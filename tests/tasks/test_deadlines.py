"""Waits that end by the clock, sleeps, waits that nobody awaits, and outcomes as values (K28, K36)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import InvalidValue, NotFound, TaskRefused, UsageError
from perdure.records import Aborted, Completed, ErrorInfo, Failed, Faulted
from perdure.tasks.definition import TaskDefinition, phase

pytestmark = pytest.mark.anyio


class Leaf(TaskDefinition):
    """Completes with its input; `hold` waits until it is aborted."""

    kind = "test.leaf"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        if invocation.input == "hold":
            await asyncio.Event().wait()
        async with invocation.commit() as tx:
            tx.complete(invocation.input)


class Limited(TaskDefinition):
    """Gives its children ten seconds. Does not await its wait."""

    kind = "test.limited"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            children = [tx.create_task(Leaf, text) for text in invocation.input]
            tx.wait(children, then=self.join, deadline=tx.now + 10, ids=[child.id for child in children])

    @phase
    async def join(self, invocation: Any, ids: list[int]) -> None:
        async with invocation.commit() as tx:
            tx.complete([type(each).__name__ for each in await tx.outcomes(ids)])


async def started(kernel: Any, definition: Any, input: Any = None) -> tuple[Any, Any, Any]:
    session = kernel.session
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(definition, input)
    await session.resume()
    return session, chat, task


@pytest.mark.invariant("T-24")
async def test_a_deadline_stops_what_has_not_ended_and_the_wait_goes_on(memory_kernel: Any):
    kernel = memory_kernel
    await kernel.open(Leaf, Limited)
    session, _, task = await started(kernel, Limited, ["a", "hold", "hold"])
    await kernel.pass_time(9.0)
    assert [each.state for each in session.inspect().tasks if each.id == task.id] == ["waiting"]
    await kernel.pass_time(1.1, lambda: not session.inspect().tasks)

    assert (await session.wait_task(task.id)).result == ["Completed", "Aborted", "Aborted"]


@pytest.mark.invariant("T-24")
async def test_a_deadline_that_passed_while_nobody_ran_stops_at_the_next_start(memory_kernel: Any):
    kernel = memory_kernel
    await kernel.open(Leaf, Limited)
    _, _, task = await started(kernel, Limited, ["hold"])
    await kernel.until(lambda: kernel.session.inspect().tasks[0].state == "waiting")
    await kernel.crash()
    await kernel.clock.advance(60)
    session = await kernel.open()

    assert (await session.wait_task(task.id)).result == ["Aborted"]


@pytest.mark.invariant("T-24")
async def test_what_ends_in_time_is_not_stopped(memory_kernel: Any):
    kernel = memory_kernel
    await kernel.open(Leaf, Limited)
    session, _, task = await started(kernel, Limited, ["a", "b"])
    assert (await session.wait_task(task.id)).result == ["Completed", "Completed"]
    await kernel.pass_time(60)
    assert session.inspect().tasks == []


class Stranger(TaskDefinition):
    """Sets a deadline for a task that is not its own."""

    kind = "test.stranger"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.wait([invocation.input], then=self.run, deadline=tx.now + 1)


@pytest.mark.invariant("T-24")
async def test_a_deadline_is_only_for_tasks_of_one_s_own(kernel: Any):
    await kernel.open(Leaf, Stranger)
    _, _, other = await started(kernel, Leaf, "hold")
    session, _, task = await started(kernel, Stranger, other.id)
    outcome = await session.wait_task(task.id)

    assert isinstance(outcome, Faulted)
    assert "not its own child" in outcome.error.message


class Late(TaskDefinition):
    """Waits for what its input names, and does not await the wait."""

    kind = "test.late"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.wait(invocation.input, then=self.after)

    @phase
    async def after(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.complete("went on")


@pytest.mark.invariant("T-6")
async def test_a_wait_that_nobody_awaits_may_name_what_ended_long_ago(kernel: Any):
    await kernel.open(Leaf, Late)
    session, _, leaf = await started(kernel, Leaf, "a")
    await session.wait_task(leaf.id)
    _, _, task = await started(kernel, Late, [leaf.id])

    assert (await session.wait_task(task.id)).result == "went on"


@pytest.mark.invariant("T-8")
async def test_a_wait_that_nobody_awaits_is_refused_by_its_commit(kernel: Any):
    await kernel.open(Late)
    session, _, task = await started(kernel, Late, [99_999])
    outcome = await session.wait_task(task.id)

    assert isinstance(outcome, Faulted)
    assert outcome.error.type == NotFound.__name__


class Sleeper(TaskDefinition):
    """Sleeps ten seconds, twice."""

    kind = "test.sleeper"

    @phase(first=True)
    async def run(self, invocation: Any, slept: int = 0) -> None:
        async with invocation.commit() as tx:
            if slept == 2:
                tx.complete(tx.now)
            else:
                tx.sleep(10, then=self.run, slept=slept + 1)


async def test_a_sleep_goes_on_after_its_seconds_also_across_a_restart(memory_kernel: Any):
    kernel = memory_kernel
    await kernel.open(Sleeper)
    session, _, task = await started(kernel, Sleeper)
    await kernel.pass_time(11.0, lambda: session.inspect().tasks[0].on)
    await kernel.crash()
    session = await kernel.open()
    await session.resume()
    await kernel.pass_time(10.0, lambda: not session.inspect().tasks)

    assert (await session.wait_task(task.id)).result >= 1020.0


class Backwards(TaskDefinition):
    kind = "test.backwards"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.sleep(-1, then=self.run)


async def test_nobody_sleeps_backwards(kernel: Any):
    await kernel.open(Backwards)
    session, _, task = await started(kernel, Backwards)
    assert "from 0 up" in (await session.wait_task(task.id)).error.message


def test_an_outcome_says_whether_it_completed_and_gives_its_result_as_a_type():
    assert [each.completed for each in (Completed(), Aborted(reason="x"))] == [True, False]
    assert Completed(result={"a": 1}).result_as(dict[str, int]) == {"a": 1}
    with pytest.raises(InvalidValue, match="is no"):
        Completed(result="text").result_as(int)
    with pytest.raises(UsageError, match="did not complete"):
        Failed(error=ErrorInfo(type="E", message="no")).result_as(int)


async def test_outcomes_inside_a_commit_are_those_of_the_tip(kernel: Any):
    await kernel.open(Leaf)
    session, chat, leaf = await started(kernel, Leaf, "a")
    await session.wait_task(leaf.id)
    async with chat.commit() as tx:
        question = tx.ask("?")
        assert await tx.outcomes([leaf.id]) == [Completed(result="a")]
        with pytest.raises(NotFound, match="wait for it first"):
            await tx.outcomes([question])
    with pytest.raises(TaskRefused):
        async with chat.commit() as tx:
            tx.create_task(Leaf, "b", owner=leaf)
