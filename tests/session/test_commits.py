"""Commits: all of it or none of it, and nothing before it is stored (K2, K4 to K6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import HandleExpired, NotFound, SessionClosed, UsageError
from perdure.records import ROOT
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.testing.faults import Slow

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")
LIST = document("test.list", initial=lambda: {"items": []})


async def texts(chat: Any) -> list[Any]:
    return [entry.data async for entry in chat.history()][::-1]


@pytest.mark.invariant("S-1", "O-1")
async def test_a_commit_shows_everything_at_once_and_stays_after_reopening(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    seen: list[Any] = []
    session.observe(seen.append)

    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data=1)
        (await tx.doc(LIST))["items"].append("x")
        assert seen == []
        assert await chat.snapshot(LIST) is None

    assert len(seen) == 1
    assert [entry.data for entry in seen[0].entries] == [1]
    assert await chat.snapshot(LIST) == {"items": ["x"]}
    session = await kernel.reopen()
    chat = await session.conversation("a")
    assert await texts(chat) == [1]
    assert await chat.snapshot(LIST) == {"items": ["x"]}


@pytest.mark.invariant("S-1")
async def test_a_body_that_raises_writes_nothing_and_publishes_nothing(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    seen: list[Any] = []
    session.observe(seen.append)

    async def breaks() -> None:
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data=1)
            (await tx.doc(LIST))["items"].append("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await breaks()

    assert seen == []
    session = await kernel.reopen()
    chat = await session.conversation("a")
    assert await texts(chat) == []
    assert await chat.snapshot(LIST) is None


async def test_ids_ascend_and_what_was_rolled_back_took_none(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    lost: list[Any] = []

    async def breaks() -> None:
        async with chat.commit() as tx:
            lost.append(tx.append(chat.id, NOTE, data=1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await breaks()
    async with chat.commit() as tx:
        first = tx.append(chat.id, NOTE, data=2)
        second = tx.append(chat.id, NOTE, data=3)
    session = await kernel.reopen()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        third = tx.append(chat.id, NOTE, data=4)

    assert chat.id < first.id < second.id < third.id
    assert lost[0].id == first.id


@pytest.mark.invariant("S-2")
async def test_cancelling_a_body_rolls_it_back(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    inside = asyncio.Event()

    async def never_ends() -> None:
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data=1)
            inside.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(never_ends())
    await inside.wait()
    running.cancel()
    await asyncio.wait([running])

    assert running.cancelled()
    assert await texts(chat) == []
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data=2)
    assert await texts(chat) == [2]


@pytest.mark.invariant("S-2")
async def test_cancelling_a_caller_after_admission_undoes_nothing(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Slow(storage, kernel.clock, [0, 5.0])
    session = await kernel.open()
    chat = await session.conversation("a")

    async def commits() -> None:
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data=1)

    caller = asyncio.create_task(commits())
    await kernel.pass_time(1.0)
    caller.cancel()
    await asyncio.wait([caller])
    assert await texts(chat) == []
    await kernel.pass_time(5.0)

    assert caller.cancelled()
    assert await texts(chat) == [1]


@pytest.mark.invariant("S-2")
async def test_cancelling_a_caller_while_the_admission_still_reads_undoes_nothing(memory_kernel: Any):
    """A commit that creates a conversation has to look its key up before it can be admitted."""
    kernel = memory_kernel
    session = await kernel.open()
    chat = await session.conversation("a")
    gate = asyncio.Event()
    find = kernel.storage.find_conversation

    async def slow(name: str, key: str) -> Any:
        await gate.wait()
        return await find(name, key)

    kernel.storage.find_conversation = slow

    async def commits() -> None:
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data=1)
            tx.create_conversation(key="b")

    caller = asyncio.create_task(commits())
    await kernel.pass_time(1.0)
    caller.cancel()
    await asyncio.wait([caller])
    gate.set()
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data=2)

    assert caller.cancelled()
    assert await texts(chat) == [1, 2]


async def test_cancelling_one_that_waits_for_a_commit_leaves_the_others_alone(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Slow(storage, kernel.clock, [0, 5.0])
    session = await kernel.open()
    chat = await session.conversation("a")

    async def commits() -> None:
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data=1)

    async def looks() -> None:
        async with chat.commit() as tx:  # stages nothing, but saw the tip
            await tx.transcript(chat.id)

    caller, reader = asyncio.create_task(commits()), asyncio.create_task(looks())
    await kernel.pass_time(1.0)
    caller.cancel()
    await kernel.pass_time(10.0)

    assert caller.cancelled()
    assert reader.done()
    assert not reader.cancelled()
    assert reader.exception() is None


@pytest.mark.invariant("S-3")
async def test_a_commit_or_a_wait_inside_a_commit_raises_instead_of_locking_up(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")

    for wait in (session.conversation, session.wait_idle, session.resume, chat.wait_idle, chat.abort):
        with pytest.raises(UsageError, match="inside a commit"):
            async with chat.commit():
                await (wait("b") if wait == session.conversation else wait())
    with pytest.raises(UsageError, match="inside a commit"):
        async with chat.commit(), chat.commit():
            pass

    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data=1)
    assert await texts(chat) == [1]


async def test_a_child_of_a_body_may_commit_once_the_body_has_ended(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    ended = asyncio.Event()

    async def later() -> None:
        await ended.wait()
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data="child")

    async with chat.commit() as tx:
        child = asyncio.create_task(later())
        tx.append(chat.id, NOTE, data="body")
    ended.set()
    await child

    assert await texts(chat) == ["body", "child"]


async def test_a_body_may_be_left_in_another_context_than_it_was_entered_in(kernel: Any):
    """As fixtures and generators do that hold a commit open for somebody else."""
    session = await kernel.open()
    chat = await session.conversation("a")
    commit = chat.commit()
    tx = await asyncio.create_task(commit.__aenter__())
    tx.append(chat.id, NOTE, data=1)
    await asyncio.create_task(commit.__aexit__(None, None, None))

    assert await texts(chat) == [1]


@pytest.mark.invariant("S-4")
async def test_a_transaction_and_its_drafts_die_with_the_commit(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        draft = await tx.doc(LIST)

    with pytest.raises(HandleExpired):
        draft["items"].append("late")
    with pytest.raises(HandleExpired):
        _ = draft["items"]
    with pytest.raises(HandleExpired):
        tx.append(chat.id, NOTE, data=1)
    with pytest.raises(HandleExpired):
        await tx.doc(LIST)
    with pytest.raises(HandleExpired):
        tx.create_conversation()
    assert await chat.snapshot(LIST) == {"items": []}


async def test_a_transaction_reads_the_tip_and_everyone_else_what_is_published(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = lambda storage: Slow(storage, kernel.clock, [0, 5.0, 5.0])
    session = await kernel.open()
    chat = await session.conversation("a")

    async def adds(text: str, found: list[Any]) -> None:
        async with chat.commit() as tx:
            draft = await tx.doc(LIST)
            found.extend(draft["items"])
            draft["items"].append(text)
            tx.append(chat.id, NOTE, data=text)

    seen: list[Any] = []
    first, second = asyncio.create_task(adds("x", [])), asyncio.create_task(adds("y", seen))
    await kernel.pass_time(1.0)

    assert kernel.storage.in_flight == 2
    assert seen == ["x"]
    assert await chat.snapshot(LIST) is None
    assert await texts(chat) == []
    await kernel.pass_time(10.0)
    await asyncio.gather(first, second)
    assert await chat.snapshot(LIST) == {"items": ["x", "y"]}


async def test_an_empty_commit_writes_nothing(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    before = session.inspect().seq
    async with chat.commit():
        pass
    assert session.inspect().seq == before


async def test_root_has_id_one_is_made_once_and_found_again(kernel: Any):
    session = await kernel.open()
    first, again = await asyncio.gather(session.root(), session.root())
    session = await kernel.reopen()

    assert first.id == again.id == (await session.root()).id == ROOT == 1
    assert len(await session.conversations()) == 1


async def test_a_body_that_holds_the_line_for_seconds_is_reported_with_its_stack(memory_kernel: Any):
    session = await memory_kernel.open()
    chat = await session.conversation("a")
    reports: list[Any] = []
    reported = asyncio.Event()

    def note(event: str, measured: Any, metadata: Any) -> None:
        reports.append(metadata)
        reported.set()

    memory_kernel.telemetry.attach("test", ["perdure.commit.slow"], note)

    async with chat.commit() as tx:
        asyncio.get_running_loop().call_soon(session._line.slow.look, tx)
        await reported.wait()

    assert any("test_commits" in line for line in reports[0]["stack"])


async def test_a_closed_session_takes_nothing_more_in(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    await kernel.close()

    with pytest.raises(SessionClosed):
        async with chat.commit():
            pass
    with pytest.raises(SessionClosed):
        await session.wait_idle()


async def test_an_open_body_does_not_hold_a_close_and_is_refused_when_it_ends(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def commits() -> None:
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data=1)
            inside.set()
            await go_on.wait()

    caller = asyncio.create_task(commits())
    await inside.wait()
    await session.close()
    go_on.set()
    with pytest.raises(SessionClosed):
        await caller

    session = await kernel.reopen()
    assert await texts(await session.conversation("a")) == []


async def test_an_entry_of_a_missing_conversation_is_refused_before_admission(kernel: Any):
    session = await kernel.open()
    with pytest.raises(NotFound):
        async with session.commit() as tx:
            tx.append(999, NOTE, data=1)
    with pytest.raises(NotFound):
        async with session.commit() as tx:
            await tx.doc(LIST, 999)


async def test_an_observer_that_raises_breaks_nothing(kernel: Any):
    session = await kernel.open()
    chat = await session.conversation("a")
    seen: list[Any] = []

    def breaks(change: Any) -> None:
        raise ZeroDivisionError

    session.observe(breaks)
    session.observe(seen.append)
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data=1)

    assert len(seen) == 1
