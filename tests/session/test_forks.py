"""Forks and entries: each branch is the linear history that the same operations would have built (K12 to K16, K23)."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.app.opening import open as open_one
from perdure.app.opening import open_session, open_storage
from perdure.backends.memory import MemoryStorage
from perdure.errors import NotFound, TaskRefused, UsageError, WrongKind
from perdure.records import Edit, EntryId
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.session.transcripts import cut
from perdure.telemetry import Telemetry
from perdure.testing.clock import ManualClock, settle
from perdure.testing.faults import Relay

pytestmark = pytest.mark.anyio
NOTE, OTHER = entry_kind("test.note"), entry_kind("test.other")
FRESH = document("test.fresh", initial=lambda: {"items": []})
CURRENT = document("test.current", initial=lambda: {"items": []}, fork="current")
AS_OF = document("test.as_of", initial=lambda: {"items": []}, history="rewindable", fork="as_of")
TOKENS = (FRESH, CURRENT, AS_OF)


async def texts(chat: Any) -> list[Any]:
    return [entry.data async for entry in chat.history()][::-1]


async def add(chat: Any, text: Any) -> Any:
    """An entry, and the same text in each document."""
    async with chat.commit() as tx:
        entry = tx.append(chat.id, NOTE, data=text)
        for token in TOKENS:
            (await tx.doc(token))["items"].append(text)
    return entry


async def items(chat: Any, token: Any) -> Any:
    value = await chat.snapshot(token)
    return None if value is None else value["items"]


@pytest.mark.invariant("S-16")
async def test_a_fork_sees_its_parent_through_the_entry_and_no_further(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        first = tx.append(chat.id, NOTE, data=1)
        tx.append(chat.id, NOTE, data=2)  # of the same commit, behind the fork
    await add(chat, 3)
    child = await chat.fork(first.id, key="child")
    async with child.commit() as tx:
        tx.append(child.id, NOTE, data="own")
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data=4)

    assert await texts(child) == [1, "own"]
    assert await texts(chat) == [1, 2, 3, 4]
    session = await kernel.reopen()
    child = await session.conversation("child")
    assert await texts(child) == [1, "own"]
    with pytest.raises(NotFound, match="sees no entry"):
        await child.fork(first.id + 1)


@pytest.mark.invariant("S-17")
async def test_documents_of_a_fork_start_by_their_rule(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    first = await add(chat, 1)
    await add(chat, 2)
    child = await chat.fork(first.id, key="child")

    assert await items(child, FRESH) is None
    assert await items(child, CURRENT) == [1, 2]
    assert await items(child, AS_OF) == [1]
    await add(chat, 3)
    await add(child, "own")
    session = await kernel.reopen()
    chat, child = await session.conversation("a"), await session.conversation("child")
    assert await items(child, FRESH) == ["own"]
    assert await items(child, CURRENT) == [1, 2, "own"]
    assert await items(child, AS_OF) == [1, "own"]
    assert await items(chat, AS_OF) == [1, 2, 3]
    assert (await child.snapshot_as_of(AS_OF, first.id))["items"] == [1]


@pytest.mark.invariant("S-17")
async def test_a_fork_of_a_fork_behind_the_first_fork_sees_the_documents_of_then(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    first = await add(chat, 1)
    second = await add(chat, 2)
    child = await chat.fork(second.id)
    await add(child, "child")
    grandchild = await child.fork(first.id)

    assert await texts(grandchild) == [1]
    assert await items(grandchild, AS_OF) == [1]
    assert (await grandchild.snapshot_as_of(AS_OF, first.id))["items"] == [1]
    await add(grandchild, "own")
    assert await items(grandchild, AS_OF) == [1, "own"]


@pytest.mark.invariant("S-17")
@pytest.mark.parametrize("fork_first", [True, False])
async def test_a_fork_is_refused_only_by_a_change_of_what_it_copies(kernel: Any, fork_first: bool):
    session = await kernel.open()
    chat = await session.conversation("a")
    first = await add(chat, 1)

    async def both(token: Any) -> Any:
        async with chat.commit() as tx:
            if not fork_first:
                (await tx.doc(token))["items"].append("now")
            child = await tx.fork(chat.id, first.id)
            if fork_first:
                (await tx.doc(token))["items"].append("now")
        return await session.find(child.id)

    with pytest.raises(TaskRefused, match="fork in a commit of its own"):
        await both(CURRENT)
    child = await both(AS_OF)
    assert await items(child, AS_OF) == [1]
    child = await both(FRESH)
    assert await items(child, FRESH) is None
    assert await items(chat, CURRENT) == [1]


async def test_a_document_that_was_copied_may_be_changed_in_the_commit_that_forks(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    first = await add(chat, 1)
    async with chat.commit() as tx:
        child = await tx.fork(chat.id, first.id, key="child")
        (await tx.doc(CURRENT, child.id))["items"].append("own")
    session = await kernel.reopen()

    assert await items(await session.conversation("child"), CURRENT) == [1, "own"]
    assert await items(await session.conversation("a"), CURRENT) == [1]


async def test_a_fork_at_an_entry_of_the_very_same_commit_and_a_fork_of_that(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        entry = tx.append(chat.id, NOTE, data=1)
        (await tx.doc(AS_OF))["items"].append(1)
        child = await tx.fork(chat.id, entry.id, key="child")
        own = tx.append(child.id, NOTE, data="own")
        grandchild = await tx.fork(child.id, entry.id, key="grandchild")
        tx.append(chat.id, NOTE, data=2)
        assert await tx.snapshot(AS_OF, child.id) == {"items": [1]}
        with pytest.raises(NotFound):
            await tx.fork(chat.id, own.id)

    assert grandchild.parent is not None
    session = await kernel.reopen()
    assert await texts(await session.conversation("child")) == [1, "own"]
    assert await texts(await session.conversation("grandchild")) == [1]
    assert await items(await session.conversation("grandchild"), AS_OF) == [1]


# -- heads, edits, kinds, pages -------------------------------------------------------------------


async def active(session: Any, chat: Any) -> list[Any]:
    async with session.commit() as tx:
        return [entry.data for entry in (await tx.transcript(chat.id)).entries]


@pytest.mark.invariant("S-18")
async def test_the_active_transcript_runs_from_the_newest_head_and_nothing_is_lost(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    kept = [await add(chat, number) for number in range(4)]
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data="summary", head=kept[2].id)
    await add(chat, 4)

    assert await active(session, chat) == ["summary", 2, 3, 4]
    session = await kernel.reopen()
    chat = await session.conversation("a")
    assert await active(session, chat) == ["summary", 2, 3, 4]
    assert await texts(chat) == [0, 1, 2, 3, "summary", 4]
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data="reset", heads_itself=True)
    assert await active(session, chat) == ["reset"]


@pytest.mark.invariant("S-18")
async def test_a_head_before_the_present_one_is_stale_also_within_one_commit(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    kept = [await add(chat, number) for number in range(4)]

    with pytest.raises(TaskRefused, match="stale"):
        async with chat.commit() as tx:
            [tx.append(chat.id, NOTE, head=kept[at].id) for at in (2, 1)]
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data="summary", head=kept[2].id)
    with pytest.raises(TaskRefused, match="stale"):
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, head=kept[1].id)
    with pytest.raises(NotFound):
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, head=99_999)
    assert await active(session, chat) == ["summary", 2, 3]


async def test_a_fork_behind_a_head_does_not_see_it(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    kept = [await add(chat, number) for number in range(4)]
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data="summary", head=kept[2].id)
    child = await chat.fork(kept[3].id)

    assert await active(session, child) == [0, 1, 2, 3]


async def test_an_entry_is_read_by_its_kind(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    entry = await add(chat, 1)
    async with chat.commit() as tx:
        assert (await tx.entry(NOTE, entry.id)).data == 1
        with pytest.raises(WrongKind, match=r"test\.note"):
            await tx.entry(OTHER, entry.id)
        with pytest.raises(NotFound):
            await tx.entry(NOTE, 99_999)
    with pytest.raises(UsageError, match="perdure's"):
        entry_kind("perdure.mine")


async def test_an_entry_edits_only_earlier_ones(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    entry = await add(chat, 1)
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, edits=[Edit(entry=entry.id)])
        with pytest.raises(UsageError, match="earlier"):
            tx.append(chat.id, NOTE, edits=[Edit(entry=EntryId(99_999))])


@pytest.mark.invariant("S-18")
async def test_pages_are_bounded_newest_first_and_cross_forks(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    entries = [await add(chat, number) for number in range(30)]
    child = await chat.fork(entries[19].id)
    for number in range(10):
        await add(child, f"own {number}")
    scanned: list[int] = []
    scan = kernel.storage.scan_entries

    async def counting(*where: Any, **how: Any) -> Any:
        found = await scan(*where, **how)
        scanned.append(len(found))
        return found

    kernel.storage.scan_entries = counting
    page = await child.entries(limit=5)
    assert [entry.data for entry in page] == [f"own {number}" for number in (9, 8, 7, 6, 5)]
    assert sum(scanned) == 5
    page = await child.entries(before=page[-1].id, limit=10)
    assert [entry.data for entry in page] == [*(f"own {number}" for number in (4, 3, 2, 1, 0)), 19, 18, 17, 16, 15]


class Lagging(Relay):
    """Keeps a commit only `after` seconds of the clock, as a writer that is busy."""

    def __init__(self, inner: Any, clock: Any) -> None:
        super().__init__(inner)
        self.clock = clock
        self.after = 0.0
        self.writes: list[Any] = []

    def commit(self, claim: Any, batch: Any) -> Any:
        async def write(before: Any) -> Any:
            await self.clock.sleep(self.after)
            if before is not None:
                await asyncio.wait([before])
            return await self.inner.commit(claim, batch)

        self.writes.append(asyncio.ensure_future(write(self.writes[-1] if self.writes else None)))
        return self.writes[-1]


@pytest.mark.invariant("S-20")
async def test_a_transcript_that_is_read_while_entries_are_in_flight_has_them(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Lagging(storage, kernel.clock)
    session = await kernel.open()
    chat = await session.conversation("a")
    await add(chat, 0)
    session = await kernel.reopen()
    chat = await session.find(chat.id)
    kernel.storage.after = 5.0

    async def notes(text: Any) -> None:
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data=text)

    seen: list[Any] = []

    async def reads() -> None:
        async with chat.commit() as tx:
            seen.extend(entry.data for entry in (await tx.transcript(chat.id)).entries)

    notes_1, notes_2, reading = (asyncio.create_task(work) for work in (notes(1), notes(2), reads()))
    await settle()
    assert seen == [0, 1, 2]
    assert not reading.done()
    await kernel.pass_time(20.0, reading.done)
    await asyncio.gather(notes_1, notes_2, reading)
    kernel.storage.after = 0.0
    assert await active(session, chat) == [0, 1, 2]


# -- conversations by key -------------------------------------------------------------------------


@pytest.mark.invariant("S-19")
async def test_a_conversation_is_got_or_made_by_its_key_once(kernel: Any):
    session = await kernel.open()
    found = await asyncio.gather(*(session.conversation("till-1") for _ in range(5)))
    assert len({chat.id for chat in found}) == 1
    session = await kernel.reopen()

    assert (await session.conversation("till-1")).id == found[0].id
    assert (await session.conversation("till-2")).id != found[0].id
    for bad in ("", None, 7):
        with pytest.raises(UsageError):
            await session.conversation(bad)


@pytest.mark.invariant("S-20")
async def test_idle_conversations_leave_memory_and_come_back_as_they_were(kernel: Any):
    session = await kernel.open()
    memory = session._line.memory
    first = await session.conversation("c-0")
    await add(first, 0)
    for number in range(1, 400):
        await add(await session.conversation(f"c-{number}"), number)

    assert len(memory.tip.conversations) < 300
    assert len(memory.transcripts) < 300
    assert sum(owner[0] == "conversation" for owner in memory.shelves.tip) < 300
    assert first.id not in memory.tip.conversations
    first = await session.conversation("c-0")
    await add(first, "again")
    assert await texts(first) == [0, "again"]
    assert await active(session, first) == [0, "again"]
    assert await items(first, CURRENT) == [0, "again"]


# -- any tree of forks ----------------------------------------------------------------------------

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "head", "reset", "fork"]), st.integers(0, 50), st.integers(0, 50)),
    max_size=25,
)

#: As STEPS, with what a store lives through beside them.
GROWING = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "head", "reset", "fork", "fork", "reopen", "delete"]),
        st.integers(0, 50),
        st.integers(0, 50),
    ),
    max_size=25,
)


class Branch:
    """The linear history that a conversation has to equal: entries with the document's value after each."""

    def __init__(self, history: list[tuple[Any, list[Any]]]) -> None:
        self.history = history
        #: Of the documents that are no history: copied by `current`, fresh by `initial`.
        self.current: list[Any] = []
        self.fresh: list[Any] = []

    @property
    def items(self) -> list[Any]:
        return self.history[-1][1] if self.history else []


