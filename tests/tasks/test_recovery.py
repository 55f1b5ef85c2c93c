"""What reopening makes of work that was running, and of work that crashes its process (K24a, K27, K39, K46, H44)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import NotFound, UsageError
from perdure.records import Completed, Inbound, decode_inbound
from perdure.session.documents import document
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.faults import Failing

pytestmark = pytest.mark.anyio
OUTPUT = document("test.output", scope="task", initial=lambda: {"text": ""})


class Working(TaskDefinition):
    """Notes how each attempt found itself, and hangs until `finish` is set."""

    kind = "test.working"
    begins = True
    progresses = False
    seen: Any = None
    finish: Any = None

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        if self.begins and not invocation.uncertain:
            await invocation.begin()
        if self.progresses:
            async with invocation.commit() as tx:
                (await tx.doc(OUTPUT))["text"] += "."
                tx.progress()
        self.seen.append((invocation.attempt, invocation.uncertain))
        await self.finish.wait()
        async with invocation.commit() as tx:
            tx.complete("uncertain" if invocation.uncertain else "done")


def working(**attributes: Any) -> Any:
    """A definition of its own, for its counters are the class's."""
    given = {"kind": "test.working", "seen": [], "finish": asyncio.Event(), **attributes}
    return type("Working", (Working,), given)


async def started(kernel: Any, definition: Any, count: int = 1) -> list[Any]:
    session = await kernel.open(definition)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        tasks = [tx.create_task(definition) for _ in range(count)]
    await session.resume()
    await kernel.until(lambda: len(definition.seen) == count)
    return tasks


async def crashed(kernel: Any, definition: Any) -> Any:
    """The next start, with its scheduler running and every attempt of it under way."""
    seen = len(definition.seen)
    session = await kernel.restart()
    await session.resume()
    reserved = [one for one in session.inspect().tasks if one.state == "running"]
    await kernel.until(lambda: len(definition.seen) == seen + len(reserved))
    return session


@pytest.mark.invariant("T-13")
async def test_a_task_that_was_only_reserved_simply_runs_again(kernel: Any):
    definition = working(begins=False)
    [task] = await started(kernel, definition)
    session = await crashed(kernel, definition)
    definition.finish.set()

    assert await session.wait_task(task.id) == Completed(result="done")
    assert definition.seen == [(1, False), (2, False)]


@pytest.mark.invariant("T-13")
async def test_an_unsafe_effect_that_had_begun_is_uncertain(kernel: Any):
    definition = working()
    [task] = await started(kernel, definition)
    session = await crashed(kernel, definition)
    definition.finish.set()

    assert await session.wait_task(task.id) == Completed(result="uncertain")
    assert definition.seen == [(1, False), (2, True)]


@pytest.mark.invariant("T-13")
async def test_a_safe_effect_runs_again(kernel: Any):
    definition = working(replay="safe")
    [task] = await started(kernel, definition)
    session = await crashed(kernel, definition)
    definition.finish.set()

    assert await session.wait_task(task.id) == Completed(result="done")
    assert definition.seen == [(1, False), (2, False)]


@pytest.mark.invariant("T-14")
async def test_opening_runs_no_task_code_and_reads_do_not_either(kernel: Any):
    definition = working()
    await started(kernel, definition)
    session = await kernel.restart()
    chat = await session.conversation("a")
    session.inspect()
    await chat.entries()
    await chat.snapshot(document("test.any"))
    async with chat.commit() as tx:
        tx.create_task(definition)
    await kernel.pass_time(10.0)

    assert len(definition.seen) == 1
    assert [one.state for one in session.inspect().tasks] == ["pending", "pending"]


@pytest.mark.invariant("T-14")
@pytest.mark.parametrize("wait", ["wait_idle", "wait_task", "conversation", "resume"])
async def test_each_wait_starts_the_scheduler(kernel: Any, wait: str):
    definition = working(begins=False)
    [task] = await started(kernel, definition)
    session = await kernel.reopen()
    chat = await session.conversation("a")
    definition.finish.set()
    waits = {
        "wait_idle": session.wait_idle,
        "wait_task": lambda: session.wait_task(task.id),
        "conversation": chat.wait_idle,
        "resume": session.resume,
    }
    await waits[wait]()
    await kernel.until(lambda: not session.inspect().tasks)


@pytest.mark.invariant("T-15")
async def test_the_third_crash_without_progress_parks_a_task_until_retry(kernel: Any):
    definition = working(replay="safe")
    [task] = await started(kernel, definition)
    await crashed(kernel, definition)
    session = await crashed(kernel, definition)
    assert [one.crashes for one in session.inspect().tasks] == [2]
    session = await crashed(kernel, definition)

    [held] = session.inspect().held
    assert (held.reason, held.crashes) == ("parked", 3)
    assert "died 3 times" in (held.detail or "")
    assert len(definition.seen) == 3
    definition.finish.set()
    await session.retry(task.id)
    assert await session.wait_task(task.id) == Completed(result="done")
    with pytest.raises(NotFound):
        await session.retry(task.id)


