"""The check of a store finds what is wrong, names it, and finds nothing wrong in a store that is in use."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.backends.sqlite_backup import backup
from perdure.backends.sqlite_check import check
from perdure.errors import NotFound, StorageCorrupt, StorageFull, UsageError

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def pay(amount: int, to: str) -> str:
    """Pay an amount to someone."""
    return f"paid {amount} to {to}"


async def ask_boss(call: perdure.ToolCall, request: str) -> str:
    """Ask the boss about a request."""
    async with call.commit() as tx:
        tx.ask({"request": request})
    return "asked"


REGISTRY = perdure.Registry([perdure.Extension(name="shop", tools=[perdure.tool(pay), perdure.tool(ask_boss)])])


async def work(path: Path) -> None:
    """Answers, calls, an abort, a fork, a question that stays open, and a failure."""
    async with perdure.open(str(path), registry=REGISTRY) as session:
        chat = await session.conversation("till")
        for text in ("Pay 5 to Ann", "Hello", "demo:auth"):
            await (await chat.submit(text)).wait()
        hanging = await chat.submit("demo:hang")
        await session.until(lambda: chat.busy)
        await chat.abort()
        await hanging.wait()
        newest = (await chat.entries(limit=1))[0]
        fork = await chat.fork(newest.id, key="fork")
        await (await fork.submit("Pay 6 to Bob")).wait()
        asking = await session.conversation("boss")
        await asking.submit('Ask the boss about the request "a holiday"')
        await session.until(lambda: bool(session.inspect().questions))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    found = tmp_path / "s.db"
    await work(found)
    return found


def change(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    try:
        for each in statements:
            connection.execute(each)
    finally:
        connection.close()


def body(field: str, value: str) -> str:
    return f"CAST(json_set(CAST(body AS TEXT), '$.{field}', json('{value}')) AS BLOB)"


async def test_a_store_in_order_is_healthy_also_beside_its_owner(path: Path) -> None:
    checked = check(str(path))
    assert checked.damage == []
    assert checked.sessions == 1
    assert checked.records["conversation"] == 3
    assert checked.records["entry"] > 10
    async with perdure.open(str(path), registry=REGISTRY) as session:
        await session.resume()
        await (await (await session.root()).submit("Hello")).wait()
        assert check(str(path)).damage == []


async def test_what_deletion_and_pruning_leave_is_healthy(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with perdure.open(str(path), registry=REGISTRY) as session:
        chat = await session.conversation("till")
        await (await chat.submit("Pay 5 to Ann")).wait()
        call = (await chat.entries(limit=3))[-1]  # a fork that ends between a call and its result
        fork = await chat.fork(call.id, key="fork")
        for text in ("Pay 6 to Bob", "demo:cut", "demo:garbage", "demo:length", "demo:unknown", "demo:refuse"):
            await (await fork.submit(text)).wait()
        await session.delete(chat)
        await session.prune(older_than=0)
        checked = check(str(path))
        assert checked.damage == []
        assert checked.records["conversation"] == 2


RESULT = """id = (SELECT max(id) FROM entry WHERE json_extract(CAST(body AS TEXT), '$.kind') = 'perdure.tool_result')"""
LIVE = "id = (SELECT max(id) FROM task WHERE live = 1)"


@pytest.mark.parametrize(
    "statement, says",
    [
        (
            f"UPDATE entry SET body = CAST('{{\"id\":7' AS BLOB) WHERE {RESULT}",
            r"entry \d+ of conversation \d+ cannot be",
        ),
        (f"DELETE FROM entry WHERE {RESULT.replace('max', 'min')}", r"call \d+\.0 in conversation \d+ has no result"),
        (
            "INSERT INTO entry SELECT e.id + 100000, conversation, head, "
            "CAST(json_set(CAST(body AS TEXT), '$.id', (e.id + 100000) & 0xffffffffff) AS BLOB) FROM entry e "
            f"WHERE {RESULT}",
            r"has two results",
        ),
        (f"UPDATE entry SET head = 1 WHERE {RESULT}", "the columns of entry"),
        (f"UPDATE entry SET body = {body('seq', '999999')} WHERE {RESULT}", "is of commit 999999"),
        (f"UPDATE entry SET head = 99, body = {body('head', '99')} WHERE {RESULT}", "names entry 99, which"),
        (f"UPDATE task SET live = 0 WHERE {LIVE}", r"the columns of task"),
        (f"UPDATE task SET body = {body('owner', '4')} WHERE {LIVE}", "its owner, task 4, has ended or is not there"),
        (f"UPDATE task SET body = {body('conversation', '999')} WHERE {LIVE}", "conversation 999, which is not there"),
        ("DELETE FROM task WHERE live = 1", "has ended or is not there|waits for task"),
        ("DELETE FROM conversation WHERE key = 'till'", "is a fork of"),
        ("UPDATE conversation SET key = 'other' WHERE key = 'till'", "the columns of conversation"),
        ("UPDATE submission SET request_id = 'x' WHERE id = (SELECT max(id) FROM submission)", "columns of submission"),
        ("DELETE FROM base", "has no value|begins with a delta"),
        ("UPDATE base SET body = CAST('[' AS BLOB)", "cannot be read"),
        ('DELETE FROM "commit" WHERE id = (SELECT min(id) + 1 FROM "commit")', "commits are not dense"),
        ("UPDATE session SET next_id = 5", "the next id 5"),
        ("UPDATE session SET owner = 'nobody'", "its owner nobody is no worker"),
    ],
)
async def test_what_is_wrong_with_a_record_is_named(path: Path, statement: str, says: str) -> None:
    change(path, statement)
    damage = check(str(path)).damage
    assert damage, statement
    assert {each.session for each in damage} == {"main"}
    assert any(re.search(says, each.what) for each in damage), damage


def spoil(path: Path) -> None:
    with path.open("r+b") as file:
        for page in range(path.stat().st_size // 4096 // 2, path.stat().st_size // 4096):
            file.seek(page * 4096 + 8)
            file.write(b"\xff" * 64)


async def test_a_damaged_page_is_named_as_one_of_the_file(path: Path) -> None:
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA journal_mode = delete")
    spoil(path)
    damage = check(str(path)).damage
    assert damage
    assert {each.session for each in damage} == {None}
    assert damage[0].what.startswith("SQLite: ")
    with pytest.raises(StorageCorrupt, match=r"not (a )?healthy"):
        backup(str(path), str(path.parent / "copy.db"))
    assert not (path.parent / "copy.db").exists()


async def test_progress_is_told(path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    backup(str(path), str(path.parent / "copy.db"), lambda *what: told.append(what))
    assert ("copying", told[0][2], told[0][2]) in told


async def test_a_backup_is_a_store_of_its_own_and_only_its_owners(path: Path) -> None:
    old = os.umask(0)
    try:
        made = backup(str(path), str(path.parent / "copy.db"))
    finally:
        os.umask(old)
    copy = path.parent / "copy.db"
    assert made.checked.healthy
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(each.name for each in path.parent.iterdir() if each.name.startswith((".", "copy"))) == ["copy.db"]
    async with perdure.open(str(copy), registry=REGISTRY) as session:
        assert len(await (await session.conversation("till")).entries()) > 5


async def test_a_backup_beside_an_owner_is_of_one_moment(path: Path) -> None:
    async with perdure.open(str(path), registry=REGISTRY) as session:
        chat = await session.root()
        told = 0

        def tell(*what: Any) -> None:
            nonlocal told
            told += 1

        await (await chat.submit("Hello")).wait()
        made = backup(str(path), str(path.parent / "copy.db"), tell)
        await (await chat.submit("Hello again")).wait()
    assert told
    assert made.checked.healthy
    assert check(str(path)).records["entry"] > made.checked.records["entry"]


async def test_a_backup_replaces_nothing(path: Path) -> None:
    (path.parent / "copy.db").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        backup(str(path), str(path.parent / "copy.db"))
    assert (path.parent / "copy.db").read_text() == "mine"


async def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("x" * 5000)
    with pytest.raises(StorageCorrupt, match="no perdure store"):
        check(str(tmp_path / "text.db"))
    with pytest.raises(NotFound, match="missing"):
        check(str(tmp_path / "missing.db"))
    with pytest.raises(UsageError, match="directory"):
        check(str(tmp_path))


STRAYS = {
    "a session that is gone": ("DELETE FROM session", "of a session that is not there"),
    "a conversation that is gone": ("DELETE FROM conversation", "of a conversation that is not there"),
    "an entry of nowhere": ("UPDATE entry SET conversation = conversation + 999", "of a conversation that is not"),
    "a value of no document": ("INSERT INTO delta VALUES (999, 1, x'5b5d')", "of a document that is not there"),
    "an item for nobody": ("INSERT INTO inbound VALUES (77, 'x', NULL, x'7b7d')", "1 rows of table inbound"),
    "no rule of uniqueness": ("DROP INDEX submission_request", "its index submission_request is not there"),
    "no rule of pruning": ("DROP TRIGGER base_prunes", "its trigger base_prunes is not there"),
    "no table": ("DROP TABLE inbound", "its table inbound is not there"),
    "a strange trigger": (
        "CREATE TRIGGER strange AFTER INSERT ON entry BEGIN DELETE FROM task; END",
        "a trigger strange, which is not perdure's",
    ),
}


@pytest.mark.parametrize("name", STRAYS)
async def test_rows_that_belong_to_nothing_and_a_changed_schema_are_found(path: Path, name: str) -> None:
    statement, what = STRAYS[name]
    change(path, statement)
    assert any(what in damage.what for damage in check(str(path)).damage)


@pytest.mark.parametrize("pid", ["4194303999", "of this one"])
async def test_a_backup_removes_what_a_killed_one_of_its_name_left(path: Path, pid: str) -> None:
    beside = f".copy.db.{pid if pid.isdigit() else os.getpid()}.part"
    mine = (".other.db.4194303999.part", ".copy.db.1.part", ".copy.db.x.part")
    for name in (*mine, beside, f"{beside}-journal"):
        (path.parent / name).write_text("left")
    backup(str(path), str(path.parent / "copy.db"))
    assert {each.name for each in path.parent.iterdir() if each.name.endswith(("part", "journal"))} == set(mine)


async def test_a_disk_that_is_full_of_the_copy_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        done = False

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def step(self, pages: int) -> None:
            raise apsw.FullError("full")

    class Copy(apsw.Connection):
        def backup(self, *arguments: Any, **named: Any) -> Any:
            return Full()

    monkeypatch.setattr(apsw, "Connection", Copy)
    with pytest.raises(StorageFull, match=r"no space left while writing .*\.copy\.db\..*part"):
        backup(str(path), str(path.parent / "copy.db"))
    monkeypatch.undo()
    assert [each.name for each in path.parent.iterdir() if "copy" in each.name] == []
