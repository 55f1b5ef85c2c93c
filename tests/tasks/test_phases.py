"""Phases: each invocation leaves the next checkpoint, a wait or an outcome behind (K24 to K26, K36, K42)."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import msgspec
import pytest

from perdure.errors import HandleExpired, NotFound, StorageRejected, TaskRefused, UsageError
from perdure.records import Aborted, Completed, ConversationId, Failed, Faulted, Terminal
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.faults import Failing

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")
COUNTS = document("test.counts", initial=lambda: {"n": 0})


def task_of(body: Any, **attributes: Any) -> Any:
    """A definition with one phase."""

    class One(TaskDefinition):
        kind = "test.one"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            await body(invocation)

    for name, value in attributes.items():
        setattr(One, name, value)
    return One


async def outcome_of(kernel: Any, definition: Any, input: Any = None) -> Any:
    session = kernel.session or await kernel.open(definition)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(definition, input)
    return await session.wait_task(task.id)


class Counting(TaskDefinition):
    kind = "test.counting"

    @phase(first=True)
    async def start(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.append(invocation.conversation, NOTE, data="start", task=invocation.id)
            (await tx.doc(COUNTS))["n"] += 1
            tx.next(self.go_on, left=2)

    @phase
    async def go_on(self, invocation: Any, left: int) -> None:
        async with invocation.commit() as tx:
            tx.append(invocation.conversation, NOTE, data=left)
            if left:
                tx.next(self.go_on, left=left - 1)
            else:
                tx.complete({"seen": invocation.input})


@pytest.mark.invariant("T-1")
async def test_each_phase_commits_its_checkpoint_with_what_it_did(kernel: Any):
    session = await kernel.open(Counting)
    chat = await session.conversation("a")
    changes: list[Any] = []
    session.observe(changes.append)
    async with chat.commit() as tx:
        task = tx.create_task(Counting, {"x": 1})
    outcome = await session.wait_task(task.id)

    assert outcome == Completed(result={"seen": {"x": 1}})
    assert [entry.data async for entry in chat.history()][::-1] == ["start", 2, 1, 0]
    assert await chat.snapshot(COUNTS) == {"n": 1}
    moves = [change for change in changes if change.entries]
    assert all(task.id in change.tasks for change in moves)
    assert isinstance(moves[-1].tasks[task.id].state, Terminal)
    session = await kernel.reopen()
    assert await session.wait_task(task.id) == outcome


@pytest.mark.invariant("T-2")
async def test_a_handler_that_moves_nothing_faults_its_task(kernel: Any):
    async def idle(invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.append(invocation.conversation, NOTE, data="something")

    outcome = await outcome_of(kernel, task_of(idle))
    assert isinstance(outcome, Faulted)
    assert "returned without committing" in outcome.error.message


@pytest.mark.invariant("T-2")
async def test_an_exception_faults_its_task_and_stores_no_stack(kernel: Any):
    async def breaks(invocation: Any) -> None:
        raise ZeroDivisionError("by \ud800 zero")

    outcome = await outcome_of(kernel, task_of(breaks))
    assert isinstance(outcome, Faulted)
    assert outcome.error.type == "ZeroDivisionError"
    assert outcome.error.message == "by \ufffd zero"


@pytest.mark.invariant("T-2")
async def test_code_that_cancels_itself_faults_its_task(kernel: Any):
    async def raises(invocation: Any) -> None:
        raise asyncio.CancelledError

    async def awaits_a_cancelled_future(invocation: Any) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    for body in (raises, awaits_a_cancelled_future):
        definition = task_of(body)
        if kernel.session is not None:
            await kernel.close()
        await kernel.open(definition)
        assert isinstance(await outcome_of(kernel, definition), Faulted)


@pytest.mark.invariant("T-2")
async def test_an_error_that_only_leaving_the_commit_shows_faults_the_task_once(kernel: Any):
    """The entry's conversation is looked at when the body has ended, after `complete` was staged."""
    ran: list[int] = []

    async def breaks(invocation: Any) -> None:
        ran.append(1)
        async with invocation.commit() as tx:
            tx.append(99_999, NOTE)
            tx.complete()

    outcome = await outcome_of(kernel, task_of(breaks))
    assert isinstance(outcome, Faulted)
    assert outcome.error.type == "NotFound"
    assert ran == [1]


