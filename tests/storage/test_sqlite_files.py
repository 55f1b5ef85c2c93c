"""What is SQLite's own: files and who may touch them, what is refused at opening, looking on, and queries."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.backends.sqlite import SqliteStorage, open_sqlite
from perdure.backends.sqlite_schema import APPLICATION_ID, newest_schema
from perdure.errors import NotFound, SchemaTooNew, SessionOwned, StorageCorrupt, UsageError
from perdure.records import ConversationId, DocumentId, EntryId, Inbound, SubmissionId, TaskId
from perdure.storage import PutBase, Storage, Write
from perdure.testing.clock import ManualClock
from perdure.testing.storage_fixtures_contract import (
    claimed,
    commit_id_of,
    conversation,
    document,
    entry,
    submission,
    task,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SqliteStorage]:
    storage = await open_sqlite(path)
    yield storage
    await storage.close()


def content(path: Path) -> bytes:
    return path.read_bytes()


def fill(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def size(path: Path) -> int:
    return path.stat().st_size


def mode_of(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


# -- files


async def test_a_store_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "s.db"
    storage = await open_sqlite(path)
    await (await claimed(storage)).commit(entry(10))

    for file in ("s.db", "s.db-wal", "s.db-shm"):
        assert mode_of(path.with_name(file)) == "0o600", file
    for directory in (path.parent, path.parent.parent, path.with_name("s.db.workers")):
        assert mode_of(directory) == "0o700", directory
    await storage.close()


async def test_a_closed_store_is_one_file_and_an_empty_directory_of_workers(path: Path) -> None:
    storage = await open_sqlite(path)
    await (await claimed(storage)).commit(entry(10))

    await storage.close()

    assert sorted(each.name for each in path.parent.iterdir()) == ["s.db", "s.db.workers"]
    assert list(path.with_name("s.db.workers").glob("0*.lock")) == []


async def test_two_names_of_a_file_are_one_store(storage: SqliteStorage, path: Path) -> None:
    await claimed(storage)
    path.with_name("link.db").symlink_to(path)

    other = await open_sqlite(path.with_name("link.db"))

    with pytest.raises(SessionOwned, match="another storage of this process"):
        await other.claim("main")
    assert other.path == storage.path
    await other.close()


async def test_one_process_opens_a_file_with_one_durability(storage: SqliteStorage, path: Path) -> None:
    with pytest.raises(UsageError, match="durability='power'"):
        await open_sqlite(path, durability="process")


async def test_two_workers_of_one_name_are_refused(path: Path) -> None:
    """Clocks with the same seed mint the same ids; waiting for each other's lock would last for ever."""
    storage = await open_sqlite(path, clock=ManualClock(seed=3))

    with pytest.raises(UsageError, match="seed"):
        await open_sqlite(path, clock=ManualClock(seed=3))

    await storage.close()


async def test_opening_again_changes_nothing(path: Path) -> None:
    await (await open_sqlite(path)).close()
    before = content(path)

    await (await open_sqlite(path)).close()

    assert content(path) == before
    with_header = apsw.Connection(str(path))
    assert with_header.pragma("user_version") == newest_schema()
    assert with_header.pragma("application_id") == APPLICATION_ID
    assert with_header.pragma("integrity_check") == "ok"
    with_header.close()


