"""Aborts: a durable wish, bottom-up, with a grace for what ignores it; and background boundaries (K30 to K33)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import Revoked, StorageRejected, TaskRefused
from perdure.records import Aborted, Completed, Faulted
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.clock import settle
from perdure.testing.faults import Failing, Slow

pytestmark = pytest.mark.anyio


class Ordered(TaskDefinition):
    """Makes `input` levels of children below it, and waits; notes the order of abort handlers."""

    kind = "test.ordered"
    log: Any = None

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        if invocation.input:
            async with invocation.commit() as tx:
                child = tx.create_task(Ordered, invocation.input - 1)
                await tx.wait([child], then=self.run)
            return
        await asyncio.Event().wait()

    async def abort(self, invocation: Any) -> None:
        assert [one.id for one in invocation.line.memory.tip.children.get(invocation.id, ())] == []
        self.log.append(invocation.input)
        async with invocation.commit() as tx:
            tx.aborted()


@pytest.mark.invariant("T-10")
async def test_abort_handlers_run_bottom_up(kernel: Any):
    Ordered.log = []
    session = await kernel.open(Ordered)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        top = tx.create_task(Ordered, 3)
    await session.resume()
    await kernel.until(lambda: len(session.inspect().tasks) == 4)

    assert await session.abort_task(top.id, "enough") == Aborted(reason="enough")
    assert Ordered.log == [0, 1, 2, 3]
    assert session.inspect().tasks == []


@pytest.mark.invariant("T-10")
async def test_the_mark_survives_a_crash_and_no_phase_runs_again(kernel: Any):
    ran: list[str] = []
    stuck = asyncio.Event()

    class Work(TaskDefinition):
        kind = "test.work"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            ran.append("phase")
            await asyncio.Event().wait()

        async def abort(self, invocation: Any) -> None:
            ran.append("abort")
            if not stuck.is_set():
                stuck.set()
                await asyncio.Event().wait()
            async with invocation.commit() as tx:
                tx.aborted()

    session = await kernel.open(Work)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Work)
    await session.resume()
    await kernel.until(lambda: ran)
    async with session.commit() as tx:
        tx.abort_task(task.id, "enough")
    await stuck.wait()
    session = await kernel.restart()

    assert await session.wait_task(task.id) == Aborted(reason="enough")
    assert ran == ["phase", "abort", "abort"]


@pytest.mark.invariant("T-10")
async def test_work_that_nobody_ever_took_ends_with_the_mark(kernel: Any):
    session = await kernel.open(Ordered)
    chat = await session.conversation("a")
    async with chat.commit() as tx:  # nothing runs yet: the scheduler was not started
        task = tx.create_task(Ordered, 0)
    seq = session.inspect().seq
    async with session.commit() as tx:
        assert tx.abort_task(task.id)
        assert not tx.abort_task(task.id)

    assert session.inspect().seq == seq + 1
    assert session.inspect().tasks == []
    assert isinstance(await session.abort_task(task.id), Aborted)


@pytest.mark.invariant("T-11")
async def test_what_a_stopped_phase_still_gave_reaches_the_abort_handler(kernel: Any):
    """Also when the handler has to wait for the work below, and runs much later."""
    late: list[Any] = []
    refused: list[Exception] = []

    class Paying(TaskDefinition):
        kind = "test.paying"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            await invocation.begin()
            async with invocation.commit() as tx:
                tx.create_task(Slowly)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                try:
                    async with invocation.commit() as tx:
                        tx.complete("receipt")
                except Revoked as error:
                    refused.append(error)

        async def abort(self, invocation: Any) -> None:
            late.append(invocation.late)
            async with invocation.commit() as tx:
                tx.aborted()

    class Slowly(TaskDefinition):
        kind = "test.slowly"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            below.set()
            await asyncio.Event().wait()

        async def abort(self, invocation: Any) -> None:
            await go_on.wait()
            async with invocation.commit() as tx:
                tx.aborted()

    below, go_on = asyncio.Event(), asyncio.Event()
    session = await kernel.open(Paying, Slowly)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Paying)
    await session.resume()
    await below.wait()
    aborting = asyncio.create_task(session.abort_task(task.id, "enough"))
    await kernel.until(lambda: refused)
    assert late == []
    go_on.set()

    assert await aborting == Aborted(reason="enough", begun=True, result="receipt")
    assert late == [Completed(result="receipt")]
    assert not session._harness.scheduler.late


def stubborn(**also: Any) -> Any:
    """A definition whose phase ignores cancellation, and then tries to commit."""

    class Stubborn(TaskDefinition):
        kind = "test.stubborn"
        started: Any = None
        release: Any = None
        errors: Any = None

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            self.started.set()
            for _ in range(10):
                try:
                    await self.release.wait()
                    break
                except asyncio.CancelledError:
                    continue
            try:
                async with invocation.commit() as tx:
                    tx.complete("too late")
            except Exception as error:
                self.errors.append(error)
                raise

    Stubborn.started, Stubborn.release, Stubborn.errors = asyncio.Event(), asyncio.Event(), []
    for name, value in also.items():
        setattr(Stubborn, name, value)
    return Stubborn


@pytest.mark.invariant("T-11")
async def test_work_that_ignores_the_signal_is_detached_after_the_grace(memory_kernel: Any):
    kernel = memory_kernel
    definition = stubborn()
    session = await kernel.open(definition)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(definition)
    await session.resume()
    await definition.started.wait()
    aborting = asyncio.create_task(session.abort_task(task.id, "enough"))
    await kernel.pass_time(4.9)
    assert not aborting.done()
    await kernel.pass_time(0.2, aborting.done)

    assert await aborting == Aborted(reason="enough")
    assert session.inspect().detached == [task.id]
    definition.release.set()
    await kernel.until(lambda: definition.errors)
    assert isinstance(definition.errors[0], Revoked)
    await kernel.until(lambda: not session.inspect().detached)
    assert (await session.wait_task(task.id)) == Aborted(reason="enough")


async def test_a_body_that_is_open_when_its_invocation_is_detached_is_refused(memory_kernel: Any):
    """The code stands inside `async with invocation.commit()` and does not listen."""
    kernel = memory_kernel
    inside, go_on = asyncio.Event(), asyncio.Event()
    errors: list[Exception] = []

    class Holding(TaskDefinition):
        kind = "test.holding"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            try:
                async with invocation.commit() as tx:
                    inside.set()
                    for _ in range(10):
                        try:
                            await go_on.wait()
                            break
                        except asyncio.CancelledError:
                            continue
                    tx.complete("too late")
            except Revoked as error:
                errors.append(error)

    session = await kernel.open(Holding)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        tx.create_task(Holding)
    await session.resume()
    await inside.wait()
    closing = asyncio.create_task(session.close())
    await kernel.pass_time(6.0, closing.done)
    go_on.set()
    await kernel.until(lambda: not session.inspect().detached)

    session = await kernel.reopen()
    assert [one.state for one in session.inspect().tasks] == ["pending"]


@pytest.mark.invariant("T-10")
async def test_a_mark_that_comes_before_the_reserved_phase_starts_waits_for_the_work_below(memory_kernel: Any):
    """Between two phases nothing runs that could be signalled; the abort handler still comes last."""
    kernel = memory_kernel
    order: list[str] = []

    class Below(TaskDefinition):
        kind = "test.below"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            await asyncio.Event().wait()

        async def abort(self, invocation: Any) -> None:
            order.append("below")
            async with invocation.commit() as tx:
                tx.aborted()

    class Above(TaskDefinition):
        kind = "test.above"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.create_task(Below)
                tx.next(self.later)
            async with invocation.line.commit(type(tx).__mro__[1]) as other:  # before this handler returns
                other.abort_task(invocation.id, "enough")

        @phase
        async def later(self, invocation: Any) -> None:
            order.append("later")

        async def abort(self, invocation: Any) -> None:
            order.append("above")
            async with invocation.commit() as tx:
                tx.aborted()

    session = await kernel.open(Above, Below)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Above)

    assert isinstance(await session.wait_task(task.id), Aborted)
    assert order == ["below", "above"]


async def test_a_handler_that_aborts_itself_runs_its_abort_handler_undisturbed(kernel: Any):
    """The signal arrives while the handler runs, and must not reach what runs after it."""
    log: list[str] = []

    class Suicidal(TaskDefinition):
        kind = "test.suicidal"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.abort_task(invocation.id, "enough")
            log.append("went on")

        async def abort(self, invocation: Any) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(kernel.clock.sleep(0))
            await asyncio.wait_for(kernel.clock.sleep(0), 10)
            log.append("abort")
            async with invocation.commit() as tx:
                tx.aborted()

    session = await kernel.open(Suicidal)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Suicidal)

    assert await session.wait_task(task.id) == Aborted(reason="enough")
    assert log[-1] == "abort"


async def test_code_that_swallows_its_cancellation_is_followed_by_an_undisturbed_abort_handler(kernel: Any):
    log: list[str] = []
    started = asyncio.Event()

    class Swallowing(TaskDefinition):
        kind = "test.swallowing"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                log.append("swallowed")

        async def abort(self, invocation: Any) -> None:
            current = asyncio.current_task()
            assert current is not None
            log.append(f"cancelling {current.cancelling()}")
            async with invocation.commit() as tx:
                tx.aborted()

    session = await kernel.open(Swallowing)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Swallowing)
    await session.resume()
    await started.wait()

    assert isinstance(await session.abort_task(task.id), Aborted)
    assert log == ["swallowed", "cancelling 0"]


@pytest.mark.invariant("T-11")
async def test_an_abort_handler_decides_an_outcome_and_nothing_else(kernel: Any):
    class Restless(TaskDefinition):
        kind = "test.restless"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            started.set()
            await asyncio.Event().wait()

        async def abort(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                with pytest.raises(TaskRefused, match="decides an outcome"):
                    tx.next(self.run)
                with pytest.raises(TaskRefused):
                    tx.create_task(Restless)
            raise ZeroDivisionError

    started = asyncio.Event()
    session = await kernel.open(Restless)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Restless)
    await session.resume()
    await started.wait()
    outcome = await session.abort_task(task.id)

    assert isinstance(outcome, Faulted)
    assert outcome.error.type == "ZeroDivisionError"


async def test_no_effect_starts_once_the_mark_is_in_the_line(memory_kernel: Any):
    """The mark is in flight, so nobody was signalled yet."""
    kernel = memory_kernel
    kernel.wrap = lambda storage: Slow(storage, kernel.clock, [0, 0, 0, 5.0])
    effects: list[str] = []
    go_on, started = asyncio.Event(), asyncio.Event()

    class Paying(TaskDefinition):
        kind = "test.paying"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            started.set()
            await go_on.wait()
            await invocation.begin()
            effects.append("paid")

    session = await kernel.open(Paying)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Paying)
    await session.resume()
    await kernel.pass_time(0.1, started.is_set)
    aborting = asyncio.create_task(session.abort_task(task.id, "enough"))
    await kernel.pass_time(1.0)
    go_on.set()
    await kernel.pass_time(10.0, aborting.done)

    assert effects == []
    assert await aborting == Aborted(reason="enough")


@pytest.mark.invariant("T-12")
async def test_background_work_is_a_boundary_for_waits_and_ordinary_aborts(kernel: Any):
    Ordered.log = []
    session = await kernel.open(Ordered)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        front = tx.create_task(Ordered, 1)
        back = tx.create_task(Ordered, 1, background=True)
    await session.resume()
    await kernel.until(lambda: len(session.inspect().tasks) == 4)
    await chat.abort(reason="front")
    await chat.wait_idle()
    await session.wait_idle()

    left = session.inspect().tasks
    assert left[0].id == back.id
    assert len(left) == 2
    assert isinstance(await session.wait_task(front.id), Aborted)
    await chat.abort(background=True, reason="all")
    assert session.inspect().tasks == []


async def test_cancelling_a_wait_cancels_no_work(kernel: Any):
    Ordered.log = []
    session = await kernel.open(Ordered)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Ordered, 0)
    waits = [asyncio.create_task(wait) for wait in (session.wait_task(task.id), chat.wait_idle(), session.wait_idle())]
    await kernel.until(lambda: len(session._harness.scheduler._conditions) == 3)
    for wait in waits:
        wait.cancel()
    await asyncio.wait(waits)

    assert [one.state for one in session.inspect().tasks] == ["running"]
    assert not session._harness.scheduler._conditions


async def test_very_deep_ownership_is_walked_without_recursion(memory_kernel: Any):
    session = await memory_kernel.open(Ordered)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        owner = tx.create_task(Ordered, 0)
        for _ in range(3000):
            owner = tx.create_task(Ordered, 0, owner=owner)
    await chat.abort()
    assert session.inspect().tasks == []


async def test_a_mark_that_was_refused_leaves_nothing_behind_when_its_task_completes(memory_kernel: Any):
    """The handler met the mark in the line; then the mark was lost, and the outcome was recorded after all."""
    kernel = memory_kernel
    kernel.wrap = lambda storage: Slow(Failing(storage, 4, "refused"), kernel.clock, [0, 0, 0, 1.0])
    go_on, started = asyncio.Event(), asyncio.Event()

    class Recording(TaskDefinition):
        kind = "test.recording"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            started.set()
            await go_on.wait()

            async def outcome(tx: Any) -> None:
                tx.complete("recorded")

            await invocation.record(outcome)

    session = await kernel.open(Recording)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Recording)
    await session.resume()
    await kernel.pass_time(0.1, started.is_set)
    aborting = asyncio.create_task(session.abort_task(task.id))
    await settle()
    go_on.set()
    await kernel.pass_time(5.0, aborting.done)

    assert isinstance(aborting.exception(), StorageRejected)
    assert await session.wait_task(task.id) == Completed(result="recorded")
    await settle()
    assert not session._harness.scheduler.late