async def test_a_session_that_another_session_s_error_passes_through_does_not_run_it_again(kernel: Any):
    """SessionClosed of somebody else's session is an error like any other."""
    other = await kernel.open()
    await kernel.close()
    ran: list[int] = []

    async def uses_another(invocation: Any) -> None:
        ran.append(1)
        async with other.commit():
            pass

    definition = task_of(uses_another)
    await kernel.open(definition)
    outcome = await outcome_of(kernel, definition)
    assert isinstance(outcome, Faulted)
    assert outcome.error.type == "SessionClosed"
    assert ran == [1]


@pytest.mark.invariant("T-3")
async def test_a_handle_is_dead_once_its_task_has_moved(kernel: Any):
    kept: list[Any] = []
    errors: list[Exception] = []

    async def moves_twice(invocation: Any) -> None:
        kept.append(invocation)
        async with invocation.commit() as tx:
            tx.complete(1)
        try:
            async with invocation.commit() as tx:
                tx.complete(2)
        except HandleExpired as error:
            errors.append(error)
            raise

    assert await outcome_of(kernel, task_of(moves_twice)) == Completed(result=1)
    assert len(errors) == 1
    with pytest.raises(HandleExpired):
        async with kept[0].commit():
            pass


@pytest.mark.invariant("T-3")
async def test_a_handle_is_dead_once_its_handler_has_returned(kernel: Any):
    go_on, tried = asyncio.Event(), asyncio.Event()
    errors: list[Exception] = []

    async def leaks(invocation: Any) -> None:
        async def later() -> None:
            await go_on.wait()
            try:
                async with invocation.commit() as tx:
                    tx.complete("too late")
            except HandleExpired as error:
                errors.append(error)
            tried.set()

        leaked.append(asyncio.create_task(later()))

    leaked: list[Any] = []
    definition = task_of(leaks)
    assert isinstance(await outcome_of(kernel, definition), Faulted)
    go_on.set()
    await tried.wait()
    assert len(errors) == 1


