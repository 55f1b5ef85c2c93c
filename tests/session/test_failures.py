"""Storages that refuse, lose answers, fill up, fail in doubt and change hands (K1, K5, K8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import (
    AlreadyAnswered,
    Fenced,
    SessionPoisoned,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageRejected,
    UsageError,
)
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.faults import Failing, Faulty, Slow

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")
LIST = document("test.list", initial=lambda: {"items": []})


async def texts(chat: Any) -> list[Any]:
    return [entry.data async for entry in chat.history()][::-1]


async def add(chat: Any, text: Any) -> None:
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data=text)
        (await tx.doc(LIST))["items"].append(text)


class Choosing(Faulty):
    """Asks the test which fault strikes the next write."""

    how: Any = None

    def choose(self, op: Any) -> Any:
        how, self.how = (self.how, None) if op == "commit" else (None, self.how)
        return how


async def opened(kernel: Any) -> tuple[Any, Any]:
    kernel.wrap = Choosing
    session = await kernel.open()
    return session, await session.conversation("a")


@pytest.mark.invariant("S-5")
@pytest.mark.parametrize("how", ["before", "refused", "full", "lost"])
async def test_a_refused_commit_leaves_no_trace_and_the_session_goes_on(kernel: Any, how: str):
    _, chat = await opened(kernel)
    await add(chat, 1)
    kernel.storage.how = how

    with pytest.raises(StorageRejected):
        await add(chat, 2)

    assert await texts(chat) == [1]
    assert await chat.snapshot(LIST) == {"items": [1]}
    await add(chat, 3)
    session = await kernel.reopen()
    chat = await session.conversation("a")
    assert await texts(chat) == [1, 3]
    assert await chat.snapshot(LIST) == {"items": [1, 3]}


@pytest.mark.invariant("S-6")
async def test_a_lost_acknowledgement_of_a_kept_commit_is_looked_up(kernel: Any):
    _, chat = await opened(kernel)
    kernel.storage.how = "after"

    await add(chat, 1)

    assert await texts(chat) == [1]
    assert await chat.snapshot(LIST) == {"items": [1]}


@pytest.mark.invariant("S-6")
async def test_looking_a_commit_up_goes_on_until_the_connection_is_back(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Failing(Failing(storage, 2, "after"), 1, "lost", times=3, op="find_commit")
    session = await kernel.open()
    chat = await session.conversation("a")

    adding = asyncio.create_task(add(chat, 1))
    await kernel.pass_time(1.0)
    assert not adding.done()
    await kernel.pass_time(1.0, adding.done)

    assert await texts(chat) == [1]


@pytest.mark.invariant("S-5")
async def test_a_refused_commit_fails_those_behind_it_and_the_next_ones_go_on(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Slow(Failing(storage, 3, "refused"), kernel.clock, [0, 1, 1, 1])
    session = await kernel.open()
    chat = await session.conversation("a")

    adding = [asyncio.create_task(add(chat, number)) for number in range(3)]
    await kernel.pass_time(10.0)
    results = await asyncio.gather(*adding, return_exceptions=True)

    assert results[0] is None
    assert [type(result) for result in results[1:]] == [StorageRejected, StorageRejected]
    assert await texts(chat) == [0]
    await asyncio.gather(asyncio.create_task(add(chat, 9)), kernel.pass_time(10.0))
    assert await texts(chat) == [0, 9]
    assert await chat.snapshot(LIST) == {"items": [0, 9]}


@pytest.mark.invariant("S-5")
async def test_a_body_that_saw_a_tip_that_was_lost_is_refused(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Slow(Failing(storage, 2, "refused"), kernel.clock, [0, 1])
    session = await kernel.open()
    chat = await session.conversation("a")
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def builds_on_it() -> None:
        async with chat.commit() as tx:
            assert (await tx.doc(LIST))["items"] == ["first"]
            inside.set()
            await go_on.wait()
            tx.append(chat.id, NOTE, data="second")

    first = asyncio.create_task(add(chat, "first"))
    second = asyncio.create_task(builds_on_it())
    await inside.wait()
    await kernel.pass_time(5.0, first.done)
    go_on.set()

    for failed in (first, second):
        with pytest.raises(StorageRejected):
            await failed
    assert await texts(chat) == []


@pytest.mark.invariant("S-7")
@pytest.mark.parametrize("kept", [True, False])
async def test_an_answer_from_the_tip_is_given_only_once_the_tip_is_durable(memory_kernel: Any, kept: bool):
    """Here: "somebody else answered before", while that somebody's commit is in flight."""
    kernel = memory_kernel
    faults = [0, 0, 5.0]
    kernel.wrap = lambda storage: Slow(Failing(storage, 99 if kept else 3, "refused"), kernel.clock, faults)
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        question = tx.ask({"sure": True})

    first = asyncio.create_task(session.answer(question.id, True, by="ann"))
    second = asyncio.create_task(session.answer(question.id, False, by="ben"))
    await kernel.pass_time(1.0)
    assert not second.done()
    await kernel.pass_time(5.0, lambda: first.done() and second.done())

    if kept:
        assert isinstance(second.exception(), AlreadyAnswered)
    else:
        assert isinstance(first.exception(), StorageRejected)
        assert isinstance(second.exception(), StorageRejected)


