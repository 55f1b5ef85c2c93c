"""Watching a session beside its owner, by following its store (K1a, H30)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import surface
from perdure.app import HandInSession, ReadSession
from perdure.backends.memory import MemoryStorage
from perdure.errors import NotFound
from perdure.testing.clock import ManualClock, settle
from perdure.testing.scripted import ScriptedModel, answer, say, wait

pytestmark = pytest.mark.anyio

REMARK = perdure.entry_kind("app.remark")


@pytest.fixture
async def reader(owner: perdure.Session, beside: MemoryStorage, clock: ManualClock) -> ReadSession:
    async with perdure.open(beside, mode="read", clock=clock) as session:
        return session


async def told(watch: Any, clock: ManualClock, seconds: float = 3.0) -> list[Any]:
    """What a watch tells while so much time passes."""
    found: list[Any] = []

    async def read() -> None:
        async for item in watch:
            found.append(item)

    reading = asyncio.ensure_future(read())
    await clock.advance(seconds)
    await settle()
    reading.cancel()
    await asyncio.wait([reading])
    return found


@pytest.mark.invariant("V-10")
async def test_a_replica_of_what_a_reader_beside_the_owner_is_told_equals_the_owners_view(
    owner: perdure.Session, reader: ReadSession, clock: ManualClock
) -> None:
    chat = await owner.conversation("till")
    replica = perdure.Replica()
    async with (await reader.conversation("till")).watch() as watch, chat.view() as view:
        for text in ("one", "two", "three"):
            await (await chat.submit(text)).wait()
            await chat.configure(max_rounds=len(text))
            await chat.write(REMARK, {"after": text})
            for frame in await told(watch, clock):
                replica.apply(surface.decode_frame(frame.encoded))
            assert replica.value == view.value


async def test_a_frame_tells_of_all_commits_between_two_looks_at_once(
    owner: perdure.Session, reader: ReadSession, clock: ManualClock
) -> None:
    chat = await owner.conversation("till")
    async with (await reader.conversation("till")).watch() as watch:
        assert [type(frame) for frame in await told(watch, clock)] == [surface.Whole]
        for number in range(3):
            await chat.write(REMARK, number)
        (frame,) = await told(watch, clock)
        assert [(op["op"], op["path"]) for op in frame.ops] == [("add", "/entries/-")] * 3


async def test_a_reader_beside_the_owner_is_told_in_events(
    storage: MemoryStorage, beside: MemoryStorage, clock: ManualClock
) -> None:
    gate = asyncio.Event()
    model = ScriptedModel([answer(say("half of it, "), wait(gate), say("and the rest"))], clock=clock)
    async with (
        perdure.open(storage, clock=clock, model=model) as owner,
        perdure.open(beside, mode="read", clock=clock) as reader,
    ):
        chat = await owner.conversation("till")
        async with (await reader.conversation("till")).events() as events:
            heard = await told(events, clock)
            sent = await chat.submit("go")
            heard += await told(events, clock)
            gate.set()
            await sent.wait()
            heard += await told(events, clock)
    names = [type(event).__name__ for batch in heard for event in batch.events]
    assert names == [
        "Snapshot",
        "EntryAdded",
        "RunStarted",
        "MessageStarted",
        "MessageDelta",
        "MessageEnded",
        "RunEnded",
        "SubmissionSettled",
        "UsageChanged",
    ]


async def test_a_view_beside_the_owner_is_as_new_as_the_last_look_and_leaves_no_task_behind(
    owner: perdure.Session, reader: ReadSession, clock: ManualClock
) -> None:
    chat = await owner.conversation("till")
    tasks = len(asyncio.all_tasks())
    async with (await reader.conversation("till")).view() as view:
        await chat.write(REMARK, 1)
        await clock.advance(2.0)
        assert [entry["data"] for entry in view.value["entries"]] == [1]
    assert len(asyncio.all_tasks()) == tasks


async def test_a_watch_beside_the_owner_ends_when_the_conversation_is_deleted(
    owner: perdure.Session, reader: ReadSession, clock: ManualClock
) -> None:
    chat = await owner.conversation("till")
    async with (await reader.conversation("till")).watch() as watch:
        await told(watch, clock)
        await owner.delete(chat)
        assert await told(watch, clock) == []
        assert watch.ended is not None
        assert "no conversation" in watch.ended


async def test_what_is_not_there_cannot_be_watched(reader: ReadSession, beside: MemoryStorage, clock: ManualClock):
    with pytest.raises(NotFound):
        await reader.conversation("none")
    unknown = ReadSession(beside, "unknown", clock, reader.telemetry)
    with pytest.raises(NotFound, match="no session 'unknown'"):
        await unknown.task_graph().__aenter__()


async def test_the_task_graph_is_watched_beside_the_owner_too(
    owner: perdure.Session, reader: ReadSession, clock: ManualClock
) -> None:
    chat = await owner.conversation("till")
    async with reader.watch_task_graph() as watch, owner.task_graph() as graph:
        replica = perdure.Replica()
        async with chat.commit() as tx:
            question = tx.ask({"n": 1})
        for frame in await told(watch, clock):
            replica.apply(frame)
        assert replica.value == graph.value
        assert list(replica.value["tasks"]) == [str(question.id)]
        await owner.answer(question.id, 1)
        (frame,) = await told(watch, clock)
        assert [each.path for each in frame.ended] == [f"/tasks/{question.id}"]
        replica.apply(frame)
        assert replica.value == graph.value


@pytest.mark.slow
async def test_a_store_in_a_file_is_watched_by_another_opening_of_it(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    async with perdure.open(path) as owner:
        chat = await owner.conversation("till")
        async with perdure.open(path, mode="read") as reader:
            replica = perdure.Replica()
            async with (await reader.conversation("till")).watch() as watch, chat.view() as view:
                replica.apply(await anext(watch))
                done = await (await chat.submit("Hello")).wait()
                assert isinstance(done, perdure.Answered)
                while replica.value != view.value:
                    replica.apply(await anext(watch))


async def test_open_sessions_and_those_beside_them_are_what_the_surface_says(
    owner: perdure.Session, reader: ReadSession, beside: MemoryStorage, clock: ManualClock
) -> None:
    chat = await owner.conversation("till")
    in_process: surface.Session = owner
    looked_at: surface.SessionReader = reader
    conversation: surface.Conversation = chat
    read: surface.ConversationReader = await reader.conversation("till")
    handing: surface.Session = HandInSession(beside, "main", clock, reader.telemetry)
    assert isinstance(in_process, surface.Session)
    assert isinstance(looked_at, surface.SessionReader)
    assert isinstance(conversation, surface.Conversation)
    assert isinstance(read, surface.ConversationReader)
    assert isinstance(handing, surface.Session)
    async with conversation.view() as view, conversation.watch() as watch, conversation.events() as events:
        live: surface.Live = view
        frames: surface.Stream[surface.Frame] = watch
        batches: surface.Stream[surface.Events] = events
        assert isinstance(live, surface.Live)
        assert isinstance(frames, surface.Stream)
        assert isinstance(batches, surface.Stream)
