"""Writes of the local sandbox: what is kept, what is refused, and that nothing is left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import FileChanged, SandboxError
from perdure.sandboxes import files
from perdure.sandboxes.local import LocalSandbox

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def sandbox(root: Path) -> LocalSandbox:
    return LocalSandbox(root)


# -- paths --------------------------------------------------------------------------------------


async def test_a_tilde_is_the_home_directory(
    sandbox: LocalSandbox, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "home").mkdir()
    monkeypatch.setenv("HOME", str(root / "home"))

    await sandbox.write("~/file", b"at home")
    await sandbox.write("./~", b"a name")

    assert (root / "home/file").read_bytes() == b"at home"
    assert (root / "~").read_bytes() == b"a name"


async def test_a_home_outside_of_the_root_is_outside(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nowhere")

    with pytest.raises(SandboxError, match="~/file is outside of"):
        await sandbox.write("~/file", b"x")


async def test_a_link_that_leads_outside_says_where(sandbox: LocalSandbox, root: Path) -> None:
    (root / "link").symlink_to("/etc/hostname")

    with pytest.raises(SandboxError, match=f"link is outside of {root}, it leads to /etc/hostname"):
        await sandbox.read("link")


async def test_a_link_to_nothing_is_written_through(sandbox: LocalSandbox, root: Path) -> None:
    (root / "link").symlink_to("target")

    await sandbox.write("link", b"new")

    assert (root / "link").is_symlink()
    assert (root / "target").read_bytes() == b"new"


async def test_nothing_can_be_below_a_file(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").touch()

    with pytest.raises(SandboxError, match="/file is a file, not a directory: nothing can be below it"):
        await sandbox.write("file/a/b", b"x")


@pytest.mark.parametrize("device", ["zero", "null", "tty"])
async def test_a_device_is_refused_and_not_opened(device: str) -> None:
    for attempt in (LocalSandbox("/dev").read(device), LocalSandbox("/dev").write(device, b"x")):
        with pytest.raises(SandboxError, match=f"/dev/{device} is a device, not a file"):
            await attempt


# -- versions -----------------------------------------------------------------------------------


async def version(sandbox: LocalSandbox, path: str) -> str:
    found = await sandbox.info(path)
    assert found is not None
    return found.version


async def test_a_file_has_another_version_once_its_content_changed(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").write_bytes(b"one")
    first = await version(sandbox, "file")
    (root / "file").chmod(0o700)
    assert await version(sandbox, "file") == first

    await sandbox.write("file", b"two")

    assert await version(sandbox, "file") != first


async def test_a_write_that_expects_another_version_writes_nothing(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").write_bytes(b"one")
    first = await version(sandbox, "file")
    await sandbox.write("file", b"two", expected=first)

    with pytest.raises(FileChanged, match="file was changed meanwhile: nothing was written"):
        await sandbox.write("file", b"three", expected=first)
    with pytest.raises(FileChanged):
        await sandbox.write("gone", b"three", expected=first)

    assert (root / "file").read_bytes() == b"two"
    assert os.listdir(root) == ["file"]


# -- what is kept -------------------------------------------------------------------------------


async def test_attributes_of_an_old_file_are_kept(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").write_bytes(b"old")
    try:
        os.setxattr(root / "file", "user.note", b"mine")
    except OSError:
        pytest.skip("this file system has no attributes")

    await sandbox.write("file", b"new")

    assert os.getxattr(root / "file", "user.note") == b"mine"
    assert (root / "file").read_bytes() == b"new"


async def test_set_id_bits_of_an_old_file_are_kept(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").write_bytes(b"old")
    (root / "file").chmod(0o4755)

    await sandbox.write("file", b"new")

    assert (root / "file").stat().st_mode & 0o7777 == 0o4755


async def test_an_other_name_of_a_file_keeps_the_old_content(sandbox: LocalSandbox, root: Path) -> None:
    (root / "file").write_bytes(b"old")
    os.link(root / "file", root / "other")
    found = await sandbox.info("file")
    assert found is not None
    assert found.links == 2

    await sandbox.write("file", b"new")

    assert (root / "other").read_bytes() == b"old"


# -- what fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_disk_that_takes_no_more_leaves_the_old_content_and_nothing_else(
    sandbox: LocalSandbox, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (root / "file").write_bytes(b"old")

    def full(handle: int, content: Any) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "write", full)
        with pytest.raises(SandboxError, match=f"{os.strerror(number).lower()}; it is as it was"):
            await sandbox.write("file", b"new")

    assert (root / "file").read_bytes() == b"old"
    assert os.listdir(root) == ["file"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
async def test_a_directory_that_takes_no_files_is_named(
    sandbox: LocalSandbox, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (root / "file").write_bytes(b"old")
    opened = os.open

    def refused(path: Any, flags: int, *mode: Any, **rest: Any) -> int:
        if flags & os.O_WRONLY:
            raise OSError(number, os.strerror(number))
        return opened(path, flags, *mode, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "open", refused)
        with pytest.raises(SandboxError, match=f"file cannot be written: {os.strerror(number).lower()} in {root}"):
            await sandbox.write("file", b"new")
    assert (root / "file").read_bytes() == b"old"


async def test_what_is_mounted_by_itself_is_said_to_be(
    sandbox: LocalSandbox, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "file").write_bytes(b"old")

    def busy(*names: Any, **rest: Any) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "rename", busy)
        with pytest.raises(SandboxError, match="file is mounted by itself: write into it with a command"):
            await sandbox.write("file", b"new")
    assert os.listdir(root) == ["file"]


# -- what a killed process leaves ---------------------------------------------------------------

#: Writes a file, and hangs where the kernel is asked to bring it to the disk.
HANGS = """
import os, sys, time
from perdure.sandboxes import files