@pytest.mark.invariant("T-15")
@pytest.mark.parametrize("how", ["progress", "clean", "reserved"])
async def test_what_does_not_count_as_a_crash_of_the_task(kernel: Any, how: str):
    definition = working(replay="safe", progresses=how == "progress", begins=how != "reserved")
    [task] = await started(kernel, definition)
    for _ in range(5):
        if how == "clean":
            await kernel.close()
            await kernel.open()
            seen = len(definition.seen)
            await kernel.session.resume()
            await kernel.until(lambda seen=seen: len(definition.seen) > seen)
        else:
            await crashed(kernel, definition)
        assert [one.crashes for one in kernel.session.inspect().tasks] == [0]
    definition.finish.set()
    assert await kernel.session.wait_task(task.id) == Completed(result="done")


async def test_progress_of_one_attempt_does_not_excuse_the_next_ones(kernel: Any):
    definition = working(replay="safe", progresses=True)
    [_] = await started(kernel, definition)
    definition.progresses = False
    for _ in range(4):
        await crashed(kernel, definition)
    assert [one.reason for one in kernel.session.inspect().held] == ["parked"]


@pytest.mark.invariant("T-15")
async def test_suspects_run_one_at_a_time_and_each_gets_its_turn(kernel: Any):
    definition = working(replay="safe")
    await started(kernel, definition, count=3)
    await crashed(kernel, definition)
    session = await crashed(kernel, definition)
    assert sorted(one.state for one in session.inspect().tasks) == ["pending", "pending", "running"]
    assert [one.crashes for one in session.inspect().tasks] == [2, 2, 2]
    with pytest.raises(UsageError, match="not held"):
        await session.retry(next(one.id for one in session.inspect().tasks if one.state == "running"))
    definition.finish.set()
    await session.wait_idle()

    assert session.inspect().tasks == []


@pytest.mark.invariant("T-15")
async def test_the_next_suspect_runs_when_the_one_before_went_on_without_ending(kernel: Any):
    """It is no suspect any more, but it does not end either."""

    class Phased(working(replay="safe")):
        kind = "test.working"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            await invocation.begin()
            self.seen.append((invocation.id, invocation.attempt))
            await self.finish.wait()
            async with invocation.commit() as tx:
                tx.next(self.later)

        @phase
        async def later(self, invocation: Any) -> None:
            later.append(invocation.id)
            await asyncio.Event().wait()

    later: list[int] = []
    tasks = await started(kernel, Phased, count=2)
    await crashed(kernel, Phased)
    await crashed(kernel, Phased)
    Phased.finish.set()
    await kernel.until(lambda: len(later) == 2)

    assert sorted(later) == [task.id for task in tasks]


async def test_waiting_and_decided_tasks_stay_as_they_were(kernel: Any):
    class Asking(TaskDefinition):
        kind = "test.asking"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                question = tx.ask("?")
                await tx.wait([question], then=self.done)

        @phase
        async def done(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.complete("answered")

    session = await kernel.open(Asking)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Asking)
    await session.resume()
    await kernel.until(lambda: session.inspect().questions)
    session = await kernel.restart()
    [question] = session.inspect().questions
    await session.answer(question.id, "yes")

    assert await session.wait_task(task.id) == Completed(result="answered")


@pytest.mark.invariant("T-13")
async def test_a_recovery_commit_that_is_refused_is_made_anew(memory_kernel: Any):
    kernel = memory_kernel
    definition = working(begins=False)
    [task] = await started(kernel, definition)
    await kernel.crash()
    kernel.wrap = lambda storage: Failing(storage, 1, "refused", times=3)
    session = await kernel.open()
    definition.finish.set()

    assert await session.wait_task(task.id) == Completed(result="done")


async def test_an_inbound_item_that_its_handler_breaks_on_is_answered_and_keeps_nobody_out(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    await kernel.close()
    session = await kernel.open()
    await kernel.storage.hand_in("main", Inbound(id="bad", kind="input", body={"text": []}, at=0.0))
    await kernel.storage.hand_in("main", Inbound(id="odd", kind="nonsense", body=None, at=0.0))
    session = await kernel.restart()

    for id in ("bad", "odd"):
        item = decode_inbound(await kernel.storage.read_inbound("main", id))
        assert item.taken is not None
        assert "error" in item.answer
    assert (await session.conversation("a")).id == chat.id