@pytest.mark.invariant("S-7")
async def test_an_answer_from_a_tip_that_was_lost_meanwhile_is_not_given(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Slow(Failing(storage, 3, "refused"), kernel.clock, [0, 0, 1.0])
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        question = tx.ask({"sure": True})
    go_on = asyncio.Event()

    async def refuses() -> None:
        async with session.commit() as tx:
            answered = tx.task(question.id) is None
            await go_on.wait()
            if answered:
                raise AlreadyAnswered("too late")

    first = asyncio.create_task(session.answer(question.id, True))
    second = asyncio.create_task(refuses())
    await kernel.pass_time(5.0, first.done)
    go_on.set()

    with pytest.raises(StorageRejected):
        await second
    assert isinstance(first.exception(), StorageRejected)


@pytest.mark.invariant("S-8")
@pytest.mark.parametrize("how", ["poison", "poison_after"])
async def test_a_write_that_failed_in_doubt_stops_the_session_for_good(kernel: Any, how: str):
    session, chat = await opened(kernel)
    await add(chat, 1)
    waiting = asyncio.create_task(session.until(lambda: False))
    seen: list[Any] = []
    session.observe(seen.append)
    attached = await chat.attach(LIST)
    await kernel.until(lambda: session._harness.scheduler._conditions)
    kernel.storage.how = how

    with pytest.raises(StorageFailed):
        await add(chat, 2)

    with pytest.raises(SessionPoisoned):
        await add(chat, 3)
    with pytest.raises(SessionPoisoned):
        await session.wait_idle()
    with pytest.raises(SessionPoisoned):
        await chat.snapshot(LIST)
    with pytest.raises(StorageError):
        await waiting
    assert seen == []
    assert attached.closed
    assert "stopped" in session.inspect().storage


@pytest.mark.invariant("S-8")
async def test_a_fenced_session_says_so_and_starts_nothing_more(kernel: Any):
    started: list[int] = []

    class Work(TaskDefinition):
        kind = "test.work"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            started.append(invocation.id)
            await asyncio.Event().wait()

    session = await kernel.open(Work)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Work)
    await session.resume()
    await kernel.until(lambda: started)
    waiting = asyncio.create_task(session.wait_task(task.id))
    await kernel.until(lambda: session._harness.scheduler._conditions)
    await kernel.storage.claim("main", take_over=True)

    with pytest.raises(Fenced):
        await add(chat, 1)
    with pytest.raises(Fenced):
        await waiting
    with pytest.raises(Fenced):
        async with chat.commit() as tx:
            tx.create_task(Work)
    await kernel.until(lambda: not session._harness.scheduler._runners)
    assert started == [task.id]


class Recording(TaskDefinition):
    kind = "test.recording"

    def __init__(self) -> None:
        self.effects: list[str] = []

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        if invocation.uncertain:
            self.effects.append("uncertain")
        else:
            await invocation.begin()
            self.effects.append("effect")

        async def outcome(tx: Any) -> None:
            tx.complete("recorded")

        await invocation.record(outcome)


@pytest.mark.invariant("S-9")
@pytest.mark.parametrize("how", ["full", "refused", "lost", "before", "after"])
async def test_an_outcome_that_is_refused_is_recorded_in_the_end_and_its_effect_happens_once(
    memory_kernel: Any, how: Any
):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Failing(storage, 5, how, times=3)  # after conversation, task, reservation, begun
    work = Recording()
    session = await kernel.open(work)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(work)

    waiting = asyncio.create_task(session.wait_task(task.id))
    await kernel.pass_time(10.0, waiting.done)

    assert (await waiting).result == "recorded"
    assert work.effects == ["effect"]


@pytest.mark.invariant("S-9")
async def test_no_new_effect_starts_while_the_disk_is_full_and_all_goes_on_when_space_returns(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Failing(storage, 5, "full", times=20)
    work = Recording()
    session = await kernel.open(work)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        first, second = tx.create_task(work), tx.create_task(work)

    waiting = asyncio.create_task(session.wait_idle())
    await kernel.pass_time(2.0)
    assert session.inspect().storage == "full"
    began = len(work.effects)
    with pytest.raises(StorageFull):
        await add(chat, 1)
    await kernel.pass_time(20.0, waiting.done)

    assert began <= 1
    assert session.inspect().storage == "ok"
    assert work.effects == ["effect", "effect"]
    for task in (first, second):
        assert (await session.wait_task(task.id)).result == "recorded"


async def test_closing_while_the_disk_is_full_does_not_wait_for_space(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Failing(storage, 5, "full", times=10_000)
    work = Recording()
    session = await kernel.open(work)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        tx.create_task(work)
    await session.resume()
    await kernel.pass_time(2.0)

    await session.close()

    assert not session._harness.scheduler._runners


async def test_a_used_key_is_refused_before_admission_and_fails_nobody_else(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    session = await kernel.reopen()
    chat = await session.find(chat.id)

    with pytest.raises(UsageError, match="'a' belongs to another"):
        async with session.commit() as tx:
            tx.create_conversation(key="a")
    with pytest.raises(UsageError, match="'b' belongs to another"):
        async with session.commit() as tx:
            [tx.create_conversation(key="b") for _ in range(2)]
    await add(chat, 1)
    assert await texts(chat) == [1]