def hang(handle):
    print("written", flush=True)
    time.sleep(60)

os.fsync = hang
if len(sys.argv) > 2:
    os.O_TMPFILE = 0
files.Write(sys.argv[1], b"new" * 100_000, "1-1-ab").run()
"""


def killed_while_writing(path: Path, *more: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HANGS, str(path), *more], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_the_old_content_and_nothing_else(root: Path) -> None:
    (root / "file").write_bytes(b"old")

    killed_while_writing(root / "file")

    assert (root / "file").read_bytes() == b"old"
    assert os.listdir(root) == ["file"]


@pytest.mark.slow
async def test_what_it_leaves_where_files_need_names_is_removed_by_a_later_write(
    sandbox: LocalSandbox, root: Path
) -> None:
    killed_while_writing(root / "file", "named")
    (left,) = os.listdir(root)
    os.utime(root / left, (0, 0))

    await sandbox.write("other", b"new")

    assert os.listdir(root) == ["other"]


async def test_what_somebody_still_writes_is_not_removed(sandbox: LocalSandbox, root: Path) -> None:
    handle = os.open(root / ".perdure-1-1-ab", os.O_CREAT | os.O_WRONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.utime(root / ".perdure-1-1-ab", (0, 0))
    (root / ".perdure-2-1-ab").touch()  # young

    await sandbox.write("other", b"new")

    os.close(handle)
    assert sorted(os.listdir(root)) == [".perdure-1-1-ab", ".perdure-2-1-ab", "other"]


async def test_a_file_system_that_knows_only_files_with_names_is_written_all_the_same(
    sandbox: LocalSandbox, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.os, "O_TMPFILE", 0)

    await sandbox.write("file", b"old")
    await sandbox.write("file", b"new")

    assert (root / "file").read_bytes() == b"new"
    assert os.listdir(root) == ["file"]


async def test_a_file_without_a_name_that_cannot_be_given_one_is_written_with_one(
    sandbox: LocalSandbox, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*names: Any, **rest: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(files.os, "link", refused)

    await sandbox.write("file", b"old")
    await sandbox.write("file", b"new")

    assert (root / "file").read_bytes() == b"new"
    assert os.listdir(root) == ["file"]


async def test_a_file_system_whose_directories_cannot_be_synced_is_written_all_the_same(
    sandbox: LocalSandbox, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = os.fsync

    def of_files(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        synced(handle)

    monkeypatch.setattr(files.os, "fsync", of_files)

    await sandbox.write("a/file", b"new")

    assert (root / "a/file").read_bytes() == b"new"


async def test_a_writer_that_stands_still_in_its_turn_does_not_hold_the_others(
    sandbox: LocalSandbox, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "TURN_TRIES", 2)
    directory = os.open(root, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)

    await sandbox.write("file", b"new")

    os.close(directory)
    assert (root / "file").read_bytes() == b"new"
