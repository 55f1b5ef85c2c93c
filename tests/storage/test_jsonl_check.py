"""`db check` and `db backup` of text files, and what an index of many entries holds."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import perdure
from perdure.app.session import Session
from perdure.backends.jsonl import open_jsonl
from perdure.backends.jsonl_backup import backup
from perdure.backends.jsonl_check import check
from perdure.errors import NotFound, StorageCorrupt, UsageError
from perdure.records import ConversationId
from perdure.testing.storage_fixtures_contract import claimed, entry

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def session(path: Path) -> AsyncIterator[Session]:
    """An owner at work, with something said."""
    async with perdure.open(f"jsonl:{path}") as session:
        root = await session.root()
        await (await root.submit("hello")).wait()
        yield session


def file_of(path: Path) -> Path:
    return path / "sessions" / "main" / "000001.jsonl"


def modes(path: Path) -> set[int]:
    return {each.stat().st_mode & 0o077 for each in [path, *path.rglob("*")]}


def left_in(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


async def test_a_store_is_checked_beside_its_owner_and_found_healthy(session: Session, path: Path):
    checked = check(str(path))

    assert checked.damage == []
    assert checked.sessions == 1
    assert {"conversation", "entry", "task", "submission"} <= checked.records.keys()
    assert check(str(path), quick=True).healthy


async def test_a_changed_byte_is_found_and_told_with_the_session_and_the_place(session: Session, path: Path):
    whole = file_of(path).read_bytes()
    file_of(path).write_bytes(whole.replace(b"hello", b"hallo", 1))

    for quick in (True, False):
        (damage,) = check(str(path), quick=quick).damage
        assert damage.session == "main"
        assert re.search(r"000001\.jsonl.*bytes from \d+ on are damaged", damage.what)


async def test_records_that_do_not_fit_together_are_found(path: Path):
    storage = await open_jsonl(path)
    line = await claimed(storage)
    await line.commit(entry(10))
    await storage.close()

    found = [each.what for each in check(str(path)).damage]

    assert any("conversation that is not there" in each for each in found)
    assert check(str(path), quick=True).healthy


async def test_a_torn_end_is_no_damage(session: Session, path: Path):
    with file_of(path).open("ab") as file:
        file.write(b'{"is":"entry","id":11,"conv')

    assert check(str(path)).healthy


async def test_what_is_no_store_is_told(tmp_path: Path):
    with pytest.raises(NotFound, match="check the path"):
        check(str(tmp_path / "nowhere"))
    with pytest.raises(NotFound, match=r"no store\.json"):
        check(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        check(str(tmp_path / "file"))


async def test_a_backup_beside_the_owner_is_a_store_of_its_own(session: Session, path: Path, tmp_path: Path):
    made = backup(str(path), str(tmp_path / "copy"))
    root = await session.root()
    await (await root.submit("after the copy")).wait()

    assert made.checked.healthy
    assert made.path == made.checked.path == str(tmp_path / "copy")
    assert modes(tmp_path / "copy") == {0}
    async with perdure.open(f"jsonl:{tmp_path / 'copy'}") as copy:
        chat = await copy.root()
        assert len([each async for each in chat.history()]) == 2
        await (await chat.submit("go on")).wait()
    assert len([each async for each in root.history()]) == 4


async def test_a_backup_replaces_nothing_and_keeps_nothing_of_a_damaged_store(
    session: Session, path: Path, tmp_path: Path
):
    with pytest.raises(UsageError, match="replaces nothing"):
        backup(str(path), str(path))
    file_of(path).write_bytes(file_of(path).read_bytes().replace(b"hello", b"hallo", 1))

    with pytest.raises(StorageCorrupt):
        backup(str(path), str(tmp_path / "copy"))

    assert left_in(tmp_path) == ["store"]


@pytest.mark.slow
async def test_an_index_of_ten_thousand_entries_does_not_hold_their_bodies(path: Path):
    """I63: 30 MB of entries; a page of them costs a page."""
    storage = await open_jsonl(path, durability="process")
    line = await claimed(storage)
    body = b'"' + b"x" * 3000 + b'"'
    for first in range(10, 10_010, 500):
        await line.commit(*[entry(id, body=body) for id in range(first, first + 500)])
    await storage.release(line.claim)
    await storage.close()

    tracemalloc.start()
    storage = await open_jsonl(path, durability="process")
    page = await storage.scan_entries("main", ConversationId(1), limit=50)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await storage.close()

    assert page == [body] * 50
    assert held < 10_000_000