async def test_a_store_that_was_left_half_made_is_finished(path: Path) -> None:
    """The file was made, and its log: then the process died."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.close()

    storage = await open_sqlite(path)

    await (await claimed(storage)).commit(entry(10))
    await storage.close()


async def test_leftovers_of_dead_workers_are_swept_up_by_the_next_claim(path: Path) -> None:
    dead = await open_sqlite(path)
    await claimed(dead)
    await dead.close()
    leftover = path.with_name("s.db.workers") / f"{dead.worker.id}.lock"
    leftover.touch()

    storage = await open_sqlite(path)
    await claimed(storage)

    assert not leftover.exists()
    await storage.close()


# -- what is refused


async def test_a_file_that_is_no_database_is_refused_untouched(path: Path) -> None:
    fill(path, b"notes to myself\n" * 1000)

    with pytest.raises(StorageCorrupt, match=r"s\.db.*backup"):
        await open_sqlite(path)
    with pytest.raises(StorageCorrupt):
        await open_sqlite(path, mode="look")

    assert content(path) == b"notes to myself\n" * 1000


async def test_the_database_of_another_application_is_refused_untouched(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    before = content(path)

    with pytest.raises(StorageCorrupt, match=r"no perdure store .*another application[^,]*:"):
        await open_sqlite(path)

    assert content(path) == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


async def test_a_store_of_a_newer_perdure_is_refused(path: Path) -> None:
    await (await open_sqlite(path)).close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", newest_schema() + 7)
    connection.close()

    for mode in ("own", "look"):
        with pytest.raises(SchemaTooNew, match=rf"schema {newest_schema() + 7}.*up to {newest_schema()}.*upgrade"):
            await open_sqlite(path, mode=mode)


async def test_damage_is_found_when_it_is_read_and_nothing_is_written_after(path: Path) -> None:
    storage = await open_sqlite(path)
    line = await claimed(storage)
    for id in range(10, 400):
        await line.commit(entry(id, body=b"x" * 500))  # one by one: the pages of all tables are mixed
    await storage.close()
    damaged = bytearray(content(path))
    for page in range(40, len(damaged) // 4096):  # behind the schema
        damaged[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    fill(path, bytes(damaged))

    storage = await open_sqlite(path)
    with pytest.raises(StorageCorrupt, match=r"s\.db"):
        await storage.scan_entries("main", ConversationId(1), limit=500)
    with pytest.raises(StorageCorrupt):
        await storage.claim("main")
    with pytest.raises(StorageCorrupt):
        await storage.head("main")
    await storage.close()


async def test_a_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory: name a file in it"):
        await open_sqlite(tmp_path)


# -- looking


async def test_looking_at_a_missing_store_makes_nothing(path: Path) -> None:
    with pytest.raises(NotFound, match=r"s\.db"):
        await open_sqlite(path, mode="look")

    assert list(path.parent.iterdir()) == []


async def test_looking_at_an_empty_file_finds_no_store(path: Path) -> None:
    fill(path, b"")

    with pytest.raises(NotFound):
        await open_sqlite(path, mode="look")

    assert content(path) == b""


async def test_who_looks_reads_and_hands_in_but_claims_nothing(storage: SqliteStorage, path: Path) -> None:
    line = await claimed(storage)
    await line.commit(entry(10))
    look = await open_sqlite(path, mode="look")

    assert await look.read_entry("main", EntryId(10)) == b"entry 10"
    await look.hand_in("main", Inbound(id="a", kind="input", body=1, at=1.0))
    with pytest.raises(UsageError, match="mode='own'"):
        await look.claim("main")

    assert len(await storage.scan_inbound("main")) == 1
    await look.close()


async def test_who_looks_needs_no_owner(path: Path) -> None:
    storage = await open_sqlite(path)
    await (await claimed(storage)).commit(entry(10))
    await storage.close()

    look = await open_sqlite(path, mode="look")
    assert await look.read_entry("main", EntryId(10)) == b"entry 10"
    assert [each.owner for each in await look.sessions()] == [None]
    await look.hand_in("main", Inbound(id="a", kind="input", body=1, at=1.0))
    await look.close()

    storage = await open_sqlite(path)
    assert len(await storage.scan_inbound("main")) == 1
    await storage.close()


async def test_who_looked_too_early_can_look_again(path: Path) -> None:
    fill(path, b"")
    with pytest.raises(NotFound):
        await open_sqlite(path, mode="look")
    storage = await open_sqlite(path)
    await (await claimed(storage)).commit(entry(10))

    look = await open_sqlite(path, mode="look")

    assert await look.read_entry("main", EntryId(10)) == b"entry 10"
    await look.close()
    await storage.close()


async def test_who_looks_notices_a_change(storage: SqliteStorage, path: Path) -> None:
    line = await claimed(storage)
    look = await open_sqlite(path, mode="look")
    before = await look.change_count()
    assert await look.change_count() == before

    await line.commit(entry(10))

    assert await look.change_count() > before
    await look.close()


# -- queries


Seen = list[tuple[str, Any]]


@pytest.fixture
def statements() -> Iterator[Seen]:
    """Every statement that connections run meanwhile, with its bindings."""
    seen: Seen = []

    def trace(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        seen.append((sql, bindings))
        return True

    def attach(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(attach)
    yield seen
    apsw.connection_hooks.remove(attach)


async def read_everything(storage: Storage) -> None:
    await storage.sessions()
    await storage.head("main")
    await storage.find_commit("main", b"x")
    await storage.read_conversation("main", ConversationId(1))
    await storage.find_conversation("main", "key")
    await storage.scan_conversations("main", before=5)
    await storage.owned_conversations("main", [TaskId(1), TaskId(2)])
    await storage.forks_of("main", ConversationId(1))
    await storage.read_entry("main", EntryId(1))
    await storage.scan_entries("main", ConversationId(1), before=5)
    await storage.newest_head("main", ConversationId(1), before=5)
    await storage.count_entries("main", [ConversationId(1)])
    await storage.read_tasks("main", [TaskId(1), TaskId(2)])
    await storage.read_submission("main", SubmissionId(1))
    await storage.find_submission("main", ConversationId(1), "r")
    for live in (True, False):
        await storage.scan_tasks("main", live=live)
        await storage.scan_submissions("main", live=live)
        await storage.scan_submissions("main", live=live, conversation=ConversationId(1))
    await storage.find_document("main", "task", 1, "kind", "")
    await storage.scan_documents("main", "task", 1)
    await storage.scan_documents("main", "task", 1, kind="kind", retired=True)
    await storage.read_document("main", DocumentId(1))
    await storage.read_inbound("main", "a")
    for taken in (True, False):
        await storage.scan_inbound("main", taken=taken)


async def test_every_read_finds_its_rows_through_an_index(path: Path, statements: Seen) -> None:
    """I63: a long store is opened and listed without reading all of it."""
    storage = await open_sqlite(path)
    await storage.release((await storage.claim("main")).claim)
    statements.clear()

    await read_everything(storage)

    asked = {sql: bindings for sql, bindings in statements if "FROM" in sql}
    assert len(asked) > 24
    for sql, steps in plans(path, asked).items():
        assert not [step for step in steps if step.startswith("SCAN") and step not in HARMLESS], (sql, steps)
    await storage.close()


#: Scans of what was given with the statement, or of its own parts.
HARMLESS = ("SCAN json_each VIRTUAL TABLE INDEX 1:", "SCAN newest", "SCAN CONSTANT ROW")


async def test_pages_of_long_lists_come_in_the_order_of_an_index(path: Path, statements: Seen) -> None:
    """A page costs what the page has: nothing is sorted."""
    storage = await open_sqlite(path)
    await storage.release((await storage.claim("main")).claim)
    statements.clear()

    await storage.scan_conversations("main")
    await storage.scan_entries("main", ConversationId(1))
    await storage.newest_head("main", ConversationId(1))
    await storage.scan_tasks("main", live=True)
    await storage.scan_tasks("main", live=False)
    await storage.scan_submissions("main", live=True)
    await storage.scan_documents("main", "task", 1)
    await storage.scan_inbound("main")
    await storage.sessions()

    asked = {sql: bindings for sql, bindings in statements if "ORDER BY" in sql}
    assert len(asked) == 9
    for sql, steps in plans(path, asked).items():
        assert not [step for step in steps if "TEMP B-TREE" in step], (sql, steps)
    await storage.close()


def plans(path: Path, asked: dict[str, Any]) -> dict[str, list[str]]:
    """What SQLite would do for each statement."""
    connection = apsw.Connection(str(path))
    found = {
        sql: [str(row[3]) for row in connection.execute(sql, bindings, explain=2)] for sql, bindings in asked.items()
    }
    connection.close()
    return found


async def test_a_store_grows_with_what_is_written_and_no_more(path: Path) -> None:
    """I62: 1 kB a message makes a file of about 1 kB a message; pruned values give their space back."""
    storage = await open_sqlite(path, durability="process")
    line = await claimed(storage)

    async def write(messages: int) -> int:
        for id in range(line.seq + 10, line.seq + 10 + messages):
            writes: list[Write] = [entry(id, body=b"%04d" % id * 250)]
            if id % 10 == 0:
                writes.append(PutBase(DocumentId(1), True, b"v" * 1000))
            line.commit(*writes)
        await line.commit()
        connection = apsw.Connection(str(path))
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
        connection.close()
        return size(path)

    await line.commit(conversation(1, key="a"), document(2), task(3), submission(4))
    first = await write(1000)
    second = await write(1000)

    assert second - first < 1.6 * 1000 * 1000
    assert await storage.find_commit("main", commit_id_of(line.claim, 5)) == 5
    await storage.close()
