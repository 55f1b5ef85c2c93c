"""Disks that are full or fail, owners that are stopped in a write, and files that are rewritten (K5, K8, I59)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import sys
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from perdure.backends import jsonl_compaction, jsonl_locks
from perdure.backends.jsonl import JsonlStorage, open_jsonl
from perdure.backends.workers import is_stopped
from perdure.errors import Fenced, SessionOwned, StorageFailed, StorageFull, StorageRejected
from perdure.records import ConversationId, EntryId, Inbound, Seq, encode
from perdure.storage import Remove, Storage, TakeInbound
from perdure.testing.disks import CrashingDisk
from perdure.testing.processes import Child
from perdure.testing.storage_document_contract import DOC, base, delta
from perdure.testing.storage_fixtures_contract import Line, claimed, commit_id_of, document, entry, task
from perdure.testing.vfs import Action, On

pytestmark = pytest.mark.anyio

ONE = ConversationId(1)


class Failing(CrashingDisk):
    """Counts, and fails from a moment on: until `heal`."""

    def __init__(self) -> None:
        super().__init__()
        self._fails: tuple[On, Action] | None = None
        self._half = False

    def fail(self, on: On, action: Action, *, half: bool = False) -> None:
        """`half`: half of what is written still gets there."""
        self._fails = (on, action)
        self._half = half

    def heal(self) -> None:
        self._fails = None

    def due(self, on: On, number: int) -> Action | None:
        return self._fails[1] if self._fails is not None and self._fails[0] == on else None

    def append(self, descriptor: int, data: bytes) -> int:
        if self._fails is not None and self._half:
            self._half = False
            return self.do_append(descriptor, data[: len(data) // 2])
        return super().append(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        if self._fails is not None and self._fails[1] == "full":
            self.do_truncate(descriptor, size)  # for this there is always room
        else:
            super().truncate(descriptor, size)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def disk() -> Failing:
    return Failing()


@pytest.fixture
async def line(path: Path, disk: Failing) -> AsyncIterator[Line]:
    storage = await open_jsonl(path, disk=disk)
    line = await claimed(storage)
    await line.commit(entry(10))
    yield line
    await storage.close()


def file_of(path: Path, number: int = 1) -> Path:
    return path / "sessions" / "main" / f"{number:06d}.jsonl"


# -- what a flush is


@pytest.mark.parametrize("durability, syncs", [("power", 10), ("process", 0)])
async def test_each_commit_is_synced_where_it_has_to_survive_a_power_loss(
    path: Path, disk: Failing, durability: Literal["power", "process"], syncs: int
) -> None:
    storage = await open_jsonl(path, disk=disk, durability=durability)
    line = await claimed(storage)
    before = disk.syncs

    for id in range(11, 21):
        await line.commit(entry(id))

    assert storage.durability == durability
    assert disk.syncs - before == syncs
    await storage.close()


async def test_commits_of_a_session_that_wait_are_made_durable_with_one_flush(line: Line, disk: Failing) -> None:
    before = disk.syncs

    admitted = [line.commit(entry(100 + turn)) for turn in range(64)]
    handed_in = [line.storage.hand_in("main", Inbound(id=f"i{n}", kind="input", body=n, at=1.0)) for n in range(8)]
    await asyncio.gather(*admitted, *handed_in)

    assert disk.syncs - before <= 12  # those of the first item's file and directories among them


# -- a disk that fails


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("on", ["write", "sync"])
@pytest.mark.invariant("J-6")
async def test_a_failed_append_or_sync_poisons_the_storage(
    line: Line, disk: Failing, path: Path, on: On, half: bool
) -> None:
    disk.fail(on, "error", half=half)
    for failed in [line.commit(entry(id)) for id in (11, 12)]:
        with pytest.raises(StorageFailed, match="open the store again"):
            await failed
    disk.heal()

    storage = line.storage
    with pytest.raises(StorageFailed):
        await line.at(2, entry(13))
    with pytest.raises(StorageFailed):
        await storage.read_entry("main", EntryId(10))
    with pytest.raises(StorageFailed):
        await storage.hand_in("main", Inbound(id="a", kind="input", body=1, at=1.0))
    with pytest.raises(StorageFailed):
        await storage.claim("other")

    again = await open_jsonl(path)
    second = await claimed(again, take_over=True)
    kept = await again.find_commit("main", commit_id_of(line.claim, 2)) is not None
    assert second.opened.head == await again.find_commit("main", commit_id_of(line.claim, second.opened.head))
    assert (await again.read_entry("main", EntryId(11)) is not None) == kept
    await second.commit(entry(20))
    await again.close()


@pytest.mark.parametrize("on", ["write", "sync"])
async def test_a_failure_of_handing_in_poisons_whoever_hands_in_and_not_the_owner(
    line: Line, path: Path, on: On
) -> None:
    bad = Failing()
    other = await open_jsonl(path, disk=bad)
    await other.hand_in("main", Inbound(id="a", kind="input", body=1, at=1.0))
    bad.fail(on, "error", half=True)

    with pytest.raises(StorageFailed):
        await other.hand_in("main", Inbound(id="b", kind="input", body=1, at=1.0))
    with pytest.raises(StorageFailed):
        await other.head("main")

    await line.storage.hand_in("main", Inbound(id="c", kind="input", body=1, at=1.0))
    found = [json.loads(each)["id"] for each in await line.storage.scan_inbound("main")]
    assert found in (["a", "c"], ["a", "b", "c"])
    await line.commit(entry(11))
    await other.close()


# -- a disk that is full


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.invariant("J-6")
async def test_a_full_disk_keeps_nothing_of_the_group_and_heals_by_itself(
    line: Line, disk: Failing, path: Path, half: bool
) -> None:
    before = file_of(path).read_bytes()
    disk.fail("write", "full", half=half)

    for refused in [line.at(2, entry(11)), line.at(3, entry(12))]:
        with pytest.raises(StorageRejected):
            await refused
    with pytest.raises(StorageFull, match="space"):
        await line.storage.hand_in("main", Inbound(id="a", kind="input", body=1, at=1.0))
    with pytest.raises(StorageFull, match="space"):
        await line.storage.claim("other")
    assert await line.storage.scan_entries("main", ONE) == [b"entry 10"]
    assert file_of(path).read_bytes() == before

    disk.heal()
    assert await line.at(2, entry(13)) == 2
    await line.storage.hand_in("main", Inbound(id="a", kind="input", body=1, at=1.0))
    await line.storage.claim("other")
    assert await line.storage.scan_entries("main", ONE) == [b"entry 13", b"entry 10"]


async def test_a_full_disk_that_cannot_be_cut_back_is_in_doubt(line: Line, disk: Failing) -> None:
    disk.fail("write", "full")

    def truncate(descriptor: int, size: int) -> None:
        raise OSError(5, "no")

    disk.truncate = truncate

    with pytest.raises(StorageFailed):
        await line.commit(entry(11))
    disk.heal()
    with pytest.raises(StorageFailed):
        await line.at(2, entry(11))


# -- owners that were stopped

STOPS_IN_A_WRITE = """
import asyncio, os, signal, sys
from perdure.backends.jsonl import open_jsonl
from perdure.testing.disks import CrashingDisk
from perdure.testing.storage_fixtures_contract import claimed, entry

