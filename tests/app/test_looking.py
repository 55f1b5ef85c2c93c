"""Looking at a session beside its owner (K1a): what is read is what was published, and looking changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from perdure.app import ReadSession
from perdure.backends.memory import MemoryStorage
from perdure.testing.clock import ManualClock, settle

pytestmark = pytest.mark.anyio

NOTES = perdure.document("app.notes", scope="session", initial=lambda: {"lines": []})
MOOD = perdure.document("app.mood", history="rewindable", fork="as_of", initial=lambda: {"mood": "calm"})
REMARK = perdure.entry_kind("app.remark")


@pytest.fixture
async def reader(owner: perdure.Session, beside: MemoryStorage, clock: ManualClock) -> ReadSession:
    async with perdure.open(beside, mode="read", clock=clock) as session:
        return session


async def test_a_reader_sees_the_conversations_newest_first(owner: perdure.Session, reader: ReadSession) -> None:
    for key in ("a", "b", "c"):
        await owner.conversation(key)
    assert [each.key for each in await reader.conversations(limit=2)] == ["c", "b"]


async def test_a_reader_sees_the_entries_as_the_owner_does(owner: perdure.Session, reader: ReadSession) -> None:
    chat = await owner.conversation("till")
    await chat.write(REMARK, {"n": 1})
    fork = await chat.fork((await chat.entries())[0].id, key="other till")
    await fork.write(REMARK, {"n": 2})

    seen = await (await reader.conversation("other till")).entries()

    assert seen == await fork.entries()
    assert [entry.data for entry in seen] == [{"n": 2}, {"n": 1}]


async def test_a_reader_sees_each_commit_without_opening_again(owner: perdure.Session, reader: ReadSession) -> None:
    chat = await owner.conversation("till")
    look = await reader.conversation("till")
    assert await look.entries() == []
    await chat.write(REMARK)
    assert len(await look.entries()) == 1


async def test_a_reader_takes_snapshots_of_documents(owner: perdure.Session, reader: ReadSession) -> None:
    chat = await owner.conversation("till")
    async with owner.commit() as tx:
        (await tx.doc(NOTES))["lines"].append("bought milk")
    await chat.write(REMARK)
    at = (await chat.entries())[0].id
    async with chat.commit() as tx:
        (await tx.doc(MOOD))["mood"] = "tense"

    look = await reader.conversation("till")

    assert await reader.snapshot(NOTES) == {"lines": ["bought milk"]}
    assert await look.snapshot(MOOD) == {"mood": "tense"}
    assert await look.snapshot_as_of(MOOD, at) is None


async def test_a_reader_sees_a_run_while_it_streams(
    owner: perdure.Session, reader: ReadSession, clock: ManualClock
) -> None:
    chat = await owner.conversation("till")
    sent = await chat.submit("Tell me something long demo:slow=1")
    await clock.advance(2.5)

    look = await reader.conversation("till")
    live = await look.live()

    assert live is not None
    assert live["text"].startswith("(demo model)")
    assert await look.busy()
    assert await reader.submission(sent.id).status() == "running"
    assert await reader.submission(sent.id).settled() is None
    assert [task.kind for task in (await reader.inspect()).tasks] == ["perdure.generation"]


async def test_a_reader_sees_how_a_submission_was_settled(
    owner: perdure.Session, reader: ReadSession, clock: ManualClock
) -> None:
    chat = await owner.root()
    answered, refused = await chat.submit("Hello"), await chat.submit("demo:auth")
    await clock.advance(1)

    first, second = await reader.submission(answered.id).settled(), await reader.submission(refused.id).settled()

    assert isinstance(first, perdure.Answered)
    assert "Hello" in first.text
    assert isinstance(second, perdure.NotAnswered)
    assert second.reason == "model_error"
    assert await reader.usage() == await owner.usage()


async def test_reading_starts_nothing_and_writes_nothing(owner: perdure.Session, beside: MemoryStorage) -> None:
    chat = await owner.conversation("till")
    before = await beside.head("main")
    async with perdure.open(beside, mode="read") as reader:
        look = await reader.conversation("till")
        await reader.inspect()
        await look.entries()
        await look.questions()
        await look.inbox()
        await settle()
    assert await beside.head("main") == before
    assert not chat.busy


async def test_unfinished_work_without_an_owner_is_shown_and_stays_as_it_is(
    storage: MemoryStorage, clock: ManualClock
) -> None:
    async with perdure.open(storage, clock=clock) as session:
        await (await session.root()).submit("demo:hang")
        await settle()
    async with perdure.open(storage, mode="read", clock=clock) as reader:
        info = await reader.info()
        (task,) = (await reader.inspect()).tasks
        await clock.advance(60)
        assert (await reader.inspect()).tasks == [task]
    assert info.owner is None


async def test_what_live_records_show_is_one_point_of_the_line(
    owner: perdure.Session, beside: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await owner.conversation("till")
    await settle()
    scan, waiting = beside.scan_tasks, [1, 2, 3]

    async def scan_and_be_overtaken(*args: object, **options: object) -> list[bytes]:
        found = await scan(*args, **options)  # type: ignore[arg-type]
        if waiting:
            await chat.submit(f"demo:hang {waiting.pop()}")
            await settle()
        return found

    monkeypatch.setattr(beside, "scan_tasks", scan_and_be_overtaken)
    async with perdure.open(beside, mode="read") as reader:
        inspection = await reader.inspect()

    placed = [item for item in inspection.submissions if item.state == "placed"]
    assert len(inspection.submissions) == 3
    assert len(placed) == 1
    assert len(inspection.tasks) == 1


async def test_what_is_not_there_is_not_found_and_not_made(reader: ReadSession, beside: MemoryStorage) -> None:
    with pytest.raises(perdure.NotFound, match="'nobody'"):
        await reader.conversation("nobody")
    with pytest.raises(perdure.NotFound, match="no submission 99"):
        await reader.submission(99).record()
    with pytest.raises(perdure.NotFound, match="no task 99"):
        await reader.task(99)
    async with perdure.open(beside, mode="read", session="elsewhere") as other:
        with pytest.raises(perdure.NotFound, match=r"'elsewhere'.*'main'"):
            await other.info()
    assert [each.key for each in await beside.sessions()] == ["main"]


@pytest.mark.parametrize("key", ["main", "a", "\x01", "é\ue000", "z" * 300])
async def test_a_session_is_found_among_its_neighbours(storage: MemoryStorage, key: str) -> None:
    for each in (key, key + "x", key + "\x01", "0", key[:-1] + "\U0010fffe"):
        await storage.claim(each)
    async with perdure.store(storage, mode="read") as store:
        assert (await store.look(key).info()).key == key


@pytest.mark.parametrize("mode", ["read", "hand-in"])
def test_looking_makes_no_file(tmp_path: Path, mode: str) -> None:
    async def look() -> None:
        async with perdure.store(str(tmp_path / "s.db"), mode=mode):  # type: ignore[arg-type]
            pass

    with pytest.raises(perdure.NotFound, match="no store at"):
        perdure.run(look)
    assert list(tmp_path.iterdir()) == []


async def test_a_store_in_memory_cannot_be_looked_at_from_outside() -> None:
    with pytest.raises(perdure.UsageError, match="memory:"):
        async with perdure.open("memory:", mode="read"):
            pass


async def test_an_unknown_mode_is_named(storage: MemoryStorage) -> None:
    with pytest.raises(perdure.UsageError, match="'write'"):
        async with perdure.open(storage, mode="write"):  # type: ignore[call-overload]
            pass
