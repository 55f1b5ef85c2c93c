"""Files in the local sandbox."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.errors import SandboxError, UsageError
from perdure.sandbox import FileInfo
from perdure.sandboxes import files
from perdure.sandboxes.local import LocalSandbox

pytestmark = pytest.mark.anyio


@pytest.fixture
def sandbox(tmp_path: Path) -> LocalSandbox:
    (tmp_path / "root").mkdir()
    return LocalSandbox(tmp_path / "root")


@pytest.fixture
def root(sandbox: LocalSandbox) -> Path:
    return Path(sandbox.root)


def test_a_root_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="make it first"):
        LocalSandbox(tmp_path / "nowhere")


# -- looking ------------------------------------------------------------------------------------


async def test_info_tells_kind_and_size_and_the_real_path(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").write_bytes(b"12345")
    (root / "link").symlink_to("file")
    os.mkfifo(root / "pipe")

    found = await sandbox.info("file")
    assert found is not None
    assert found == FileInfo(path=str(root / "file"), kind="file", size=5, version=found.version)
    assert await sandbox.info("link") == found
    kinds = [found.kind for path in (str(root), "pipe") if (found := await sandbox.info(path))]
    assert kinds == ["directory", "other"]


async def test_info_is_none_where_nothing_is(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").touch()
    (root / "dangling").symlink_to("gone")

    assert await sandbox.info("nowhere/at/all") is None
    assert await sandbox.info("file/below") is None
    assert await sandbox.info("dangling") is None


async def test_names_are_sorted_and_bounded_and_tell_directories(sandbox: LocalSandbox, root: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (root / name).touch()
    (root / "c").mkdir()

    assert await sandbox.names(".") == (".hidden", "a", "b", "c/")
    assert await sandbox.names(".", limit=2) == (".hidden", "a")
    with pytest.raises(SandboxError, match="a: not a directory"):
        await sandbox.names("a")


# -- reading ------------------------------------------------------------------------------------


async def test_a_part_of_a_file_can_be_read(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").write_bytes(b"0123456789")

    assert await sandbox.read("file") == b"0123456789"
    assert await sandbox.read("file", offset=3, limit=4) == b"3456"
    assert await sandbox.read("file", offset=8, limit=40) == b"89"
    assert await sandbox.read("file", offset=80) == b""


async def test_a_file_that_gives_no_size_is_read_to_its_end(tmp_path: Path) -> None:
    sandbox = LocalSandbox("/proc")

    assert b"MemTotal" in await sandbox.read("/proc/meminfo")


async def test_a_file_that_is_too_large_at_once_is_read_in_parts(sandbox: LocalSandbox, root: Path) -> None:
    (root / "sparse").touch()
    os.truncate(root / "sparse", 2**40)

    with pytest.raises(SandboxError, match=r"1,099,511,627,776 bytes, more than the 67,108,864.*offset and limit"):
        await sandbox.read("sparse")
    assert await sandbox.read("sparse", offset=2**39, limit=3) == b"\0\0\0"


@pytest.mark.parametrize(
    "path, message",
    [
        ("nowhere", "nowhere: no such file or directory"),
        ("directory", "is a directory, not a file"),
        ("pipe", "is a pipe, not a file"),
        ("loop", "loop"),
        ("", "'' is no path"),
        ("a\0b", "is no path"),
        ("\ud835", "is no path"),
        ("x" * 300, "file name too long"),
    ],
)
async def test_what_cannot_be_read_is_an_error_that_names_it(
    sandbox: LocalSandbox, root: Path, path: str, message: str
) -> None:
    (root / "directory").mkdir()
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")

    with pytest.raises(SandboxError, match=message):
        await sandbox.read(path)


@pytest.mark.parametrize("offset, limit", [(-1, None), (0, -1)])
async def test_offsets_and_limits_count_from_zero(sandbox: LocalSandbox, offset: int, limit: int | None) -> None:
    with pytest.raises(SandboxError, match="count bytes from 0"):
        await sandbox.read("x", offset=offset, limit=limit)


# -- only below the root ------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "link", "below/../../secret", "to/secret"])
async def test_nothing_outside_of_the_root_is_reached(sandbox: LocalSandbox, root: Path, path: str) -> None:
    (root.parent / "secret").write_text("hidden")
    (root / "link").symlink_to(root.parent / "secret")
    (root / "to").symlink_to(root.parent)

    for attempt in (sandbox.read(path), sandbox.write(path, b"x"), sandbox.info(path), sandbox.names(path)):
        with pytest.raises(SandboxError, match=f"outside of {root}"):
            await attempt
    assert (root.parent / "secret").read_text() == "hidden"


async def test_a_neighbour_whose_name_begins_alike_is_outside(sandbox: LocalSandbox, root: Path) -> None:
    root.with_name("root2").mkdir()

    with pytest.raises(SandboxError, match="outside"):
        await sandbox.names("../root2")


async def test_an_unconfined_sandbox_reaches_everything(root: Path) -> None:
    (root.parent / "other").write_text("there")

    assert await LocalSandbox(root, confined=False).read("../other") == b"there"


# -- writing ------------------------------------------------------------------------------------


async def test_a_write_makes_the_file_and_its_directories(sandbox: LocalSandbox, root: Path) -> None:
    await sandbox.write("a/b/c.txt", b"new")

    assert (root / "a/b/c.txt").read_bytes() == b"new"
    assert os.listdir(root / "a/b") == ["c.txt"]


async def test_a_new_file_gets_the_mode_that_the_umask_leaves(sandbox: LocalSandbox, root: Path) -> None:
    old = os.umask(0o027)
    try:
        await sandbox.write("new", b"x")
    finally:
        os.umask(old)

    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o640


async def test_an_old_file_keeps_its_mode_and_its_owner(sandbox: LocalSandbox, root: Path) -> None:
    (root / "script").write_bytes(b"old")
    (root / "script").chmod(0o751)
    if os.getuid() == 0:
        os.chown(root / "script", 65534, 65534)
    before = (root / "script").stat()

    await sandbox.write("script", b"new")

    after = (root / "script").stat()
    assert (root / "script").read_bytes() == b"new"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


async def test_a_write_goes_through_a_symbolic_link(sandbox: LocalSandbox, root: Path) -> None:
    (root / "target").write_bytes(b"old")
    (root / "link").symlink_to("target")

    await sandbox.write("link", b"new")

    assert (root / "link").is_symlink()
    assert (root / "target").read_bytes() == b"new"


@pytest.mark.parametrize(
    "path, message",
    [("directory", "is a directory"), ("pipe", "is a pipe"), ("file/below", "file exists|not a directory")],
)
async def test_what_cannot_be_written_is_an_error_and_stays(
    sandbox: LocalSandbox, root: Path, path: str, message: str
) -> None:
    (root / "directory").mkdir()
    (root / "file").touch()
    os.mkfifo(root / "pipe")

    with pytest.raises(SandboxError, match=message):
        await sandbox.write(path, b"x")
    assert sorted(os.listdir(root)) == ["directory", "file", "pipe"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everything")
async def test_a_read_only_file_is_not_replaced(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").write_bytes(b"old")
    (root / "file").chmod(0o444)

    with pytest.raises(SandboxError, match="read-only"):
        await sandbox.write("file", b"new")
    assert (root / "file").read_bytes() == b"old"


@pytest.fixture
def files_may_have_1000_bytes() -> Iterator[None]:
    """The kernel refuses what a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("files_may_have_1000_bytes")
