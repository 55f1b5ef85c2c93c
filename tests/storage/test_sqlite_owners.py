"""Owners that are frozen or killed, locks that are held, forked children, and many that come at once (K1, I49)."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest

from perdure.backends.sqlite import SqliteStorage, open_sqlite
from perdure.backends.sqlite_locks import holder_of_write_lock
from perdure.backends.workers import end, is_stopped, started
from perdure.errors import SessionOwned, StorageRejected
from perdure.records import ConversationId, EntryId
from perdure.testing.processes import Child, run_child
from perdure.testing.storage_fixtures_contract import Line, claimed, entry
from perdure.testing.storage_process_contract import StorageChild

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STOPS_IN_A_COMMIT = """
import asyncio, os, signal, sys
from perdure.backends.sqlite import open_sqlite
from perdure.testing.storage_fixtures_contract import Line, claimed, entry
from perdure.testing.vfs import CrashingVFS

class Disk(CrashingVFS):
    armed = False
    def _due(self, on, number):
        return "before" if self.armed and on == "write" else None

def stop():
    disk.armed = False
    os.kill(os.getpid(), signal.SIGSTOP)

disk = Disk("stops", crash=stop)

async def main():
    line = await claimed(await open_sqlite(sys.argv[1], vfs="stops"))
    await line.commit(entry(10))
    print("committed", flush=True)
    disk.armed = True
    for id in (11, 12):
        try:
            print(await line.commit(entry(id)), flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)

asyncio.run(main())
"""

#: Not a worker: it takes the write lock and waits for a line.
LOCKS = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
sys.stdin.readline()
"""

FORKS = """
import asyncio, os, sys
from perdure.backends.sqlite import open_sqlite
from perdure.errors import PerdureError
from perdure.testing.storage_fixtures_contract import Line, claimed, entry

async def use(storage, line):
    for call in (lambda: line.at(2, entry(11)), lambda: storage.head("main")):
        try:
            await call()
        except PerdureError as error:
            print(type(error).__name__, "forked" in str(error), flush=True)

async def main():
    storage = await open_sqlite(sys.argv[1])
    line = await claimed(storage)
    await line.commit(entry(10))
    if os.fork() == 0:
        asyncio.run(use(storage, line))
        print("child", flush=True)
        sys.stdin.readline()
        os._exit(0)
    else:
        await line.at(2, entry(12))
        await asyncio.Event().wait()

asyncio.run(main())
"""

OPENS = """
import asyncio, sys
from perdure.backends.sqlite import open_sqlite
from perdure.testing.storage_fixtures_contract import Line, claimed, entry

async def main():
    sys.stdin.readline()
    storage = await open_sqlite(sys.argv[1])
    line = await claimed(storage, sys.argv[2])
    for id in range(10, 30):
        await line.commit(entry(id))
    await storage.release(line.claim)
    await storage.close()
    print("done", flush=True)

asyncio.run(main())
"""


