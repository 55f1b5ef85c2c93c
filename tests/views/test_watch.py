"""Readers: what each is told, in which order, and that nobody feels whether they read (K43, H30, I40, I42)."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import perdure
from perdure.errors import HandleExpired, NotFound, SessionClosed, StorageRejected, UsageError
from perdure.surface import Deltas, Whole, decode_frame
from perdure.testing.faults import Failing
from perdure.views.watch import MOST_PENDING

pytestmark = pytest.mark.anyio

REMARK = perdure.entry_kind("test.remark")


async def conversation(kernel: Any) -> Any:
    return await (await kernel.open()).conversation("a")


async def remark(chat: Any, number: int) -> None:
    async with chat.commit() as tx:
        tx.append(chat.id, REMARK, data=number)


def numbers(view: Any) -> list[int]:
    return [entry["data"] for entry in view["entries"]]


@pytest.mark.invariant("V-1")
async def test_a_watch_tells_the_newest_whole_view_and_then_one_frame_a_commit(kernel: Any, told: Any):
    chat = await conversation(kernel)
    await remark(chat, 0)
    async with chat.watch() as watch:
        for number in (1, 2, 3):
            await remark(chat, number)
        whole, *deltas = await told(watch)
        assert isinstance(whole, Whole)
        assert numbers(whole.view) == [0]
        assert [frame.ops[0]["value"]["data"] for frame in deltas] == [1, 2, 3]
        assert [frame.after for frame in deltas] == [whole.seq, *(frame.seq for frame in deltas[:-1])]


async def test_a_commit_that_changes_nothing_of_a_conversation_makes_no_frame_of_it(memory_kernel: Any, told: Any):
    chat = await conversation(memory_kernel)
    other = await memory_kernel.session.conversation("b")
    async with chat.watch() as watch:
        await remark(other, 1)
        assert len(await told(watch)) == 1


@pytest.mark.invariant("V-4")
async def test_a_reader_who_falls_behind_is_given_the_newest_whole_view_instead(memory_kernel: Any, told: Any):
    chat = await conversation(memory_kernel)
    async with chat.watch() as watch:
        assert len(await told(watch)) == 1
        for number in range(MOST_PENDING + 1):
            await remark(chat, number)
        await remark(chat, 1000)
        (whole,) = await told(watch)
        assert isinstance(whole, Whole)
        assert numbers(whole.view)[-1] == 1000
        await remark(chat, 1001)
        (next_one,) = await told(watch)
        assert isinstance(next_one, Deltas)
        assert next_one.after == whole.seq


async def test_a_reader_who_is_just_not_too_slow_is_given_each_frame(memory_kernel: Any, told: Any):
    chat = await conversation(memory_kernel)
    async with chat.watch() as watch:
        for number in range(MOST_PENDING - 1):
            await remark(chat, number)
        assert [type(frame) for frame in await told(watch)] == [Whole] + [Deltas] * (MOST_PENDING - 1)


@pytest.mark.invariant("V-3")
async def test_with_no_reader_nothing_is_called_and_nothing_is_kept(memory_kernel: Any):
    chat = await conversation(memory_kernel)
    line = memory_kernel.session._line
    before = list(line.observers), list(line.on_end)
    async with chat.watch(), chat.view(), memory_kernel.session.task_graph():
        assert len(line.observers) == len(before[0]) + 1
    assert (list(line.observers), list(line.on_end)) == before
    assert memory_kernel.session._harness.views._sources == {}


async def test_all_readers_of_a_view_share_its_frames_and_their_encoding(memory_kernel: Any, told: Any):
    chat = await conversation(memory_kernel)
    async with chat.watch() as one, chat.watch() as other:
        await remark(chat, 1)
        for mine, theirs in zip(await told(one), await told(other), strict=True):
            assert mine is theirs
            assert mine.encoded is theirs.encoded
            assert decode_frame(mine.encoded) == mine


@pytest.mark.invariant("V-3")
async def test_five_hundred_watches_come_and_go_and_leave_nothing_behind(memory_kernel: Any):
    chat = await conversation(memory_kernel)
    session = memory_kernel.session
    tasks = len(asyncio.all_tasks())
    async with chat.watch() as staying:
        for number in range(500):
            if number % 2:
                watch = await chat.watch().__aenter__()  # and is forgotten
                await anext(watch)
            else:
                async with chat.events() as events:
                    await anext(events)
                    await remark(chat, number)
        watch = events = None
        gc.collect()
        source = session._harness.views._sources[chat.id]
        assert [len(readers) for readers in source._readers.values()] == [1]
        assert len(asyncio.all_tasks()) == tasks
        assert isinstance(await anext(staying), Whole)
    assert session._harness.views._sources == {}


async def test_a_reader_who_breaks_off_takes_nothing_away_from_the_others(memory_kernel: Any, told: Any):
    chat = await conversation(memory_kernel)
    async with chat.watch() as staying:
        async with chat.watch() as leaving:
            async for _ in leaving:
                break
        await remark(chat, 1)
        assert [type(frame) for frame in await told(staying)] == [Whole, Deltas]


async def test_whoever_comes_back_is_given_a_whole_view_with_all_that_was_missed(memory_kernel: Any, told: Any):
    chat = await conversation(memory_kernel)
    async with chat.watch() as watch:
        await told(watch)
    await remark(chat, 1)
    async with chat.watch() as watch:
        (whole,) = await told(watch)
        assert numbers(whole.view) == [1]


async def test_a_wait_for_a_frame_that_is_cancelled_loses_none(memory_kernel: Any, told: Any):
    chat = await conversation(memory_kernel)
    async with chat.watch() as watch:
        await told(watch)  # which ends with a wait that it cancels
        await remark(chat, 1)
        await remark(chat, 2)
        assert [frame.ops[0]["value"]["data"] for frame in await told(watch)] == [1, 2]


async def test_a_reader_that_waits_is_woken_by_the_commit(memory_kernel: Any):
    chat = await conversation(memory_kernel)
    async with chat.watch() as watch:
        await anext(watch)
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await remark(chat, 7)
        frame = await reading
        assert isinstance(frame, Deltas)
        assert frame.ops[0]["value"]["data"] == 7


@pytest.mark.invariant("V-5")
async def test_a_watch_ends_with_its_session_after_what_was_told_before(kernel: Any):
    chat = await conversation(kernel)
    async with chat.watch() as watch, chat.view() as view:
        await remark(chat, 1)
        await kernel.close()
        assert [type(frame) async for frame in watch] == [Whole, Deltas]
        assert watch.ended == "the session was closed"
        with pytest.raises(HandleExpired, match="the session was closed"):
            assert view.value


async def test_a_watch_ends_when_its_conversation_is_deleted(memory_kernel: Any):
    chat = await conversation(memory_kernel)
    async with chat.watch() as watch, chat.view() as view:
        await anext(watch)
        await memory_kernel.session.delete(chat)
        assert [frame async for frame in watch] == []
        assert watch.ended == f"conversation {chat.id} was deleted"
        with pytest.raises(HandleExpired):
            assert view.seq


async def test_a_conversation_that_is_not_there_and_a_session_that_is_closed_cannot_be_watched(memory_kernel: Any):
    chat = await conversation(memory_kernel)
    await memory_kernel.session.delete(chat)
    with pytest.raises(NotFound):
        await chat.watch().__aenter__()
    root = await memory_kernel.session.root()
    await memory_kernel.close()
    with pytest.raises(SessionClosed):
        await root.view().__aenter__()


async def test_nothing_of_a_commit_that_was_refused_is_told(memory_kernel: Any, told: Any):
    memory_kernel.wrap = lambda storage: Failing(storage, 2)  # the first made the conversation
    chat = await conversation(memory_kernel)
    async with chat.watch() as watch, chat.view() as view:
        await told(watch)
        with pytest.raises(StorageRejected):
            await remark(chat, 1)
        await remark(chat, 2)
        (frame,) = await told(watch)
        assert frame.ops[0]["value"]["data"] == 2
        assert numbers(view.value) == [2]


async def test_attaching_while_commits_land_misses_none_and_tells_none_twice(kernel: Any, told: Any):
    chat = await conversation(kernel)

    async def write() -> None:
        for number in range(60):
            await remark(chat, number)

    writing = asyncio.ensure_future(write())
    async with chat.watch() as first:
        for _ in range(5):
            async with chat.watch() as watch:
                replica = perdure.Replica()
                replica.apply(await anext(watch))
                for _ in range(3):
                    if not writing.done():
                        replica.apply(await anext(watch))
                found = numbers(replica.value)
                assert found == list(range(len(found)))
        await writing
        replica = perdure.Replica()
        for frame in await told(first):
            replica.apply(frame)
        assert numbers(replica.value) == list(range(60))


async def test_watching_inside_a_commit_is_refused_and_reading_twice_at_once_too(memory_kernel: Any):
    chat = await conversation(memory_kernel)
    async with chat.watch() as watch:
        await anext(watch)
        with pytest.raises(UsageError, match="would deadlock"):
            async with chat.commit():
                await anext(watch)
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="a watch of its own"):
            await anext(watch)
        reading.cancel()
    with pytest.raises(UsageError, match="with a block"):
        await anext(chat.watch())
    with pytest.raises(UsageError, match="opened before"):
        await watch.__aenter__()


async def test_what_a_reader_does_to_the_value_it_was_given_changes_nothing(memory_kernel: Any):
    chat = await conversation(memory_kernel)
    async with chat.view() as view:
        view.value["entries"].append("mine")
        assert view.value["entries"] == []


@pytest.mark.invariant("V-6")
async def test_watching_starts_no_work(memory_kernel: Any, told: Any):
    chat = await conversation(memory_kernel)
    async with chat.commit() as tx:
        tx.timer(0.0)
    async with chat.watch() as watch, chat.view(), chat.events() as events, memory_kernel.session.task_graph():
        await told(watch)
        await told(events)
        assert [task.state for task in memory_kernel.session.inspect().tasks] == ["waiting"]
