"""Waits and owners: who resumes when, whom a policy stops, and when a decided outcome is final (K28, K29)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import NotFound, TaskRefused
from perdure.records import (
    ROOT,
    Aborted,
    AllSettled,
    Checkpoint,
    Completed,
    Completing,
    Failed,
    FailFast,
    Running,
    Task,
    TaskId,
    Terminal,
    Waiting,
)
from perdure.session.line import Paused
from perdure.settle.rules import settle
from perdure.settle.state import Candidate, State, evolve
from perdure.tasks.definition import TaskDefinition, phase

pytestmark = pytest.mark.anyio


class Leaf(TaskDefinition):
    """Ends as its input says; `hold` waits for ever, or until it is aborted."""

    kind = "test.leaf"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        if invocation.input == "hold":
            await asyncio.Event().wait()
        async with invocation.commit() as tx:
            if invocation.input == "fail":
                tx.fail("no")
            else:
                tx.complete(invocation.input)


class Parent(TaskDefinition):
    """Makes a child per input and waits for them by its policy."""

    kind = "test.parent"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        policy = invocation.input.get("policy", {})
        async with invocation.commit() as tx:
            children = [tx.create_task(Leaf, text) for text in invocation.input["children"]]
            await tx.wait(children, then=self.join, ids=[child.id for child in children], **policy)

    @phase
    async def join(self, invocation: Any, ids: list[int]) -> None:
        outcomes = await invocation.outcomes(ids)
        async with invocation.commit() as tx:
            tx.complete([type(outcome).__name__ for outcome in outcomes])


async def joined(kernel: Any, children: list[str], **policy: Any) -> Any:
    session = kernel.session or await kernel.open(Leaf, Parent)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Parent, {"children": children, "policy": policy})
    return (await session.wait_task(task.id)).result


@pytest.mark.invariant("T-6")
async def test_all_settled_resumes_when_all_have_ended_however(kernel: Any):
    assert await joined(kernel, ["a", "fail", "b"]) == ["Completed", "Failed", "Completed"]


@pytest.mark.invariant("T-6")
async def test_fail_fast_stops_the_others_at_the_first_bad_outcome(kernel: Any):
    assert await joined(kernel, ["hold", "fail", "hold"], policy="fail_fast") == ["Aborted", "Failed", "Aborted"]
    assert await joined(kernel, ["a", "b"], policy="fail_fast") == ["Completed", "Completed"]


@pytest.mark.invariant("T-6")
async def test_first_stops_the_others_at_the_nth_success(kernel: Any):
    result = await joined(kernel, ["hold", "a", "fail", "b", "hold"], first=2)
    assert result == ["Aborted", "Completed", "Failed", "Completed", "Aborted"]
    assert await joined(kernel, ["fail", "fail"], first=1) == ["Failed", "Failed"]


@pytest.mark.invariant("T-6")
async def test_an_empty_wait_resumes_at_once(kernel: Any):
    assert await joined(kernel, []) == []


@pytest.mark.invariant("T-7")
async def test_the_outcome_of_the_last_child_and_the_resumption_are_one_commit(kernel: Any):
    session = await kernel.open(Leaf, Parent)
    chat = await session.conversation("a")
    changes: list[Any] = []
    session.observe(changes.append)
    async with chat.commit() as tx:
        task = tx.create_task(Parent, {"children": ["a", "b"]})
    await session.wait_task(task.id)

    def ends_a_leaf(change: Any) -> bool:
        return any(one.kind == "test.leaf" and not one.live for one in change.tasks.values())

    last = [change for change in changes if ends_a_leaf(change)]
    assert not isinstance(last[-1].tasks[task.id].state, Waiting | Terminal)


def waiting_on(make: Any, **policy: Any) -> Any:
    """A definition that waits for what `make(tx, invocation)` names."""

    class Waiter(TaskDefinition):
        kind = "test.waiter"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                await tx.wait(await make(tx, invocation), then=self.join, **policy)

        @phase
        async def join(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.complete("joined")

    return Waiter


async def outcome_of(kernel: Any, definition: Any) -> Any:
    session = kernel.session or await kernel.open(Leaf, Parent, definition)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(definition)
    return await session.wait_task(task.id)


@pytest.mark.invariant("T-6")
async def test_waiting_on_tasks_that_ended_long_ago_and_that_others_own(kernel: Any):
    session = await kernel.open(Leaf, Parent)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        old = tx.create_task(Leaf, "old")
    await session.wait_task(old.id)
    await kernel.close()

    async def both(tx: Any, invocation: Any) -> Any:
        return [old.id, tx.create_task(Leaf, "new", owner=await tx.use(invocation.conversation))]

    definition = waiting_on(both)
    session = await kernel.open(Leaf, Parent, definition)
    assert await outcome_of(kernel, definition) == Completed(result="joined")
    assert not session._line.memory.tip.outcomes
    assert not session._line.memory.tip.waiters


@pytest.mark.invariant("T-6")
async def test_a_wait_on_what_ends_in_the_very_commit_that_waits(kernel: Any):
    """One target ends as the wait is committed, the other later: the first outcome must not get lost."""

    async def both(tx: Any, invocation: Any) -> Any:
        children = [tx.create_task(Leaf, "hold"), tx.create_task(Leaf, "later")]
        tx.abort_task(children[0].id)
        return children

    definition = waiting_on(both)
    assert await outcome_of(kernel, definition) == Completed(result="joined")


async def test_only_outcomes_that_a_waiting_task_names_are_kept_in_memory(kernel: Any):
    session = await kernel.open(Leaf, Parent)
    for _ in range(5):
        await joined(kernel, ["a", "fail"])
    assert not session._line.memory.tip.outcomes
    assert not session._line.memory.published.outcomes


@pytest.mark.invariant("T-8")
async def test_waits_that_could_never_end_are_refused(kernel: Any):
    refusals: list[str] = []

    async def tries(tx: Any, invocation: Any) -> Any:
        async def refused(on: Any, error: Any = TaskRefused, **policy: Any) -> None:
            with pytest.raises(error) as info:
                await tx.wait(on, then="join", **policy)
            refusals.append(str(info.value))

        own = tx.own
        stranger = tx.create_task(Leaf, "a", owner=await tx.use(own.conversation))
        await refused([own.id])
        await refused([99_999], NotFound)
        await refused([own.owner])
        await refused([stranger], policy="fail_fast")
        await refused([stranger], first=1)
        child = tx.create_task(Leaf, "a")
        await refused([child], first=2)
        await refused([child], first=0)
        await refused([child], policy="sometimes")
        return [child]

    inner = waiting_on(tries)

    class Outer(TaskDefinition):
        kind = "test.outer"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                child = tx.create_task(inner)
                await tx.wait([child], then="join")

        @phase
        async def join(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.complete("outer")

    await kernel.open(Leaf, inner, Outer)
    assert await outcome_of(kernel, Outer) == Completed(result="outer")
    assert len(refusals) == 8
    assert "itself" in refusals[0]
    assert "cannot end before it" in refusals[2]


@pytest.mark.invariant("T-8")
async def test_two_tasks_cannot_wait_for_each_other(kernel: Any):
    errors: list[Exception] = []
    ids: list[int] = []

    class Mutual(TaskDefinition):
        kind = "test.mutual"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            other = next(id for id in ids if id != invocation.id)
            try:
                async with invocation.commit() as tx:
                    await tx.wait([other], then=self.join)
            except TaskRefused as error:
                errors.append(error)
                async with invocation.commit() as tx:
                    tx.complete("refused")

        @phase
        async def join(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.complete("joined")

    session = await kernel.open(Mutual)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        ids.extend(tx.create_task(Mutual).id for _ in range(2))
    results = [(await session.wait_task(id)).result for id in ids]

    assert sorted(results) == ["joined", "refused"]
    assert len(errors) == 1


# -- owners ---------------------------------------------------------------------------------------


class Ending(TaskDefinition):
    """Decides its outcome while a child lives."""

    kind = "test.ending"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.ask({"child": True})
            if invocation.input == "fail":
                tx.fail("decided")
            else:
                tx.complete("decided")


async def ending(kernel: Any, input: str) -> tuple[Any, Any, int]:
    session = await kernel.open(Ending)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Ending, input)
    await session.resume()
    await kernel.until(lambda: task.id not in running(session))
    return session, task, max((one.id for one in session.inspect().tasks), default=0)


def running(session: Any) -> list[int]:
    return [one.id for one in session.inspect().tasks if one.state in ("pending", "running")]


@pytest.mark.invariant("T-9")
async def test_a_completed_outcome_waits_for_the_work_below_it(kernel: Any):
    session, task, question = await ending(kernel, "complete")
    assert [(one.id, one.state) for one in session.inspect().tasks] == [(task.id, "completing"), (question, "waiting")]
    await kernel.crash()
    session = await kernel.open()
    await session.resume()
    assert [one.state for one in session.inspect().tasks] == ["completing", "waiting"]
    with pytest.raises(TaskRefused):
        async with session.commit() as tx:
            tx.create_task(Ending, owner=task)
    await session.answer(question, True)

    assert await session.wait_task(task.id) == Completed(result="decided")


@pytest.mark.invariant("T-9")
async def test_a_bad_outcome_aborts_the_work_below_it(kernel: Any):
    session, task, _ = await ending(kernel, "fail")
    assert isinstance(await session.wait_task(task.id), Failed)
    assert session.inspect().tasks == []


@pytest.mark.invariant("T-9")
async def test_a_mark_on_a_decided_outcome_only_stops_the_work_below(kernel: Any):
    session, task, question = await ending(kernel, "complete")

    assert await session.abort_task(task.id) == Completed(result="decided")
    assert isinstance(await session.wait_task(question), Aborted)


async def test_an_owner_waits_for_work_in_conversations_that_it_owns_but_not_for_their_background_work(kernel: Any):
    class Owner(TaskDefinition):
        kind = "test.owner"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                home = tx.create_conversation(owner=invocation.id)
                tx.conversation, tx.task_id = home.id, None
                ids.append(tx.ask("ordinary", owner=home).id)
                ids.append(tx.create_task(Leaf, "hold", owner=home, background=True).id)
                tx.complete("decided")

    ids: list[int] = []
    session = await kernel.open(Owner, Leaf)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Owner)
    await session.resume()
    await kernel.until(lambda: ids)
    await kernel.until(lambda: "completing" in [one.state for one in session.inspect().tasks])
    assert not session._harness.scheduler.idle(chat.id)
    await session.answer(ids[0], True)

    assert await session.wait_task(task.id) == Completed(result="decided")
    await chat.wait_idle()
    await session.wait_idle()
    assert [one.id for one in session.inspect().tasks] == [ids[1]]


@pytest.mark.invariant("T-7")
@pytest.mark.parametrize("policy", ["all_settled", "fail_fast"])
def test_an_outcome_looks_at_few_others_however_wide_the_wait(policy: str):
    """Counted in looks at outcomes: settling may not go through all that a wait names for each of them."""
    looks = [settled_one_by_one(width, policy) for width in (50, 400)]
    assert looks[1] <= looks[0] + 2


def settled_one_by_one(width: int, policy: str) -> int:
    """How often outcomes are looked at when the last child but one ends."""
    state, rules = State(), Paused()
    first = Candidate(state)
    ids = tuple(TaskId(number) for number in range(2, width + 2))
    checkpoint = Checkpoint(phase="x")
    waiting = Waiting(checkpoint=checkpoint, on=ids, policy=FailFast() if policy == "fail_fast" else AllSettled())
    first.put(Task(id=TaskId(1), kind="x", version=1, conversation=ROOT, state=waiting, at=0.0))
    for id in ids:
        running = Running(checkpoint=checkpoint)
        first.put(Task(id=id, kind="x", version=1, conversation=ROOT, owner=TaskId(1), state=running, at=0.0))
    settle(first, rules, 0.0)
    state.apply(first)
    looks = 0
    for id in ids[:-1]:
        candidate = Looking(state)
        candidate.put(evolve(state.tasks[id], state=Completing(outcome=Completed())))
        settle(candidate, rules, 0.0)
        state.apply(candidate)
        looks = candidate.looks
    assert list(state.tasks) == [1, ids[-1]]
    return looks


class Looking(Candidate):
    looks = 0

    def outcome(self, id: TaskId) -> Any:
        self.looks += 1
        return super().outcome(id)