async def test_one_commit_moves_a_task_once(kernel: Any):
    async def twice(invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.complete(1)
            with pytest.raises(UsageError, match="has moved task"):
                tx.fail("no")

    assert await outcome_of(kernel, task_of(twice)) == Completed(result=1)


async def test_an_unknown_phase_is_refused_by_its_name(kernel: Any):
    async def wrong(invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.next("nowhere")

    definition = task_of(wrong)
    outcome = await outcome_of(kernel, definition)
    assert isinstance(outcome, Faulted)
    assert "'nowhere'" in outcome.error.message
    root = await kernel.session.root()
    with pytest.raises(UsageError, match="nowhere"):
        async with root.commit() as tx:
            tx.create_task(definition, phase="nowhere")


async def test_a_failure_is_kept_as_class_and_message(kernel: Any):
    async def fails(invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.fail(LookupError("no such card"))

    outcome = await outcome_of(kernel, task_of(fails))
    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.message) == ("LookupError", "no such card")


@pytest.mark.invariant("T-4")
async def test_a_memo_belongs_to_its_first_writer_and_survives(kernel: Any):
    found: list[Any] = []
    gate = asyncio.Event()

    class Remembering(TaskDefinition):
        kind = "test.remembering"
        replay = "safe"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                found.append(tx.memo("seed", invocation.attempt))
                found.append(tx.memo("seed", "other"))
            if invocation.attempt == 1:
                await gate.wait()
            async with invocation.commit() as tx:
                tx.complete()

    session = await kernel.open(Remembering)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Remembering)
    await session.resume()
    await kernel.until(lambda: len(found) == 2)
    session = await kernel.restart()
    await session.wait_task(task.id)

    assert found == [1, 1, 1, 1]


async def test_a_task_belongs_to_the_conversation_of_its_commit_unless_another_owner_is_named(kernel: Any):
    made: list[Any] = []

    async def owns(invocation: Any) -> None:
        async with invocation.commit() as tx:
            made.append(tx.create_task(leaf))
            made.append(tx.create_task(leaf, owner=await tx.use(invocation.conversation)))
            tx.complete()

    class Leaf(TaskDefinition):
        kind = "test.leaf"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.complete()

    leaf = Leaf
    definition = task_of(owns)
    session = await kernel.open(definition, Leaf)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        parent = tx.create_task(definition)
        by_handle = tx.create_task(Leaf, owner=chat)
        by_task = tx.create_task(Leaf, owner=parent)
    await session.wait_idle()

    assert (by_handle.owner, by_handle.conversation) == (None, chat.id)
    assert (by_task.owner, by_task.conversation) == (parent.id, chat.id)
    assert [task.owner for task in made] == [parent.id, None]
    with pytest.raises(UsageError, match="no conversation"):
        async with session.commit() as tx:
            tx.create_task(Leaf)
    missing = msgspec.structs.replace(await chat.record(), id=ConversationId(99_999))
    with pytest.raises(NotFound):
        async with session.commit() as tx:
            tx.create_task(Leaf, owner=missing)


@pytest.mark.invariant("T-5")
async def test_what_is_neither_task_nor_conversation_owns_no_work_and_is_named(kernel: Any):
    class Call:
        id = "29.0"

    definition = task_of(lambda invocation: None)
    session = await kernel.open(definition)
    chat = await session.conversation("a")

    with pytest.raises(UsageError, match=r"a Call \(id '29\.0'\) owns no tasks: name a task"):
        async with chat.commit() as tx:
            tx.create_task(definition, owner=Call())


async def test_no_work_is_made_under_an_owner_that_ends_or_has_no_code(kernel: Any):
    class Leaf(TaskDefinition):
        kind = "test.leaf"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.complete()

    session = await kernel.open(Leaf)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        ended, question = tx.create_task(Leaf), tx.ask("?")
    await session.wait_task(ended.id)
    async with chat.commit() as tx:
        marked = tx.create_task(Leaf)
        home = tx.create_conversation(owner=marked.id)
    for owner in (ended, question):
        with pytest.raises(TaskRefused):
            async with chat.commit() as tx:
                tx.create_task(Leaf, owner=owner)
        with pytest.raises(TaskRefused):
            async with chat.commit() as tx:
                tx.create_conversation(owner=owner.id)
    async with chat.commit() as tx:
        tx.abort_task(marked.id)
        for refused in (marked, home):
            with pytest.raises(TaskRefused):
                tx.create_task(Leaf, owner=refused)
    with pytest.raises(TaskRefused, match="K29"):  # its owner has ended now
        async with session.commit() as tx:
            tx.create_task(Leaf, owner=home)
    async with chat.commit() as tx:
        live = tx.create_task(Leaf)
        with pytest.raises(TaskRefused, match="background"):
            tx.create_task(Leaf, owner=live, background=True)


async def test_work_runs_in_the_scheduler_s_context_not_in_that_of_whoever_committed(kernel: Any):
    color: contextvars.ContextVar[str] = contextvars.ContextVar("color", default="none")
    seen: list[str] = []

    async def looks(invocation: Any) -> None:
        seen.append(color.get())
        async with invocation.commit() as tx:
            tx.complete()

    definition = task_of(looks)
    session = await kernel.open(definition)
    color.set("red")
    assert isinstance(await outcome_of(kernel, definition), Completed)
    assert session is kernel.session
    assert seen == ["none"]


async def test_a_move_that_was_refused_while_its_handler_was_told_nothing_is_made_again(memory_kernel: Any):
    """A handler may be cancelled by its own time limit while its commit is in flight."""
    kernel = memory_kernel
    kernel.wrap = lambda storage: Failing(storage, 4, "refused")
    attempts: list[int] = []

    async def impatient(invocation: Any) -> None:
        attempts.append(invocation.attempt)
        try:
            async with invocation.commit() as tx:
                tx.complete("done")
        except StorageRejected:
            return

    assert await outcome_of(kernel, task_of(impatient)) == Completed(result="done")
    assert attempts == [1, 2]


async def test_an_aborted_task_says_so(kernel: Any):
    async def waits(invocation: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    started = asyncio.Event()
    definition = task_of(waits)
    session = await kernel.open(definition)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(definition)
    await session.resume()
    await started.wait()

    assert await session.abort_task(task.id, "enough") == Aborted(reason="enough")