def child_of(code: str, *arguments: object) -> Child:
    return Child([sys.executable, "-c", code, *map(str, arguments)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SqliteStorage]:
    storage = await open_sqlite(path)
    yield storage
    await storage.close()


@pytest.fixture
def frozen(path: Path, storage: SqliteStorage) -> Iterator[Child]:
    """An owner of `main` that stopped in the middle of its second commit."""
    with child_of(STOPS_IN_A_COMMIT, path) as child:
        assert child.read_line() == "committed"
        while holder_of_write_lock(str(path)) != child.pid or not is_stopped(child.pid):
            os.sched_yield()
        yield child


async def test_taking_over_from_an_owner_frozen_in_a_commit_names_it(storage: SqliteStorage, frozen: Child) -> None:
    with pytest.raises(StorageRejected, match=rf"process {frozen.pid}, stopped \(T\).*kill=True"):
        await storage.claim("main", take_over=True)

    assert await storage.read_entry("main", EntryId(10)) == b"entry 10"
    assert frozen.running


async def test_a_commit_beside_a_frozen_writer_is_refused_after_a_while(storage: SqliteStorage, path: Path) -> None:
    line = await claimed(storage, "mine")
    with child_of(STOPS_IN_A_COMMIT, path) as frozen:
        assert frozen.read_line() == "committed"
        while holder_of_write_lock(str(path)) != frozen.pid or not is_stopped(frozen.pid):
            os.sched_yield()

        with pytest.raises(StorageRejected, match=f"process {frozen.pid}"):
            await line.at(1, entry(10))

        frozen.proceed()
        assert frozen.read_line() == "2"
    assert await line.at(1, entry(10)) == 1


async def test_taking_over_with_kill_ends_the_frozen_owner(storage: SqliteStorage, frozen: Child) -> None:
    line = await claimed_by_force(storage)

    assert (line.opened.head, line.opened.clean) == (1, False)
    assert frozen.wait().killed
    await line.commit(entry(20))
    assert await storage.scan_entries("main", ConversationId(1)) == [b"entry 20", b"entry 10"]


async def test_kill_spares_an_owner_that_stands_in_nobodys_way(storage: SqliteStorage, path: Path) -> None:
    child = StorageChild("perdure.backends.sqlite:open_sqlite", str(path))
    with child:
        child.claim()
        child.stop()

        line = await claimed_by_force(storage)

        assert child.running
        child.proceed()
        with pytest.raises(RuntimeError, match="Fenced"):
            child.call("commit", claim={"session": "main", "epoch": 1}, seq=1, id=10)
        await line.commit(entry(20))


async def test_kill_never_ends_a_process_that_is_no_worker(storage: SqliteStorage, path: Path) -> None:
    with child_of(LOCKS, path) as stranger:
        assert stranger.read_line() == "locked"
        stranger.stop()

        with pytest.raises(StorageRejected, match=rf"process {stranger.pid} \(stopped.*no worker"):
            await storage.claim("main", take_over=True, kill=True)

        assert stranger.running


async def test_a_process_that_got_the_number_of_a_worker_is_spared() -> None:
    with child_of("import sys; sys.stdin.readline()") as child:
        end(child.pid, (started(child.pid) or 0) - 1)

        assert child.running
        end(child.pid, started(child.pid) or 0)
        assert child.wait().killed


async def test_a_lock_that_someone_else_holds_for_three_seconds_is_waited_out(
    storage: SqliteStorage, path: Path
) -> None:
    """I49."""
    line = await claimed(storage)
    with child_of(LOCKS, path) as stranger:
        assert stranger.read_line() == "locked"
        admitted = line.commit(entry(10))
        with child_of("import select; select.select([], [], [], 3)") as three_seconds:
            three_seconds.wait()
        assert not admitted.done()

        stranger.write_line("")

        assert await admitted == 1


async def test_eight_processes_make_a_store_together(path: Path) -> None:
    """I49: and each writes its session."""
    children = [child_of(OPENS, path, f"s{number}") for number in range(8)]
    try:
        for child in children:
            child.write_line("go")
        for child in children:
            assert child.read_line() == "done", child.stderr
    finally:
        for child in children:
            child.__exit__(None, None, None)

    storage = await open_sqlite(path, mode="look")
    assert [(each.key, each.epoch, each.head) for each in await storage.sessions()] == [
        (f"s{number}", 1, 20) for number in range(8)
    ]
    await storage.close()
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


async def test_a_forked_child_does_not_keep_its_parents_sessions(storage: SqliteStorage, path: Path) -> None:
    with child_of(FORKS, path) as parent:
        said = [parent.read_line() for _ in range(3)]
        assert said == ["StorageFailed True", "StorageFailed True", "child"]
        with pytest.raises(SessionOwned):
            await storage.claim("main")

        (orphan,) = parent.descendants()
        parent.kill()
        await_end(parent.pid)

        assert orphan.living
        assert not (await storage.claim("main")).clean
        assert len(await storage.scan_entries("main", ConversationId(1))) == 2


async def test_a_program_that_a_worker_starts_does_not_keep_its_sessions(storage: SqliteStorage, path: Path) -> None:
    code = (
        "import asyncio, subprocess, sys\n"
        "from perdure.backends.sqlite import open_sqlite\n"
        "async def main():\n"
        "    await (await open_sqlite(sys.argv[1])).claim('main')\n"
        "    subprocess.Popen(['sleep', '60'], close_fds=False)\n"
        "asyncio.run(main())\n"
    )

    ended = run_child([sys.executable, "-c", code, str(path)], grace=0.0)

    assert ended.code == 0
    assert ended.left == ("sleep 60",)
    assert not (await storage.claim("main")).clean


def await_end(pid: int) -> None:
    """Return when the last thread of the process is gone; it need not have been collected."""
    handle = os.pidfd_open(pid)
    select.select([handle], [], [], 30)
    os.close(handle)


async def claimed_by_force(storage: SqliteStorage) -> Line:
    return Line(storage, await storage.claim("main", take_over=True, kill=True))
