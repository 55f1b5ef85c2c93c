"""Documents: drafts, deltas, bases, versions, retirement and attached values (K17 to K22, K43, K44)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import DocumentVersionError, HandleExpired, InvalidValue, NotFound, UsageError
from perdure.records import Completed, decode_document
from perdure.session.documents import TAIL_COUNT, document
from perdure.session.reading import Attached
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.faults import Slow

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")
LIST = document("test.list", initial=lambda: {"items": []})
COUNTS = document("test.counts", scope="session", initial=lambda: {"n": 0})
STEPS = document("test.steps", initial=lambda: {"n": 0}, history="rewindable")
PROGRESS = document("test.progress", scope="task", initial=lambda: {"n": 0})


async def stored(kernel: Any, chat: Any, kind: str = "test.list") -> Any:
    """What storage keeps of a conversation's document: its bases' and deltas' bytes."""
    body = await kernel.storage.find_document("main", "conversation", chat.id, kind, "")
    return await kernel.storage.read_document("main", decode_document(body).id)


@pytest.mark.invariant("S-10")
async def test_nested_changes_of_a_draft_are_what_is_read_afterwards_and_after_reopening(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        draft = await tx.doc(LIST)
        draft["items"].append({"text": "write docs", "done": False})
        draft["items"][0]["done"] = True
        draft["title"] = "today"
    async with chat.commit() as tx:
        (await tx.doc(LIST))["items"].extend([1, 2])
        assert await tx.snapshot(LIST) == {"items": [{"text": "write docs", "done": True}, 1, 2], "title": "today"}

    expected = {"items": [{"text": "write docs", "done": True}, 1, 2], "title": "today"}
    assert await chat.snapshot(LIST) == expected
    session = await kernel.reopen()
    assert await (await session.conversation("a")).snapshot(LIST) == expected


async def test_what_is_not_json_is_refused_with_its_path_before_anything_changes(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        draft = await tx.doc(LIST)
        with pytest.raises(InvalidValue, match="/items/0/when"):
            draft["items"] = [{"when": object()}]
        draft["items"].append("kept")
    assert await chat.snapshot(LIST) == {"items": ["kept"]}


async def test_a_value_that_was_assigned_is_copied(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    mine = ["x"]
    async with chat.commit() as tx:
        (await tx.doc(LIST))["items"] = mine
        mine.append("y")
    mine.append("z")
    read = await chat.snapshot(LIST)
    read["items"].append("read")

    assert await chat.snapshot(LIST) == {"items": ["x"]}


async def test_families_and_scopes_do_not_meet(kernel: Any):
    session = await kernel.open()
    a, b = await session.conversation("a"), await session.conversation("b")
    async with session.commit() as tx:
        (await tx.doc(LIST, a.id))["items"].append("a")
        (await tx.doc(LIST, a.id, key="k"))["items"].append("a.k")
        (await tx.doc(LIST, b.id))["items"].append("b")
        (await tx.doc(COUNTS))["n"] = 7
    session = await kernel.reopen()
    a, b = await session.conversation("a"), await session.conversation("b")

    assert (await a.snapshot(LIST))["items"] == ["a"]
    assert (await a.snapshot(LIST, key="k"))["items"] == ["a.k"]
    assert (await b.snapshot(LIST))["items"] == ["b"]
    assert await b.snapshot(LIST, key="k") is None
    assert await session.snapshot(COUNTS) == {"n": 7}


async def test_a_family_larger_than_a_page_is_read_whole(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        for number in range(1100):
            (await tx.doc(LIST, key=f"{number:04}"))["items"].append(number)
    session = await kernel.reopen()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        (await tx.doc(LIST, key="1099"))["items"].append("more")

    assert await chat.snapshot(LIST, key="1099") == {"items": [1099, "more"]}


@pytest.mark.invariant("S-11")
async def test_reads_create_nothing_and_leave_nothing_in_memory(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    session = await kernel.reopen()
    seen: list[Any] = []
    session.observe(seen.append)
    chat = await session.find(chat.id)

    assert await chat.snapshot(LIST) is None
    assert await session.snapshot(COUNTS) is None
    assert await chat.entries() == []
    with pytest.raises(NotFound):
        await session.find(999)

    memory = session._line.memory
    assert seen == []
    assert memory.shelves.published.keys() <= {("session", 0)}
    assert not memory.tip.conversations
    assert not memory.transcripts


@pytest.mark.invariant("S-10")
async def test_a_small_change_stores_a_small_delta_and_the_tail_is_bounded(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        (await tx.doc(LIST))["items"] = ["x" * 100] * 1000
    for number in range(3 * TAIL_COUNT):
        async with chat.commit() as tx:
            (await tx.doc(LIST))["n"] = number
        kept = await stored(kernel, chat)
        assert len(kept.deltas) <= TAIL_COUNT
        assert all(len(delta) < 200 for delta in kept.deltas)

    assert (await chat.snapshot(LIST))["n"] == 3 * TAIL_COUNT - 1


async def test_a_draft_that_was_not_changed_stores_nothing(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        await tx.doc(LIST)
    before = session.inspect().seq
    async with chat.commit() as tx:
        await tx.doc(LIST)
    assert session.inspect().seq == before


@pytest.mark.invariant("S-12")
async def test_a_rewindable_document_is_read_as_it_was_in_the_commit_of_each_entry(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    entries: list[Any] = []
    for number in range(150):
        async with chat.commit() as tx:
            entries.append(tx.append(chat.id, NOTE, data=number))
            (await tx.doc(STEPS))["n"] = number  # after the entry, yet of its commit
    session = await kernel.reopen()
    chat = await session.conversation("a")

    for number in (0, 1, 63, 64, 65, 149):
        assert await chat.snapshot_as_of(STEPS, entries[number].id) == {"n": number}
    with pytest.raises(UsageError):
        await chat.snapshot_as_of(LIST, entries[0].id)
    with pytest.raises(NotFound):
        await chat.snapshot_as_of(STEPS, 99_999)


async def test_before_it_was_made_a_rewindable_document_is_not_there(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        first = tx.append(chat.id, NOTE)
    async with chat.commit() as tx:
        await tx.doc(STEPS)
        second = tx.append(chat.id, NOTE)

    assert await chat.snapshot_as_of(STEPS, first.id) is None
    assert await chat.snapshot_as_of(STEPS, second.id) == {"n": 0}


# -- versions -------------------------------------------------------------------------------------


def versions(version: int, migrate: Any = None) -> Any:
    return document("test.list", version=version, initial=lambda: {"items": []}, migrate=migrate)


@pytest.mark.invariant("S-13")
async def test_an_older_document_is_migrated_by_each_read_and_stored_anew_by_the_next_write(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        (await tx.doc(LIST))["items"].append("x")
    new = versions(2, lambda value, version: {"items": [], "lines": value["items"], "from": version})

    assert await chat.snapshot(new) == {"items": [], "lines": ["x"], "from": 1}
    assert await chat.snapshot(LIST) == {"items": ["x"]}
    changes: list[Any] = []
    session.observe(changes.append)
    async with chat.commit() as tx:
        (await tx.doc(new))["lines"].append("y")

    assert changes[0].documents[0].whole
    assert (await stored(kernel, chat)).deltas in ((), [])
    assert await chat.snapshot(new) == {"items": [], "lines": ["x", "y"], "from": 1}
    session = await kernel.reopen()
    chat = await session.conversation("a")
    assert await chat.snapshot(new) == {"items": [], "lines": ["x", "y"], "from": 1}
    with pytest.raises(DocumentVersionError, match="install the newer code"):
        await chat.snapshot(LIST)


@pytest.mark.invariant("S-13")
async def test_what_no_code_can_migrate_keeps_its_bytes_and_says_why(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        (await tx.doc(LIST))["items"].append("x")

    def breaks(value: Any, version: int) -> Any:
        value["items"].clear()
        raise ZeroDivisionError

    with pytest.raises(DocumentVersionError, match="`migrate`"):
        await chat.snapshot(versions(2))
    with pytest.raises(DocumentVersionError, match="ZeroDivisionError"):
        await chat.snapshot(versions(2, breaks))
    with pytest.raises(DocumentVersionError, match="failed"):
        await chat.snapshot(versions(2, lambda value, version: {"bad": object()}))
    with pytest.raises(DocumentVersionError):
        async with chat.commit() as tx:
            await tx.doc(versions(2, breaks))
    assert await chat.snapshot(LIST) == {"items": ["x"]}


# -- task documents and attached values -----------------------------------------------------------


class Stepping(TaskDefinition):
    kind = "test.stepping"
    gate: Any = None

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            (await tx.doc(PROGRESS))["n"] = 1
        await type(self).gate.wait()
        async with invocation.commit() as tx:
            (await tx.doc(PROGRESS))["n"] = 2
            tx.complete()


@pytest.mark.invariant("S-14")
async def test_a_task_s_documents_end_with_it_and_watchers_see_the_end(kernel: Any):
    Stepping.gate = asyncio.Event()
    session = await kernel.open(Stepping)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Stepping)
    await session.resume()
    attached = await Attached.open(session._line, PROGRESS, task.id, "")
    await kernel.until(lambda: attached.value == {"n": 1})
    Stepping.gate.set()
    assert isinstance(await session.wait_task(task.id), Completed)

    assert attached.closed
    with pytest.raises(HandleExpired):
        _ = attached.value
    assert await kernel.storage.scan_documents("main", "task", task.id, retired=True) == []
    with pytest.raises(NotFound, match="ends with its task"):
        async with session.commit() as tx:
            await tx.doc(PROGRESS, task.id)


@pytest.mark.invariant("S-14")
async def test_a_document_of_a_task_that_ends_in_the_commit_that_made_it_is_not_stored(kernel: Any):
    session = await kernel.open(Stepping)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        task = tx.create_task(Stepping)
        await tx.doc(PROGRESS, task.id)
        tx.abort_task(task.id)
    assert await kernel.storage.scan_documents("main", "task", task.id, retired=True) == []


@pytest.mark.invariant("S-15")
async def test_an_attached_value_follows_each_commit_until_it_is_closed(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    attached = await chat.attach(LIST)
    assert await chat.snapshot(LIST) is attached.value is None
    for number in range(3):
        async with chat.commit() as tx:
            (await tx.doc(LIST))["items"].append(number)
        assert attached.value == {"items": list(range(number + 1))}
    copied: Any = attached.value
    copied["items"].append("mine")
    assert attached.value == {"items": [0, 1, 2]}
    attached.close()
    attached.close()

    with pytest.raises(HandleExpired):
        _ = attached.value
    before = list(session._line.observers)
    assert attached._published not in before
    other = await chat.attach(LIST)
    await session.close()
    assert other.closed


@pytest.mark.invariant("S-15")
async def test_what_is_committed_while_a_value_is_attached_is_not_missed(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Slow(storage, kernel.clock, [0, 0, 3.0])
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        (await tx.doc(LIST))["items"].append(1)

    async def adds() -> None:
        async with chat.commit() as tx:
            (await tx.doc(LIST))["items"].append(2)

    adding = asyncio.create_task(adds())
    await kernel.pass_time(1.0)
    attached = await chat.attach(LIST)
    assert attached.value == {"items": [1]}
    await kernel.pass_time(5.0, adding.done)
    assert attached.value == {"items": [1, 2]}


async def test_attaching_to_what_is_not_there_leaves_nothing_behind(kernel: Any):
    session = await kernel.open()
    before = len(session._line.observers)
    with pytest.raises(NotFound):
        await Attached.open(session._line, LIST, 999, "")
    assert len(session._line.observers) == before


def test_declarations_that_exclude_one_another_are_refused():
    with pytest.raises(UsageError, match="rewindable"):
        document("test.x", fork="as_of")
    with pytest.raises(UsageError, match="only conversation"):
        document("test.x", scope="session", fork="current")
    with pytest.raises(UsageError, match="perdure's"):
        document("perdure.x")
