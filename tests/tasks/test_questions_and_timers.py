"""Work that someone outside or the clock completes (K36, K37)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import AlreadyAnswered, NotFound, UsageError
from perdure.records import Aborted, Completed
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.questions import answered

pytestmark = pytest.mark.anyio


class Asking(TaskDefinition):
    kind = "test.asking"

    @phase(first=True)
    async def ask(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            question = tx.ask({"sure": True}, **(invocation.input or {}))
            await tx.wait([question], then=self.decide, question=question.id)

    @phase
    async def decide(self, invocation: Any, question: int) -> None:
        [outcome] = await invocation.outcomes([question])
        async with invocation.commit() as tx:
            tx.complete(list(answered(outcome)))


async def asked(kernel: Any, **options: Any) -> tuple[Any, Any, Any]:
    session = await kernel.open(Asking)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Asking, options)
    await session.resume()
    await kernel.until(lambda: session.inspect().questions)
    return session, task, session.inspect().questions[0]


@pytest.mark.invariant("T-18")
async def test_a_question_survives_a_restart_and_is_answered_once(kernel: Any):
    session, task, question = await asked(kernel)
    assert question.payload == {"sure": True}
    session = await kernel.restart()
    results = await asyncio.gather(
        *(session.answer(question.id, number, by=f"p{number}") for number in range(3)), return_exceptions=True
    )

    assert results[0] is None
    for late in results[1:]:
        assert isinstance(late, AlreadyAnswered)
        assert (late.by, late.at) == ("p0", kernel.clock.now())
    assert await session.wait_task(task.id) == Completed(result=[True, 0, "p0"])
    session = await kernel.reopen()
    with pytest.raises(AlreadyAnswered, match="p0"):
        await session.answer(question.id, 1)


@pytest.mark.invariant("T-18")
async def test_aborting_the_asker_ends_the_question_and_a_late_answer_changes_nothing(kernel: Any):
    session, task, question = await asked(kernel)
    assert isinstance(await session.abort_task(task.id, "changed my mind"), Aborted)
    seq = session.inspect().seq

    with pytest.raises(AlreadyAnswered, match="changed my mind"):
        await session.answer(question.id, True)
    assert session.inspect().seq == seq
    assert isinstance(await session.wait_task(question.id), Aborted)


async def test_only_questions_are_answered(kernel: Any):
    session, task, _ = await asked(kernel)
    with pytest.raises(UsageError, match="not a question"):
        await session.answer(task.id, True)
    with pytest.raises(NotFound):
        await session.answer(99_999, True)


@pytest.mark.invariant("T-19")
async def test_the_deadline_answers_with_the_default_also_when_it_passed_while_nobody_ran(kernel: Any):
    session, task, question = await asked(kernel, deadline=1060.0, default="no")
    assert question.deadline == 1060.0
    await kernel.pass_time(59.0)
    assert session.inspect().questions
    await kernel.close()
    await kernel.clock.advance(3600.0)
    session = await kernel.open()
    assert session.inspect().questions

    assert await session.wait_task(task.id) == Completed(result=[True, "no", "deadline"])
    with pytest.raises(AlreadyAnswered, match="deadline"):
        await session.answer(question.id, "yes")


@pytest.mark.invariant("T-19")
@pytest.mark.invariant("T-18")
async def test_an_answer_after_the_deadline_is_too_late_though_nobody_ran_to_note_it(kernel: Any):
    session, task, question = await asked(kernel, deadline=1060.0, default="no")
    await kernel.close()
    await kernel.clock.advance(3600.0)
    session = await kernel.open()
    with pytest.raises(AlreadyAnswered, match="deadline"):
        await session.answer(question.id, "yes")
    assert session.inspect().questions
    assert await session.wait_task(task.id) == Completed(result=[True, "no", "deadline"])


async def test_timers_end_in_the_order_of_their_deadlines(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    ended: list[int] = []
    session.observe(lambda change: ended.extend(task.id for task in change.tasks.values() if not task.live))
    await session.resume()
    async with chat.commit() as tx:
        late, early = tx.timer(1500.0), tx.timer(1100.0)
    async with chat.commit() as tx:
        past = tx.timer(900.0)
    await kernel.until(lambda: ended == [past.id])
    async with chat.commit() as tx:
        earliest = tx.timer(1050.0)
    await kernel.pass_time(60.0, lambda: len(ended) == 2)
    await kernel.pass_time(60.0, lambda: len(ended) == 3)
    await kernel.pass_time(400.0, lambda: len(ended) == 4)

    assert ended == [past.id, earliest.id, early.id, late.id]
    assert await session.wait_task(late.id) == Completed()


async def test_a_wall_clock_that_is_set_forward_is_noticed_within_a_minute(memory_kernel: Any):
    kernel = memory_kernel
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        tx.timer(100_000.0)
    await session.resume()
    await kernel.pass_time(1.0)
    kernel.clock.shift(200_000.0)
    await kernel.pass_time(61.0)

    assert session.inspect().tasks == []


async def test_deadlines_of_answered_questions_take_no_memory_for_long(memory_kernel: Any):
    session = await memory_kernel.open()
    chat = await session.conversation("a")
    await session.resume()
    for _ in range(700):
        async with chat.commit() as tx:
            question = tx.ask("?", deadline=1e9)
        await session.answer(question.id, True)

    assert len(session._harness.scheduler.timers._heap) < 300


async def test_an_aborted_timer_ends_at_once(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        timer = tx.timer(1e9)
    assert isinstance(await session.abort_task(timer.id), Aborted)