@pytest.mark.invariant("S-16", "S-17")
@pytest.mark.slow
@settings(max_examples=40)
@given(steps=STEPS)
def test_any_tree_of_forks_equals_linear_histories(steps: list[Step]):
    asyncio.run(_tree(steps))


@pytest.mark.invariant("S-16", "S-17", "S-22")
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@settings(max_examples=25)
@given(steps=GROWING)
def test_branches_stay_linear_histories_whatever_is_reopened_and_deleted(backend: str, steps: list[Step]):
    """I65, on each backend: families, documents by each rule, forks of forks, reopenings, deletions of any branch."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_grown(steps, None if backend == "memory" else str(Path(folder, "store.db"))))


async def _tree(steps: list[Step]) -> None:
    async with open_one("memory:", clock=ManualClock()) as session:
        chats = [await session.conversation("root")]
        branches = [Branch([])]
        for number, (verb, where, at) in enumerate(steps):
            chat, branch = chats[where % len(chats)], branches[where % len(chats)]
            if verb == "fork" and branch.history:
                seen = branch.history[: at % len(branch.history) + 1]
                chats.append(await chat.fork(seen[-1][0].id))
                branches.append(Branch(list(seen)))
            elif verb != "fork":
                await _append(chat, branch, verb, number, at)
        for chat, branch in zip(chats, branches, strict=True):
            entries = [entry for entry, _ in branch.history]
            assert [entry.id async for entry in chat.history()][::-1] == [entry.id for entry in entries]
            assert await active(session, chat) == [entry.data for entry in cut(entries)]
            value = await chat.snapshot(AS_OF)
            assert (value or {"items": []})["items"] == branch.items
            for entry, expected in branch.history:
                assert (await chat.snapshot_as_of(AS_OF, entry.id) or {"items": []})["items"] == expected


async def _append(chat: Any, branch: Branch, verb: str, number: int, at: int) -> None:
    head = None
    if verb == "head":
        floor = next((entry.head for entry, _ in reversed(branch.history) if entry.head is not None), 0)
        able = [entry.id for entry, _ in branch.history if entry.id >= floor]
        head = able[at % len(able)] if able else None
    async with chat.commit() as tx:
        entry = tx.append(chat.id, NOTE, data=number, head=head, heads_itself=verb == "reset")
        (await tx.doc(AS_OF))["items"].append(number)
        (await tx.doc(AS_OF, key=f"of {number % 3}"))["items"].append(number)
    branch.history.append((entry, [*branch.items, number]))


async def _grown(steps: list[Step], path: str | None) -> None:
    clock, telemetry = ManualClock(), Telemetry()
    memory = MemoryStorage(clock=clock)

    async def opened() -> Any:
        nonlocal memory
        if path is None:
            memory = memory.reopened()
        storage = memory if path is None else await open_storage(path, clock, telemetry, durability="process")
        return await open_session(storage, "main", clock=clock, telemetry=telemetry), storage

    session, storage = await opened()
    branches = {(await session.conversation("first")).id: Branch([])}
    for number, (verb, where, at) in enumerate(steps):
        if verb == "reopen":
            await session.close()
            await storage.close()
            session, storage = await opened()
        elif branches:
            id = list(branches)[where % len(branches)]
            await _grow(session, branches, await session.find(id), verb, number, at)
    await session.close()
    await storage.close()
    session, storage = await opened()
    for id, branch in branches.items():
        await _is_linear(session, await session.find(id), branch)
    await session.close()
    await storage.close()


async def _grow(session: Any, branches: dict[int, Branch], chat: Any, verb: str, number: int, at: int) -> None:
    branch = branches[chat.id]
    if verb == "delete":
        await session.delete(chat)
        del branches[chat.id]
    elif verb == "fork" and branch.history:
        seen = branch.history[: at % len(branch.history) + 1]
        child = Branch(list(seen))
        child.current = list(branch.current)
        branches[(await chat.fork(seen[-1][0].id)).id] = child
    elif verb != "fork":
        await _append(chat, branch, verb, number, at)
        async with chat.commit() as tx:
            (await tx.doc(CURRENT))["items"].append(number)
            (await tx.doc(FRESH, key="family"))["items"].append(number)
        branch.current.append(number)
        branch.fresh.append(number)


async def _is_linear(session: Any, chat: Any, branch: Branch) -> None:
    entries = [entry for entry, _ in branch.history]
    assert [entry.id async for entry in chat.history()][::-1] == [entry.id for entry in entries]
    assert await active(session, chat) == [entry.data for entry in cut(entries)]
    families = [(AS_OF, f"of {rest}", [item for item in branch.items if item % 3 == rest]) for rest in range(3)]
    others = [(AS_OF, "", branch.items), (CURRENT, "", branch.current), (FRESH, "family", branch.fresh)]
    for token, key, expected in families + others:
        assert (await chat.snapshot(token, key=key) or {"items": []})["items"] == expected
    for entry, expected in branch.history:
        assert (await chat.snapshot_as_of(AS_OF, entry.id) or {"items": []})["items"] == expected
        third = [item for item in expected if item % 3 == expected[-1] % 3]
        assert (await chat.snapshot_as_of(AS_OF, entry.id, key=f"of {expected[-1] % 3}"))["items"] == third
