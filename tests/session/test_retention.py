"""Deleting conversations and pruning by age (K47)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import NotFound, PerdureError, RequestConflict, TaskRefused
from perdure.records import Completed, Inbound, decode_document
from perdure.session.documents import document
from perdure.session.retention import DELETIONS, Pruned
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.faults import Faulty

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")
LATEST = document("test.latest", initial=lambda: {"items": []})
STEPS = document("test.steps", initial=lambda: {"items": []}, history="rewindable", fork="as_of")


class Owning(TaskDefinition):
    """Makes a conversation, writes to it, and ends."""

    kind = "test.owning"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            home = tx.create_conversation(owner=invocation.id, key=f"owned by {invocation.id}")
            tx.append(home.id, NOTE, data="inside")
            tx.complete(home.id)


class Hanging(TaskDefinition):
    kind = "test.hanging"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        await asyncio.Event().wait()


async def add(chat: Any, text: Any) -> Any:
    async with chat.commit() as tx:
        entry = tx.append(chat.id, NOTE, data=text)
        (await tx.doc(STEPS))["items"].append(text)
        (await tx.doc(LATEST))["items"].append(text)
    return entry


async def texts(chat: Any) -> list[Any]:
    return [entry.data async for entry in chat.history()][::-1]


async def rows(kernel: Any, id: int) -> tuple[int, int, bool]:
    """Entries, documents and record that storage has of a conversation."""
    storage = kernel.storage
    entries = await storage.scan_entries("main", id, limit=10_000)
    documents = await storage.scan_documents("main", "conversation", id, retired=True)
    return len(entries), len(documents), await storage.read_conversation("main", id) is not None


@pytest.mark.invariant("S-21")
async def test_a_deleted_conversation_is_gone_with_all_it_had_and_its_key_is_free(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    for number in range(3):
        await add(chat, number)
    attached = await chat.attach(LATEST)
    done = await session.delete(chat)

    assert done.conversations == (chat.id,)
    assert (done.kept, done.documents) == ((), 2)
    assert await rows(kernel, chat.id) == (0, 0, False)
    assert attached.closed
    for gone in (chat.entries(), chat.snapshot(LATEST), session.find(chat.id), session.delete(chat)):
        with pytest.raises(NotFound):
            await gone
    with pytest.raises(NotFound):
        await add(chat, "late")
    again = await session.conversation("a")
    assert again.id > chat.id
    assert await texts(again) == []
    session = await kernel.reopen()
    assert (await session.conversation("a")).id == again.id


@pytest.mark.invariant("S-21")
async def test_deletion_is_refused_while_there_is_work_and_says_which(kernel: Any):
    session = await kernel.open(Owning, Hanging)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Owning)
    home = (await session.wait_task(task.id)).result
    async with session.commit() as tx:
        tx.conversation = chat.id
        background = tx.ask("?")
    with pytest.raises(TaskRefused, match=f"task {background.id} .*perdure.question"):
        await session.delete(chat)
    await session.answer(background.id, True)
    async with chat.commit() as tx:
        live = tx.create_task(Hanging, background=True)
    with pytest.raises(TaskRefused, match=str(live.id)):
        await session.delete(chat)
    await session.abort_task(live.id)
    with pytest.raises(TaskRefused, match="root"):
        await session.delete(await session.root())

    assert home in (await session.delete(chat)).conversations


@pytest.mark.invariant("S-21")
async def test_conversations_that_its_tasks_own_go_along(kernel: Any):
    session = await kernel.open(Owning)
    chat, other = await session.conversation("a"), await session.conversation("b")
    homes: list[int] = []
    for where in (chat, chat, other):
        async with where.commit() as tx:
            task = tx.create_task(Owning)
        homes.append((await session.wait_task(task.id)).result)
    session = await kernel.reopen()
    done = await session.delete(chat.id)

    assert sorted(done.conversations) == sorted([chat.id, *homes[:2]])
    assert await rows(kernel, homes[0]) == (0, 0, False)
    assert await texts(await session.find(homes[2])) == ["inside"]


async def test_a_conversation_whose_owner_is_live_is_the_owner_s(kernel: Any):
    session = await kernel.open(Owning)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        owner = tx.create_task(Owning)
        home = tx.create_conversation(owner=owner.id)
    with pytest.raises(TaskRefused, match=f"belongs to task {owner.id}"):
        await session.delete(home.id)


@pytest.mark.invariant("S-22")
async def test_forks_keep_what_they_see_until_the_last_of_them_goes(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    entries = [await add(chat, number) for number in range(10)]
    first = await chat.fork(entries[2].id, key="first")
    second = await chat.fork(entries[5].id, key="second")
    await add(second, "own")
    done = await session.delete(chat)

    assert done.kept == (chat.id,)
    assert await rows(kernel, chat.id) == (6, 1, True)
    session = await kernel.reopen()
    first, second = await session.conversation("first"), await session.conversation("second")
    assert await texts(first) == [0, 1, 2]
    assert await texts(second) == [0, 1, 2, 3, 4, 5, "own"]
    assert (await first.snapshot(STEPS))["items"] == [0, 1, 2]
    assert (await second.snapshot_as_of(STEPS, entries[4].id))["items"] == [0, 1, 2, 3, 4]
    with pytest.raises(NotFound):
        await session.find(chat.id)
    assert [each.id for each in await session.conversations()] == [second.id, first.id]
    await session.delete(second)
    assert await texts(first) == [0, 1, 2]
    await session.delete(first)
    assert await rows(kernel, chat.id) == (0, 0, False)


@pytest.mark.invariant("S-22")
async def test_a_deleted_fork_in_the_middle_stays_for_the_forks_behind_it(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    entry = await add(chat, 1)
    middle = await chat.fork(entry.id)
    own = await add(middle, 2)
    leaf = await middle.fork(own.id)
    await session.delete(middle)
    await session.delete(chat)

    assert await texts(leaf) == [1, 2]
    assert (await leaf.snapshot(STEPS))["items"] == [1, 2]
    await session.delete(leaf)
    assert await rows(kernel, chat.id) == await rows(kernel, middle.id) == (0, 0, False)
    assert (await session.snapshot(DELETIONS))["open"] == []


class Choosing(Faulty):
    """Fails for ever from the n-th commit on."""

    left = 10_000

    def choose(self, op: Any) -> Any:
        self.left -= op == "commit"
        return "poison" if self.left < 0 and op == "commit" else None


@pytest.mark.invariant("S-22")
async def test_a_deletion_that_is_cut_off_between_any_two_commits_is_finished_by_the_next(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = Choosing
    session = await kernel.open(Owning)
    chat = await session.conversation("a")
    entries = [await add(chat, number) for number in range(5)]
    fork = await chat.fork(entries[1].id, key="fork")
    async with chat.commit() as tx:
        task = tx.create_task(Owning)
    home = (await session.wait_task(task.id)).result
    cut = 0
    while True:
        kernel.storage.left = cut
        try:
            await session.delete(chat)
            break
        except PerdureError:
            cut += 1
        session = await kernel.restart()
        fork = await session.conversation("fork")
        assert await texts(fork) == [0, 1]
        chat_exists = await exists(session, chat.id)
        if chat_exists:
            assert await texts(await session.find(chat.id)) == [0, 1, 2, 3, 4]
        else:
            kernel.storage.left = 10_000
            await session.prune(older_than=0)
            break
    assert cut > 0
    assert await rows(kernel, home) == (0, 0, False)
    assert await rows(kernel, chat.id) == (2, 1, True)
    assert await texts(fork) == [0, 1]


async def exists(session: Any, id: int) -> bool:
    try:
        await session.find(id)
    except NotFound:
        return False
    return True


# -- age ------------------------------------------------------------------------------------------


class Quick(TaskDefinition):
    kind = "test.quick"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.complete("quick")


class Joining(TaskDefinition):
    """Waits for a child that ends at once and for an answer; then it reads both outcomes."""

    kind = "test.joining"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            children = [tx.create_task(Quick), tx.ask("?")]
            await tx.wait(children, then=self.join, ids=[child.id for child in children])

    @phase
    async def join(self, invocation: Any, ids: list[int]) -> None:
        outcomes = await invocation.outcomes(ids)
        async with invocation.commit() as tx:
            tx.complete([type(outcome).__name__ for outcome in outcomes])


@pytest.mark.invariant("S-23")
async def test_ended_tasks_are_pruned_by_age_but_not_those_that_live_work_asks_for(kernel: Any):
    session = await kernel.open(Quick, Joining, Owning)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        old, joining, owning = tx.create_task(Quick), tx.create_task(Joining), tx.create_task(Owning)
    await session.wait_task(owning.id)
    await kernel.until(lambda: [one.state for one in session.inspect().tasks] == ["waiting", "waiting"])
    await kernel.pass_time(100.0)
    async with chat.commit() as tx:
        young = tx.create_task(Quick)
    await session.wait_task(young.id)
    pruned = await session.prune(older_than=50.0)

    assert pruned == Pruned(tasks=1)
    with pytest.raises(NotFound):
        await session.wait_task(old.id)
    assert await session.wait_task(young.id) == Completed(result="quick")
    session = await kernel.restart()
    await session.answer(session.inspect().questions[0].id, True)
    assert (await session.wait_task(joining.id)).result == ["Completed", "Completed"]
    assert len((await session.delete(chat.id)).conversations) == 2


@pytest.mark.invariant("S-23")
async def test_many_are_pruned_in_commits_of_bounded_size(kernel: Any):
    session = await kernel.open(Quick)
    chat = await session.conversation("a")
    await session.resume()
    for _ in range(5):
        async with chat.commit() as tx:
            for _ in range(100):
                tx.create_task(Quick)
        await session.wait_idle()
    await kernel.pass_time(10.0)
    seq = session.inspect().seq

    assert await session.prune(older_than=1.0) == Pruned(tasks=500)
    assert session.inspect().seq == seq + 3
    assert await session.prune(older_than=1.0) == Pruned()


@pytest.mark.invariant("S-23")
async def test_repeated_requests_are_recognised_after_their_submissions_were_pruned(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    named = await chat.write(NOTE, {"n": 1}, request_id="r-1")
    unnamed = await chat.write(NOTE, {"n": 2})
    await kernel.pass_time(10.0)

    assert await session.prune(older_than=1.0) == Pruned(submissions=2)
    assert await session.prune(older_than=1.0) == Pruned()
    assert (await chat.write(NOTE, {"n": 1}, request_id="r-1")).id == named.id
    with pytest.raises(RequestConflict):
        await chat.write(NOTE, {"n": 3}, request_id="r-1")
    with pytest.raises(NotFound):
        await unnamed.status()
    session = await kernel.reopen()
    assert (await (await session.conversation("a")).write(NOTE, {"n": 1}, request_id="r-1")).id == named.id
    assert len(await texts(await session.conversation("a"))) == 2


@pytest.mark.invariant("S-23")
async def test_consumed_inbound_items_are_pruned_and_waiting_ones_stay(kernel: Any):
    session = await kernel.open()
    await kernel.close()
    session = await kernel.open()
    chat = await session.conversation("a")
    body = {"key": "a", "kind": "test.note", "data": 1}
    await kernel.storage.hand_in("main", Inbound(id="one", kind="unknown", body=body, at=kernel.clock.now()))
    session = await kernel.restart()
    await kernel.pass_time(100.0)
    await kernel.storage.hand_in("main", Inbound(id="two", kind="unknown", body=body, at=kernel.clock.now()))

    assert (await session.prune(older_than=50.0)).inbound == 1
    assert await kernel.storage.read_inbound("main", "one") is None
    assert chat.id


async def test_documents_of_ended_tasks_that_keep_their_history_go_with_the_tasks(kernel: Any):
    trail = document("test.trail", scope="task", history="rewindable", initial=lambda: {"n": 0})

    class Tracing(TaskDefinition):
        kind = "test.tracing"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                (await tx.doc(trail))["n"] = 1
            async with invocation.commit() as tx:
                tx.complete()

    session = await kernel.open(Tracing)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Tracing)
    await session.wait_task(task.id)
    [body] = await kernel.storage.scan_documents("main", "task", task.id, retired=True)
    assert decode_document(body).retired is not None
    await kernel.pass_time(10.0)
    await session.prune(older_than=1.0)

    assert await kernel.storage.scan_documents("main", "task", task.id, retired=True) == []


async def test_two_deletions_at_once_do_not_disturb_each_other(kernel: Any):
    session = await kernel.open()
    chats = [await session.conversation(key) for key in "abc"]
    for chat in chats:
        await add(chat, 1)
    await asyncio.gather(*(session.delete(chat) for chat in chats))

    assert await session.conversations() == []
    assert (await session.snapshot(DELETIONS))["open"] == []
