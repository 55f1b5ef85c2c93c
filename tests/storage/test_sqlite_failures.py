"""Disks that are full, fail or forget, and what a flush makes durable (K5, K8, I51, I59)."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import apsw
import pytest

from perdure.backends.sqlite import open_sqlite
from perdure.errors import StorageError, StorageFailed, StorageFull, StorageRejected
from perdure.records import ConversationId, EntryId, Inbound
from perdure.telemetry import Telemetry
from perdure.testing.storage_fixtures_contract import Line, claimed, commit_id_of, conversation, entry
from perdure.testing.vfs import Action, CrashingVFS, On

pytestmark = pytest.mark.anyio

_names = (f"perdure-test-{number}" for number in itertools.count())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


class Disk(CrashingVFS):
    """Counts, and fails from a moment on: until `heal`."""

    def __init__(self) -> None:
        super().__init__(next(_names))
        self._fails: tuple[On, Action] | None = None

    def fail(self, on: On, action: Action) -> None:
        self._fails = on, action

    def heal(self) -> None:
        self._fails = None

    def _due(self, on: On, number: int) -> Action | None:
        return self._fails[1] if self._fails is not None and self._fails[0] == on else None


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def line(path: Path, disk: Disk) -> AsyncIterator[Line]:
    storage = await open_sqlite(path, vfs=disk.name)
    line = await claimed(storage)
    await line.commit(entry(10))
    yield line
    await storage.close()


# -- what a flush is


@pytest.mark.parametrize("durability, syncs", [("power", 10), ("process", 0)])
async def test_each_commit_is_synced_where_it_has_to_survive_a_power_loss(
    path: Path, disk: Disk, durability: Literal["power", "process"], syncs: int
) -> None:
    storage = await open_sqlite(path, vfs=disk.name, durability=durability)
    line = await claimed(storage)
    await line.commit(entry(10))
    before = disk.syncs

    for id in range(11, 21):
        await line.commit(entry(id))

    assert storage.durability == durability
    assert disk.syncs - before == syncs
    await storage.close()


async def test_what_waits_is_made_durable_with_one_flush(line: Line, disk: Disk) -> None:
    others = [await claimed(line.storage, f"s{number}") for number in range(8)]
    before = disk.syncs

    admitted = [each.commit(entry(100 + turn)) for turn in range(8) for each in others]
    handed_in = [line.storage.hand_in("main", Inbound(id=f"i{n}", kind="input", body=n, at=1.0)) for n in range(8)]
    await asyncio.gather(*admitted, *handed_in)

    assert disk.syncs - before <= 3


async def test_the_flushes_and_the_log_can_be_listened_to(path: Path) -> None:
    telemetry, heard = Telemetry(), []
    telemetry.attach("test", ["perdure.storage.log"], lambda event, measurements, metadata: heard.append(measurements))
    storage = await open_sqlite(path, telemetry=telemetry, durability="process")
    line = await claimed(storage)

    for id in range(10, 20):
        await line.commit(entry(id, body=b"x" * 1_000_000))
    await storage.release(line.claim)
    await storage.close()

    assert heard
    assert all(each["pages"] > 200 for each in heard)


# -- a disk that fails


@pytest.mark.parametrize("on", ["write", "sync"])
async def test_a_failed_write_or_sync_poisons_the_storage(line: Line, disk: Disk, on: On) -> None:
    disk.fail(on, "error")
    behind = [line.commit(entry(id)) for id in (11, 12)]
    for failed in behind:
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


@pytest.mark.parametrize("on", ["write", "sync"])
async def test_after_a_failed_disk_the_store_is_opened_anew(line: Line, disk: Disk, path: Path, on: On) -> None:
    disk.fail(on, "error")
    with pytest.raises(StorageFailed):
        await line.commit(entry(11))
    disk.heal()
    await line.storage.close()

    storage = await open_sqlite(path, vfs=disk.name)
    again = await claimed(storage)

    kept = await storage.find_commit("main", commit_id_of(line.claim, 2)) is not None
    assert again.opened.head == (2 if kept else 1)
    assert (await storage.read_entry("main", EntryId(11)) is not None) == kept
    await again.commit(entry(12))
    await storage.close()


@pytest.mark.parametrize("on", ["write", "sync"])
async def test_a_disk_that_fails_while_the_store_is_closed_loses_nothing(
    line: Line, disk: Disk, path: Path, on: On
) -> None:
    await line.commit(entry(11))
    disk.fail(on, "error")

    await asyncio.wait_for(line.storage.close(), 20)

    disk.heal()
    storage = await open_sqlite(path)
    assert len(await storage.scan_entries("main", ConversationId(1))) == 2
    await storage.close()


async def test_a_failed_storage_can_be_opened_anew_before_it_is_closed(line: Line, disk: Disk, path: Path) -> None:
    disk.fail("sync", "error")
    with pytest.raises(StorageFailed):
        await line.commit(entry(11))
    disk.heal()

    storage = await open_sqlite(path, vfs=disk.name)

    await (await claimed(storage, take_over=True)).commit(entry(12))
    await storage.close()


# -- a disk that is full


async def test_a_full_disk_keeps_nothing_of_the_group_and_heals_by_itself(line: Line, disk: Disk) -> None:
    other = await claimed(line.storage, "other")
    disk.fail("write", "full")

    refused = [line.at(2, entry(11)), other.at(1, entry(11)), line.at(3, entry(12))]
    for each in refused:
        with pytest.raises(StorageFull, match="space"):
            await each
    assert await line.storage.read_entry("main", EntryId(10)) == b"entry 10"
    assert await line.storage.read_entry("main", EntryId(11)) is None

    disk.heal()
    assert await line.at(2, entry(13)) == 2
    assert await other.at(1, entry(13)) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 20 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount(place, "size=20m")
    yield place
    unmount(place)


async def test_a_disk_that_fills_up_and_is_freed_again_loses_nothing(small_disk: Path) -> None:
    """I59."""
    storage = await open_sqlite(small_disk / "s.db")
    line = await claimed(storage)
    await line.commit(entry(10))
    ballast = fill(small_disk)

    async def write_until_it_is_full() -> None:
        while True:
            await line.commit(entry(10 + line.seq, body=b"x" * 50_000))

    with pytest.raises(StorageFull):
        await write_until_it_is_full()
    for seq in (line.seq, line.seq, line.seq + 1):
        with pytest.raises(StorageRejected):
            await line.at(seq, entry(900, body=b"x" * 50_000))
    with pytest.raises(StorageFull):
        await storage.hand_in("main", Inbound(id="a", kind="input", body="x" * 100_000, at=1.0))
    kept = await storage.scan_entries("main", ConversationId(1), limit=1000)
    assert len(kept) == line.seq - 1

    ballast.unlink()

    assert await line.at(line.seq, entry(900)) == line.seq
    await storage.hand_in("main", Inbound(id="a", kind="input", body="x" * 100_000, at=1.0))
    await storage.close()
    storage = await open_sqlite(small_disk / "s.db")
    assert len(await storage.scan_entries("main", ConversationId(1), limit=1000)) == line.seq
    await storage.close()


async def test_opening_on_a_full_disk_says_so(small_disk: Path) -> None:
    ballast = fill(small_disk)

    with pytest.raises(StorageFull, match=r"s\.db.*space"):
        await open_sqlite(small_disk / "s.db")

    ballast.unlink()
    await (await open_sqlite(small_disk / "s.db")).close()


async def test_a_read_only_directory_is_refused_with_its_remedy(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mount(place, "size=20m")
    try:
        storage = await open_sqlite(place / "s.db")
        await (await claimed(storage)).commit(entry(10))
        await storage.close()
        mount(place, "size=20m", flags=MS_REMOUNT | MS_RDONLY)

        with pytest.raises(StorageRejected, match=r"new\.db.*writable"):
            await open_sqlite(place / "new.db")
        with pytest.raises(StorageRejected, match=r"s\.db.*writable"):
            await open_sqlite(place / "s.db")
        assert [each.name for each in place.iterdir() if each.name.startswith("new")] == []
    finally:
        unmount(place)


async def test_a_batch_that_sqlite_refuses_does_not_take_its_group_along(line: Line) -> None:
    """One of a hundred is found and left out; the others are kept."""
    lines = [await claimed(line.storage, f"s{number}") for number in range(30)]
    await lines[17].commit(conversation(1, key="till"))

    results = await asyncio.gather(
        *[each.commit(entry(10), conversation(2, key="till")) for each in lines], return_exceptions=True
    )

    assert [index for index, each in enumerate(results) if isinstance(each, Exception)] == [17]
    assert isinstance(results[17], StorageRejected)


async def test_a_value_that_cannot_be_stored_refuses_its_batch_only(line: Line) -> None:
    other = await claimed(line.storage, "other")

    results = await asyncio.gather(
        line.commit(conversation(1, key="\ud835")), other.commit(entry(10)), return_exceptions=True
    )

    assert isinstance(results[0], StorageError)
    assert results[1] == 1


# -- the log


@pytest.mark.slow
async def test_the_log_stays_short_beside_readers(path: Path) -> None:
    """I51: someone has the store open all the time and reads again and again; 60 MB go through the log."""
    storage = await open_sqlite(path, durability="process")
    line = await claimed(storage)
    elsewhere = apsw.Connection(str(path))
    largest = 0

    for id in range(10, 310):
        await line.commit(entry(id, body=b"x" * 200_000))
        elsewhere.execute("SELECT count(*) FROM entry").fetchall()
        largest = max(largest, size(path.with_name("s.db-wal")))

    assert largest < 24 << 20
    elsewhere.close()
    await storage.close()


@pytest.mark.slow
async def test_the_log_is_short_again_after_a_reader_that_held_it(path: Path) -> None:
    storage = await open_sqlite(path, durability="process")
    line = await claimed(storage)
    for id in range(10, 20):
        await line.commit(entry(id))
    elsewhere = apsw.Connection(str(path))
    paused = elsewhere.execute("SELECT id FROM entry")
    next(paused)
    for id in range(20, 220):
        await line.commit(entry(id, body=b"x" * 200_000))
    log = path.with_name("s.db-wal")
    assert size(log) > 30 << 20

    paused.close()
    for id in range(220, 260):
        await line.commit(entry(id, body=b"x" * 200_000))

    assert size(log) < 12 << 20
    elsewhere.close()
    await storage.close()


def size(path: Path) -> int:
    return path.stat().st_size


# -- mounting


MS_RDONLY, MS_REMOUNT = 1, 32


def mount(place: Path, options: str, *, flags: int = 0) -> None:
    """Mount a tmpfs, or skip the test where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", flags, options.encode()) != 0:
        pytest.skip(f"cannot mount a tmpfs here: {os.strerror(ctypes.get_errno())} (needs root)")


def unmount(place: Path) -> None:
    ctypes.CDLL(None).umount2(str(place).encode(), 2)


def fill(place: Path) -> Path:
    """A file that leaves nothing free."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for piece in (1 << 20, 4096):
            try:
                while file.write(b"\0" * piece) == piece:
                    pass
            except OSError:
                continue
    return ballast
