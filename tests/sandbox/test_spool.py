"""Output in files: bounded, only this user's, without making the loop wait for the disk, and gone with the sandbox."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.clock import SystemClock
from perdure.sandbox import Spill
from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.spool import BACKLOG, Scratch, Spool, remove_left
from perdure.sandboxes.table import owner
from perdure.sandboxes.threads import Worker

pytestmark = pytest.mark.anyio


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    made = Worker("test")
    yield made
    made.stop()


async def test_a_file_and_its_directory_are_this_users_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        sandbox = LocalSandbox(tmp_path)
        ended = await sandbox.run("seq 1 1000", timeout=20, output=lambda _: None, spill=Spill(bytes=10))
    finally:
        os.umask(old)

    assert ended.spill is not None
    assert os.stat(ended.spill).st_mode & 0o777 == 0o600
    assert os.stat(sandbox.scratch).st_mode & 0o777 == 0o700
    await sandbox.close()
    assert Path(sandbox.scratch).name not in os.listdir(tempfile.gettempdir())


async def test_nothing_else_outside_of_the_root_can_be_read(tmp_path: Path) -> None:
    sandbox = LocalSandbox(tmp_path)
    ended = await sandbox.run("seq 1 1000", timeout=20, output=lambda _: None, spill=Spill(bytes=10))
    assert ended.spill is not None

    for path in (f"{sandbox.scratch}/../passwd", f"{sandbox.scratch}/../../etc/passwd", f"{sandbox.scratch}x/y"):
        with pytest.raises(Exception, match="outside of"):
            await sandbox.read(path)
    with pytest.raises(Exception, match="outside of"):
        await sandbox.write(ended.spill, b"changed")
    await sandbox.close()


async def test_what_waits_for_the_disk_is_bounded_and_the_command_waits_then(worker: Worker, tmp_path: Path) -> None:
    slow = threading.Event()
    worker.submit(slow.wait)
    spool = Spool(worker, str(tmp_path / "out"), 64 * BACKLOG, newest=False)
    room: list[bool] = []

    while not spool.full:
        spool.feed(b"x" * 65536)
    spool.when_room(lambda: room.append(spool.full))
    await asyncio.sleep(0)
    assert room == []
    slow.set()

    assert await spool.kept() == (BACKLOG // 65536 + 1) * 65536
    assert room == [False]


async def test_a_disk_that_refuses_ends_the_keeping_and_not_the_command(worker: Worker, tmp_path: Path) -> None:
    spool = Spool(worker, str(tmp_path / "no" / "such" / "directory"), 1000, newest=False)

    spool.feed(b"x" * 100)

    assert await spool.kept() == 0
    assert await spool.read(0, 10) == (0, b"")


@pytest.mark.parametrize("pieces", [[b"a" * 30, b"b" * 30, b"c" * 30, b"d" * 30], [b"a" * 90 + b"d" * 30]])
async def test_the_newest_part_stays_and_keeps_its_place(worker: Worker, tmp_path: Path, pieces: list[bytes]) -> None:
    spool = Spool(worker, str(tmp_path / "out"), 50, newest=True)

    for piece in pieces:
        spool.feed(piece)

    begin, kept = await spool.read(0, 1000)
    assert begin + len(kept) == 120
    assert 25 <= len(kept) <= 50
    assert kept.endswith(b"d" * 25)
    assert await spool.read(118, 1000) == (118, b"dd")
    assert await spool.read(500, 1000) == (120, b"")
    assert (tmp_path / "out").read_bytes() == kept


async def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    namespace, pid, started = owner().split(".")
    gone = tmp_path / f"perdure-{namespace}.{pid}.{int(started) - 1}-00"  # who had this pid before
    others = [f"perdure-{owner()}-00", "perdure-notes", "perdure-1.2.3-00", "else"]
    for name in (gone.name, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text("x")

    remove_left(str(tmp_path))

    assert sorted(os.listdir(tmp_path)) == sorted(others)  # of another container nothing is known


async def test_a_directory_that_was_removed_is_made_again(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path), SystemClock())
    scratch.make()
    scratch.remove()
    assert os.listdir(tmp_path) == []

    scratch.make()
    assert os.listdir(tmp_path) == [Path(scratch.path).name]