async def test_a_write_that_fails_half_way_leaves_the_old_content_and_nothing_else(
    sandbox: LocalSandbox, root: Path
) -> None:
    await sandbox.write("file", b"old")

    with pytest.raises(SandboxError, match="file too large"):
        await sandbox.write("file", b"x" * 5000)

    assert (root / "file").read_bytes() == b"old"
    assert os.listdir(root) == ["file"]


async def test_readers_see_the_old_content_or_the_new(sandbox: LocalSandbox, root: Path) -> None:
    contents = [bytes([digit]) * 50_000 for digit in b"0123456789"]
    await sandbox.write("file", contents[0])
    seen: set[bytes] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add((root / "file").read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for content in contents:
        await sandbox.write("file", content)
    over.set()
    reader.join()

    assert seen <= set(contents)


class SlowDisk:
    """Stands in for `os.fsync` in the module of files, and waits until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, handle: int) -> None:
        self.reached.set()
        self.go.wait(20)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    monkeypatch.setattr(files.os, "fsync", disk)
    yield disk
    disk.go.set()


async def test_a_cancelled_write_does_not_happen_later(sandbox: LocalSandbox, root: Path, slow_disk: SlowDisk) -> None:
    (root / "file").write_bytes(b"old")
    writing = asyncio.ensure_future(sandbox.write("file", b"new"))
    assert await asyncio.to_thread(slow_disk.reached.wait, 20)

    writing.cancel()
    await asyncio.sleep(0)
    assert not writing.done()  # the disk is waited for
    slow_disk.go.set()

    with pytest.raises(asyncio.CancelledError):
        await writing
    assert (root / "file").read_bytes() == b"old"
    assert os.listdir(root) == ["file"]


@pytest.mark.slow
def test_a_disk_that_hangs_holds_neither_a_cancelled_write_nor_the_process(
    sandbox: LocalSandbox, root: Path, slow_disk: SlowDisk
) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.write("file", b"new"), 0.05)

    asyncio.run(main())  # which joins the threads of the default executor, and would hang with one

    writers = [each for each in threading.enumerate() if each.name == "perdure-write"]
    assert all(each.daemon for each in writers)
    slow_disk.go.set()
    for each in writers:
        each.join(20)
    assert os.listdir(root) == []
