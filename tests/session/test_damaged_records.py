"""A record that cannot be read any more is named by whoever needs it, and left as it is (I53)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.errors import SessionPoisoned, StorageCorrupt
from perdure.telemetry import Telemetry
from perdure.testing.scripted import ScriptedModel, by_prompt, hang, say

pytestmark = pytest.mark.anyio

NOTE = perdure.entry_kind("test.note")
NOTES = perdure.document("test.notes")
COUNT = 12
#: The id column of a row holds the session above these.
WIDTH = 1 << 40

Damage = Callable[[bytes], bytes]

DAMAGES: dict[str, Damage] = {
    "flipped": lambda body: body[: len(body) // 2] + b"\xff\xfe" + body[len(body) // 2 + 2 :],
    "NULs": lambda body: body[:12] + bytes(len(body) - 12),
    "huge number": lambda body: body.replace(b'"at":', b'"at":' + b"9" * 400),
    "torn": lambda body: body[:-3],
    "another": lambda body: body.replace(b'"kind"', b'"kynd"'),
}


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """Two conversations: one of many notes, and a neighbour."""
    path = tmp_path / "store.db"
    async with perdure.open(str(path), model=None, durability="process") as session:
        chat = await session.conversation("a")
        for number in range(COUNT):
            async with chat.commit() as tx:
                tx.append(chat.id, NOTE, data=f"note {number}")
                (await tx.doc(NOTES))[f"n{number}"] = number
        other = await session.conversation("b")
        await other.write(NOTE, "alone")
    return path


def damage(path: Path, table: str, how: Damage, *, at: int) -> tuple[int, bytes]:
    """Damage the body in a row of a table, and return its id and what it is now."""
    connection = apsw.Connection(str(path))
    rows: list[Any] = connection.execute(f"SELECT rowid, id, body FROM {table} ORDER BY id").fetchall()
    rowid, id, body = rows[at]
    changed = how(bytes(body))
    assert changed != bytes(body)
    connection.execute(f"UPDATE {table} SET body = ? WHERE rowid = ?", (changed, rowid))  # as a bad disk would
    connection.close()
    return int(id) % WIDTH, changed


def body_of(path: Path, table: str, id: int) -> bytes:
    connection = apsw.Connection(str(path))
    ((body,),) = connection.execute(f"SELECT body FROM {table} WHERE id % {WIDTH} = ?", (id,))
    connection.close()
    return bytes(body)


def opened(path: Path, **options: Any) -> Any:
    return perdure.open(str(path), model=ScriptedModel(by_prompt({"": say("fine")})), **options)


@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES)
async def test_a_history_with_a_damaged_entry_says_which_instead_of_ending_there(store: Path, how: Damage):
    id, changed = damage(store, "entry", how, at=COUNT // 2)
    async with opened(store) as session:
        chat = await session.conversation("a")
        read = [entry.data for entry in await chat.entries(limit=COUNT // 2 - 1)]
        assert read == [f"note {number}" for number in range(COUNT - 1, COUNT // 2, -1)]

        with pytest.raises(StorageCorrupt, match=rf"entry {id} of session 'main' is damaged"):
            _ = [entry async for entry in chat.history()]

    assert body_of(store, "entry", id) == changed


async def test_a_run_that_needs_a_damaged_entry_is_refused_by_its_name_and_other_conversations_go_on(store: Path):
    id, changed = damage(store, "entry", DAMAGES["flipped"], at=COUNT // 2)
    async with opened(store) as session:
        chat = await session.conversation("a")
        ended = await (await chat.submit("go on")).wait()
        assert isinstance(ended, perdure.NotAnswered)
        assert f"entry {id} of session 'main' is damaged" in ended.detail

        assert (await (await (await session.conversation("b")).submit("go on")).wait()).text == "fine"

    assert body_of(store, "entry", id) == changed


async def test_a_fork_at_a_damaged_entry_is_refused(store: Path):
    id, _ = damage(store, "entry", DAMAGES["torn"], at=COUNT // 2)
    async with opened(store) as session:
        chat = await session.conversation("a")
        with pytest.raises(StorageCorrupt, match=rf"entry {id} "):
            await chat.fork(id)
        fork = await chat.fork(id - 3)
        assert (await (await fork.submit("from before")).wait()).text == "fine"


async def test_a_reader_beside_is_told_the_same(store: Path):
    id, _ = damage(store, "entry", DAMAGES["NULs"], at=COUNT // 2)
    async with opened(store, mode="read") as reader:
        with pytest.raises(StorageCorrupt, match=rf"entry {id} "):
            _ = [entry async for entry in (await reader.conversation("a")).history()]


async def test_a_damaged_document_is_named_and_the_transcript_can_be_read(store: Path):
    id, changed = damage(store, "document", DAMAGES["another"], at=0)
    async with opened(store) as session:
        chat = await session.conversation("a")
        with pytest.raises(StorageCorrupt, match=rf"document {id} of session 'main' is damaged"):
            await chat.snapshot(NOTES)
        with pytest.raises(StorageCorrupt):
            async with chat.commit() as tx:
                (await tx.doc(NOTES))["more"] = 1
        assert len([entry async for entry in chat.history()]) == COUNT

    assert body_of(store, "document", id) == changed


@pytest.mark.parametrize("table", ["base", "delta"])
async def test_a_damaged_part_of_a_document_s_value_is_never_taken_for_a_value(store: Path, table: str):
    connection = apsw.Connection(str(store))
    connection.execute(f"UPDATE {table} SET body = substr(body, 1, length(body) - 4)")
    connection.close()
    async with opened(store) as session:
        chat = await session.conversation("a")
        with pytest.raises(StorageCorrupt, match=r"document \d+ of session 'main'"):
            await chat.snapshot(NOTES)
        with pytest.raises(StorageCorrupt):
            async with chat.commit() as tx:
                (await tx.doc(NOTES))["more"] = 1


async def test_a_list_with_a_damaged_conversation_says_which(store: Path):
    id, _ = damage(store, "conversation", DAMAGES["torn"], at=0)
    async with opened(store) as session:
        with pytest.raises(StorageCorrupt, match=rf"conversation {id} "):
            await session.conversations()
        assert await session.conversation("b")


async def test_a_session_whose_live_work_is_damaged_is_not_opened_and_not_changed(tmp_path: Path):
    path = tmp_path / "store.db"
    async with perdure.open(str(path)) as session, (await session.conversation("a")).commit() as tx:
        tx.timer(at=2e10)
    id, changed = damage(path, "task", DAMAGES["torn"], at=0)

    with pytest.raises(StorageCorrupt, match=rf"task {id} "):
        async with opened(path):
            pass

    assert body_of(path, "task", id) == changed


async def test_a_run_whose_own_records_are_damaged_stops_the_session_with_their_name_and_does_not_spin(tmp_path: Path):
    path = tmp_path / "store.db"
    async with perdure.open(str(path), model=ScriptedModel(hang()), durability="process") as session:
        chat = await session.conversation("a")
        sent = await chat.submit("go")
        await session.until(lambda: session.inspect().tasks[0].phase != "prepare")
    id, changed = damage(path, "document", DAMAGES["torn"], at=0)
    seen: list[str] = []
    telemetry = Telemetry()
    telemetry.attach("test", ["perdure.task.faulted"], lambda event, *_: seen.append(event))

    async with opened(path, telemetry=telemetry) as session:
        with pytest.raises(StorageCorrupt, match=rf"document {id} of session 'main' is damaged"):
            await session.submission(sent.id).wait()
        with pytest.raises(SessionPoisoned, match=rf"document {id} of session 'main' is damaged"):
            await (await session.conversation("a")).abort()
        assert f"document {id}" in session.inspect().storage
        assert len(seen) == 1

    assert body_of(path, "document", id) == changed
