"""Definitions that are missing, older, newer or replaced while work runs (K34, K35)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import UsageError
from perdure.records import Completed, Orphaned
from perdure.tasks.definition import TaskDefinition, phase

pytestmark = pytest.mark.anyio


class Old(TaskDefinition):
    kind = "test.work"
    version = 1

    @phase(first=True)
    async def begin(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            question = tx.ask("go on?")
            await tx.wait([question], then=self.finish, text="old")

    @phase
    async def finish(self, invocation: Any, text: str) -> None:
        async with invocation.commit() as tx:
            tx.complete(["old code", text])


class New(TaskDefinition):
    kind = "test.work"
    version = 2

    def migrate(self, version: int, input: Any, checkpoint: Any) -> Any:
        assert version == 1
        assert "format" not in (input or {})
        return {"format": 2}, "middle", {"texts": [checkpoint.data["text"]]}

    @phase(first=True)
    async def start(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.next(self.middle, texts=[])

    @phase
    async def middle(self, invocation: Any, texts: list[str]) -> None:
        assert invocation.input == {"format": 2}
        async with invocation.commit() as tx:
            tx.next(self.last, texts=[*texts, "middle"])

    @phase
    async def last(self, invocation: Any, texts: list[str]) -> None:
        assert invocation.input == {"format": 2}
        async with invocation.commit() as tx:
            tx.complete(["new code", texts])


class Stuck(New):
    """Its migration fails."""

    kind = "test.work"

    def migrate(self, version: int, input: Any, checkpoint: Any) -> Any:
        raise ZeroDivisionError


class Unable(TaskDefinition):
    """Newer, and without a migration."""

    kind = "test.work"
    version = 3

    @phase(first=True)
    async def other(self, invocation: Any) -> None: ...


class Unlike(TaskDefinition):
    """Of the same version, without the phase that comes next."""

    kind = "test.work"

    @phase(first=True)
    async def other(self, invocation: Any) -> None: ...


async def waiting(kernel: Any) -> tuple[Any, Any, int]:
    """A task of the old definition that waits for an answer."""
    session = await kernel.open(Old)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Old)
    await session.resume()
    await kernel.until(lambda: session.inspect().questions)
    return session, task, session.inspect().questions[0].id


async def held(kernel: Any, *definitions: Any) -> tuple[Any, Any, Any]:
    """What becomes of it under other definitions, when it is to go on."""
    session, task, question = await waiting(kernel)
    session = await kernel.restart(*(definitions or (Other,)))
    await session.resume()
    await session.answer(question, True)
    await kernel.until(lambda: session.inspect().held)
    return session, task, session.inspect().held[0]


class Other(TaskDefinition):
    kind = "test.other"

    @phase(first=True)
    async def run(self, invocation: Any) -> None: ...


@pytest.mark.invariant("T-16")
@pytest.mark.parametrize(
    "definitions, reason, says",
    [
        ([], "definition", "no definition of task kind 'test.work'"),
        ([Stuck], "migration", "ZeroDivisionError"),
        ([Unable], "migration", "without `migrate`"),
        ([Unlike], "definition", "no phase 'finish'"),
    ],
)
async def test_work_that_no_code_fits_is_held_with_its_reason_until_fitting_code_is_there(
    kernel: Any, definitions: list[Any], reason: str, says: str
):
    session, task, info = await held(kernel, *definitions)
    assert info.reason == reason
    assert says in info.detail
    seq = session.inspect().seq
    idle = asyncio.create_task(session.wait_idle())
    await kernel.pass_time(1.0)
    assert not idle.done()
    assert session.inspect().seq == seq
    await session.install(kernel.registry(Old))
    await idle

    assert await session.wait_task(task.id) == Completed(result=["old code", "old"])


@pytest.mark.invariant("T-16")
async def test_held_work_of_missing_code_is_orphaned_by_an_abort_and_only_then(kernel: Any):
    session, task, _ = await held(kernel)
    assert await session.abort_task(task.id, "given up") == Orphaned(reason="given up")


@pytest.mark.invariant("T-16")
async def test_held_work_whose_code_is_there_is_aborted_by_it(kernel: Any):
    session, task, info = await held(kernel, Stuck)
    assert info.reason == "migration"
    outcome = await session.abort_task(task.id, "given up")
    assert type(outcome).__name__ in ("Aborted", "Orphaned")


@pytest.mark.invariant("T-17")
async def test_newer_code_takes_the_next_phase_over_migrated_once(kernel: Any):
    session, task, question = await waiting(kernel)
    await session.install(kernel.registry(New))
    await session.answer(question, True)

    assert await session.wait_task(task.id) == Completed(result=["new code", ["old", "middle"]])


@pytest.mark.invariant("T-17")
async def test_a_migrated_checkpoint_is_stored_with_the_version_that_wrote_it(kernel: Any):
    session, task, question = await waiting(kernel)
    session = await kernel.restart(New)
    seen: list[int] = []
    session.observe(lambda change: seen.extend(one.version for one in change.tasks.values() if one.id == task.id))
    await session.answer(question, True)
    await session.wait_task(task.id)

    assert seen[-1] == 2


@pytest.mark.invariant("T-17")
async def test_an_invocation_in_progress_keeps_the_code_it_took(kernel: Any):
    started, go_on = asyncio.Event(), asyncio.Event()

    class Slow(TaskDefinition):
        kind = "test.slow"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            started.set()
            await go_on.wait()
            async with invocation.commit() as tx:
                tx.complete("old")

    class Quick(TaskDefinition):
        kind = "test.slow"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.complete("new")

    session = await kernel.open(Slow)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        first = tx.create_task(Slow)
    await session.resume()
    await started.wait()
    await session.install(kernel.registry(Quick))
    async with chat.commit() as tx:
        second = tx.create_task(Quick)
    assert await session.wait_task(second.id) == Completed(result="new")
    go_on.set()
    assert await session.wait_task(first.id) == Completed(result="old")


def test_definitions_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="exactly one"):
        type("None_", (TaskDefinition,), {"kind": "test.none"})
    with pytest.raises(UsageError, match="perdure's"):
        type("Mine", (Other,), {"kind": "perdure.mine"})


def test_a_subclass_that_says_no_kind_anew_brings_its_own_phases():
    class First(TaskDefinition):
        kind = "test.inherited"

        @phase(first=True)
        async def begin(self, invocation: Any) -> None: ...

    class Second(First):
        version = 2

        @phase(first=True)
        async def begin(self, invocation: Any) -> None: ...

    assert Second.phases["begin"] is Second.begin
    assert Second.phases["begin"] is not First.phases["begin"]