class Stopping(CrashingDisk):
    armed = ""
    def due(self, on, number):
        return "torn" if self.armed == on else None

def stop():
    disk.armed = ""
    os.kill(os.getpid(), signal.SIGSTOP)

disk = Stopping(crash=stop)

async def main():
    line = await claimed(await open_jsonl(sys.argv[1], disk=disk))
    await line.commit(entry(10))
    print("committed", flush=True)
    disk.armed = sys.argv[2]
    for seq, id in ((2, 11), (3, 12)):
        try:
            print(await line.at(seq, entry(id)), flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("on, kept", [("write", False), ("sync", True)])
@pytest.mark.invariant("J-4", "J-5")
async def test_an_owner_that_is_stopped_in_a_write_is_taken_over_at_once_and_fenced_when_it_goes_on(
    path: Path, on: On, kept: bool
) -> None:
    """In a write: half of it is there, and the rest comes later. Before the sync: all of it is there, and counts."""
    child = Child([sys.executable, "-c", STOPS_IN_A_WRITE, str(path), on])
    with child:
        assert child.read_line() == "committed"
        while not is_stopped(child.pid):
            select.select([], [], [], 0.002)
        storage = await open_jsonl(path)
        line = await claimed(storage, take_over=True)
        assert line.opened.head == (2 if kept else 1)
        await line.commit(entry(20))
        child.proceed()

        assert child.read_line() == ("2" if kept else "Fenced")
        assert child.read_line() == "Fenced"
        assert child.wait().code == 0

    expected = [b"entry 20", *([b"entry 11"] if kept else []), b"entry 10"]
    assert await storage.scan_entries("main", ONE) == expected
    await storage.close()
    again = await open_jsonl(path)
    assert await again.scan_entries("main", ONE) == expected
    await again.close()


STOPS_IN_A_CLAIM = """
import asyncio, os, signal, sys
from pathlib import Path
from perdure.backends.jsonl import open_jsonl
from perdure.backends.jsonl_locks import locked

async def main():
    storage = await open_jsonl(sys.argv[1])
    with locked(Path(sys.argv[1]) / "sessions" / "main" / "lock"):
        print("locked", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_whoever_is_stopped_in_a_claim_is_named_and_ended_where_that_is_asked_for(
    line: Line, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_locks, "PATIENCE", 1.0)
    monkeypatch.setattr(jsonl_locks, "FIRST", 0.1)
    second = await open_jsonl(path)
    with Child([sys.executable, "-c", STOPS_IN_A_CLAIM, str(path)]) as child:
        assert child.read_line() == "locked"
        while not is_stopped(child.pid):
            select.select([], [], [], 0.002)

        assert await line.commit(entry(11)) == 2  # an owner needs no lock
        with pytest.raises(StorageRejected, match=rf"process {child.pid}, stopped \(T\).*kill=True"):
            await second.claim("main", take_over=True)
        opened = await second.claim("main", take_over=True, kill=True)

        assert opened.head == 2
        assert child.wait().killed
    await second.close()


def ended(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


@pytest.mark.slow
async def test_a_forked_child_cannot_use_what_its_parent_opened(line: Line) -> None:
    storage = line.storage
    assert isinstance(storage, JsonlStorage)

    def in_child() -> bool:
        with contextlib.suppress(StorageFailed):
            storage._store()
            return False
        return True

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fork beside threads: this is about the child that is not careful
        pid = os.fork()
    if pid == 0:
        os._exit(0 if in_child() else 1)

    assert ended(pid) == 0
    assert await line.commit(entry(11)) == 2
    with pytest.raises(SessionOwned):
        await line.storage.claim("main")


async def test_an_owner_learns_that_it_was_taken_over_between_its_write_and_its_answer(
    line: Line, path: Path, disk: Failing
) -> None:
    """What was on the disk when the next file came counts: the answer is the truth, not a guess."""
    second = await open_jsonl(path)
    taken: list[Any] = []
    do_sync = disk.do_sync

    def take_over_first(descriptor: int) -> None:
        disk.do_sync = do_sync
        do_sync(descriptor)
        taken.append(asyncio.run_coroutine_threadsafe(second.claim("main", take_over=True), loop).result(10))

    loop = asyncio.get_running_loop()
    disk.do_sync = take_over_first
    assert await line.commit(entry(11)) == 2
    assert taken[0].head == 2
    with pytest.raises(Fenced):
        await line.commit(entry(12))
    await second.close()


async def test_a_file_that_a_dead_claim_left_without_a_batch_means_nothing(line: Line, path: Path) -> None:
    file_of(path, 2).write_bytes(b'{"is":"file","format":1,"session":"main","number":2,"after":{"file":1,"by')

    assert await line.commit(entry(11)) == 2  # its owner looks, and goes on
    second = await open_jsonl(path)
    assert await second.scan_entries("main", ONE) == [b"entry 11", b"entry 10"]
    other = await claimed(second, take_over=True)
    assert (other.opened.claim.epoch, other.opened.head) == (2, 2)
    await second.close()


# -- rewriting


class Camera(CrashingDisk):
    """Copies the store before each write and sync, once it is told to."""

    def __init__(self, store: Path, shots: Path) -> None:
        super().__init__()
        self._store, self._shots, self.taken = store, shots, 0
        self.on = False

    def due(self, on: On, number: int) -> Action | None:
        if self.on:
            self.taken += 1
            shutil.copytree(self._store, self._shots / str(self.taken))
        return None


async def fill(line: Line) -> None:
    for name in ("a", "b", "c", "d"):
        await line.storage.hand_in("main", Inbound(id=name, kind="input", body=name * 40, at=1.0))
    await line.commit(document(5), base(b'{"n":0}'), task(6), entry(10), entry(11, head=10))
    for n in range(30):
        await line.commit(base(b'{"n":%d}' % n, prune=True), task(6, body=b"task at %d" % n))
    answer = encode(Inbound(id="a", kind="input", body="a", at=1.0, taken=Seq(40), answer="yes"))
    await line.commit(TakeInbound("a", answer), TakeInbound("b", b"{}"), task(6, ended=3.0))
    await line.commit(Remove("inbound", "b"), delta(b"[]"), entry(12))
    await line.storage.hand_in("main", Inbound(id="b", kind="input", body="again", at=2.0))


async def seen(storage: Storage) -> tuple[Any, ...]:
    return (
        await storage.head("main"),
        await storage.scan_entries("main", ONE),
        await storage.newest_head("main", ONE),
        await storage.scan_tasks("main", live=False),
        await storage.read_document("main", DOC),
        await storage.read_document("main", DOC, at=Seq(3)),
        await storage.scan_inbound("main"),
        await storage.scan_inbound("main", taken=True),
        await storage.find_commit("main", b"main-0001-000005"),
    )


@pytest.mark.slow
@pytest.mark.invariant("J-8")
async def test_whatever_step_a_rewriting_is_killed_at_the_session_is_the_same(path: Path, tmp_path: Path) -> None:
    disk = Camera(path, tmp_path / "shots")
    storage = await open_jsonl(path, disk=disk)
    line = await claimed(storage)
    await fill(line)
    before = await seen(storage)

    disk.on = True
    jsonl_compaction.rewrite(storage._opened.session("main"), disk)
    disk.on = False

    assert await seen(storage) == before
    assert [each.name for each in files_of(path)] == ["000002.jsonl", "inbound.jsonl", "lock"]
    assert await line.commit(entry(13)) == line.seq
    await storage.close()
    again = await open_jsonl(path)
    assert (await again.head("main"))[1] == line.seq
    await again.close()
    assert disk.taken > 10
    for number in range(1, disk.taken + 1):
        shot = await open_jsonl(tmp_path / "shots" / str(number))
        assert await seen(shot) == before
        other = await claimed(shot)
        await other.commit(entry(13))
        assert [each.name for each in files_of(shot.path) if each.name == "part"] == []
        await shot.close()


def files_of(path: Path | str) -> list[Path]:
    return sorted((Path(path) / "sessions" / "main").iterdir())


@pytest.mark.slow
async def test_files_are_rewritten_when_half_of_them_is_of_no_use_and_readers_follow(path: Path) -> None:
    storage = await open_jsonl(path, slack=10_000, durability="process")
    line = await claimed(storage)
    looking = await open_jsonl(path, mode="look")
    await line.commit(document(5), entry(10))
    sizes: list[int] = []

    for n in range(200):
        await line.commit(base(b'{"text":"%d %s"}' % (n, b"x" * 500), prune=True))
        if n % 20 == 0:
            value = await looking.read_document("main", DOC)
            assert value is not None
            assert value.base.startswith(b'{"text":"%d ' % n)
        sizes.append(sum(each.stat().st_size for each in files_of(path)))

    assert max(sizes) < 60_000  # of 136,000 that were written
    assert await looking.scan_entries("main", ONE) == [b"entry 10"]
    assert (await looking.head("main"))[1] == line.seq
    await looking.close()
    await storage.close()


async def test_a_rewriting_that_finds_no_space_leaves_everything_as_it_is(
    path: Path, disk: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await open_jsonl(path, slack=1000, disk=disk, durability="process")
    line = await claimed(storage)
    refused: list[Path] = []

    def create(where: Path) -> int:
        refused.append(where)
        raise OSError(28, "no space")

    monkeypatch.setattr(disk, "do_create", create)
    for n in range(50):
        await line.commit(base(b'{"text":"%d %s"}' % (n, b"x" * 500), prune=True))

    assert refused
    assert [each.name for each in files_of(path)] == ["000001.jsonl", "lock"]
    assert await line.commit(entry(11)) == 51
    await storage.close()


async def test_an_owner_that_was_taken_over_rewrites_nothing(line: Line, path: Path, disk: Failing) -> None:
    second = await open_jsonl(path)
    await claimed(second, take_over=True)
    assert isinstance(line.storage, JsonlStorage)

    jsonl_compaction.rewrite(line.storage._opened.session("main"), disk)

    assert [each.name for each in files_of(path)] == ["000001.jsonl", "000002.jsonl", "lock"]
    await second.close()


@pytest.mark.invariant("J-5")
async def test_an_owner_is_fenced_whose_successor_has_rewritten_the_files_meanwhile(line: Line, path: Path) -> None:
    second = await open_jsonl(path, slack=0)
    other = await claimed(second, take_over=True)
    for n in range(20):
        await other.commit(base(b'"%d %s"' % (n, b"x" * 900), prune=True), entry(20 + n))
    assert not ({each.name for each in files_of(path)} & {"000001.jsonl", "000002.jsonl"})

    with pytest.raises(Fenced):
        await line.at(2, entry(99))
    assert len(await line.storage.scan_entries("main", ONE)) == 21
    await second.close()


# -- inbound items


@pytest.mark.slow
@pytest.mark.invariant("J-9")
async def test_an_item_cut_at_any_byte_is_there_whole_or_not_at_all_and_the_next_one_is_kept(
    line: Line, path: Path
) -> None:
    inbound = path / "sessions" / "main" / "inbound.jsonl"
    await line.storage.hand_in("main", Inbound(id="a", kind="input", body="first", at=1.0))
    first = inbound.read_bytes()
    await line.storage.hand_in("main", Inbound(id="b", kind="input", body="second", at=1.0))
    await line.storage.close()
    whole = inbound.read_bytes()

    for cut in range(len(first), len(whole) + 1, 5):
        inbound.write_bytes(whole[:cut])
        storage = await open_jsonl(path, durability="process")
        assert [json.loads(each)["id"] for each in await storage.scan_inbound("main")] == ["a"]
        await storage.hand_in("main", Inbound(id="c", kind="input", body="third", at=1.0))
        assert [json.loads(each)["id"] for each in await storage.scan_inbound("main")] == ["a", "c"]
        await storage.close()


async def test_an_id_that_was_removed_may_be_handed_in_again_and_stays_across_openings(line: Line, path: Path) -> None:
    await line.storage.hand_in("main", Inbound(id="a", kind="input", body="first", at=1.0))
    await line.commit(TakeInbound("a", b'{"id":"a","kind":"input","body":"first","at":1.0,"taken":2}'))
    await line.commit(Remove("inbound", "a"))
    await line.storage.hand_in("main", Inbound(id="a", kind="input", body="second", at=1.0))

    looking = await open_jsonl(path, mode="look")
    for storage in (line.storage, looking):
        (body,) = await storage.scan_inbound("main")
        assert json.loads(body)["body"] == "second"
    await looking.close()
