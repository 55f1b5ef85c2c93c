"""Stores that cannot be used: one line that names the store and the remedy, and nothing is made or changed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner, Result

import perdure
from perdure.cli import cli

READING = (["ls"], ["ls", "--sessions"], ["show", "1"], ["inspect"])
ACTING = (["resume"], ["abort", "1"], ["retry", "5"], ["answer", "5", "yes"], ["run", "x"])


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


def complaint(result: Result, code: int) -> str:
    assert result.exit_code == code, (result.exit_code, result.output)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one conversation."""
    monkeypatch.chdir(tmp_path)
    assert invoke("run", "Hello", "--store", "s.db").exit_code == 0
    return tmp_path / "s.db"


@pytest.mark.parametrize("command", [*READING, *ACTING], ids=" ".join)
def test_a_directory_is_no_store(tmp_path: Path, command: list[str]) -> None:
    line = complaint(invoke(*command, "--store", str(tmp_path)), 2)
    assert f"{tmp_path} is a directory: name a file in it" in line


@pytest.mark.parametrize("command", [*READING, *ACTING], ids=" ".join)
def test_no_store_is_below_a_file(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ann")
    for path in (file / "s.db", file / "deeper" / "s.db"):
        assert f"{file} is a file" in complaint(invoke(*command, "--store", str(path)), 2)


@pytest.mark.parametrize("command", [*READING, *ACTING], ids=" ".join)
def test_another_file_is_no_store(tmp_path: Path, command: list[str]) -> None:
    other = tmp_path / "letter.txt"
    other.write_text("Dear Ann, " * 1000)
    line = complaint(invoke(*command, "--store", str(other)), 1)
    assert "letter.txt is no perdure store (file is not a database): check the path" in line
    assert other.read_text() == "Dear Ann, " * 1000
    assert os.listdir(tmp_path) == ["letter.txt"]


@pytest.mark.parametrize("command", [*READING, *ACTING], ids=" ".join)
def test_a_store_of_a_newer_version_says_so(store: Path, command: list[str]) -> None:
    connection = apsw.Connection(str(store))
    connection.pragma("user_version", 4711)
    connection.close()
    line = complaint(invoke(*command, "--store", str(store)), 1)
    assert re.search("4711.*upgrade", line)


@pytest.mark.parametrize("command", [*READING, *ACTING], ids=" ".join)
def test_a_damaged_store_says_so(store: Path, command: list[str]) -> None:
    content = bytearray(store.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    store.write_bytes(content)
    line = complaint(invoke(*command, "--store", str(store)), 1)
    assert "s.db" in line


@pytest.mark.parametrize("command", [*READING, *ACTING[:-1]], ids=" ".join)
def test_an_unknown_session_is_named_and_not_made(store: Path, command: list[str]) -> None:
    if command == ["ls", "--sessions"]:
        return
    line = complaint(invoke(*command, "--store", "s.db", "--session", "manes"), 2)
    assert re.search("'manes'.*'main'", line)
    assert "manes" not in invoke("ls", "--sessions", "--store", "s.db").stdout


@pytest.mark.parametrize("command", [["show", "till"], ["show", "99"], ["abort", "till"]], ids=" ".join)
def test_an_unknown_conversation_is_named(store: Path, command: list[str]) -> None:
    line = complaint(invoke(*command, "--store", "s.db"), 2)
    assert repr(command[1]) in line or "no conversation 99" in line


def test_the_root_is_shown_where_no_conversation_is_named(store: Path) -> None:
    result = invoke("show", "--store", "s.db")
    assert result.exit_code == 0
    assert result.stdout == invoke("show", "1", "--store", "s.db").stdout


def test_without_a_root_the_listing_is_named(store: Path) -> None:
    assert invoke("run", "Hello", "--conversation", "till", "--store", "s.db", "--session", "b").exit_code == 0
    assert "perdure ls" in complaint(invoke("show", "--store", "s.db", "--session", "b"), 2)


@pytest.mark.parametrize(
    "command", [["abort", "--task", "99"], ["abort", "--submission", "99"], ["retry", "99"]], ids=" ".join
)
def test_an_unknown_id_is_named(store: Path, command: list[str]) -> None:
    assert "99" in complaint(invoke(*command, "--store", "s.db"), 2)


@pytest.mark.parametrize("command", [*READING, *ACTING], ids=" ".join)
def test_a_store_that_may_not_be_read_says_so(
    store: Path, monkeypatch: pytest.MonkeyPatch, unprivileged: None, command: list[str]
) -> None:
    monkeypatch.chdir("/")
    line = complaint(invoke(*command, "--store", str(store)), 1)
    assert "s.db" in line


@pytest.mark.parametrize("command", [["ls"], ["run", "x"]], ids=" ".join)
def test_an_unreadable_file_is_not_said_to_be_unwritable(unprivileged: None, command: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "s.db")
        path.touch(mode=0o000)
        line = complaint(invoke(*command, "--store", str(path)), 1)
    assert "cannot read" in line
    assert "cannot write" not in line


def test_a_directory_that_may_not_be_written_says_so(tmp_path: Path, unprivileged: None) -> None:
    line = complaint(invoke("run", "x", "--store", str(tmp_path / "new" / "s.db")), 1)
    assert re.search("new.*writable", line)


@pytest.fixture
def lent(store: Path) -> Iterator[Path]:
    """The store, for everybody to read, in a directory that a user without privileges may not write to."""
    places = [store.parent, *[above for above in store.parent.parents if not above.stat().st_mode & 0o001]]
    before = [place.stat().st_mode for place in places]
    for place, mode in zip(places, before, strict=True):
        place.chmod(mode | 0o055)
    store.chmod(0o644)
    yield store
    for place, mode in zip(places, before, strict=True):
        place.chmod(mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can stop to be root")
@pytest.mark.parametrize("command", [*READING, ["db", "check"]], ids=" ".join)
def test_a_store_that_may_only_be_read_can_be_looked_at(lent: Path, unprivileged: None, command: list[str]) -> None:
    result = invoke(*command, "--store", str(lent))
    assert result.exit_code == 0, result.output
    assert result.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can stop to be root")
def test_commits_in_a_log_that_cannot_be_read_from_here_are_said_to_be_missing(lent: Path) -> None:
    Path(f"{lent}-wal").write_bytes(b"not empty")
    os.seteuid(65534)
    try:
        line = complaint(invoke("ls", "--store", str(lent)), 1)
    finally:
        os.seteuid(0)
    assert "its newest commits are in" in line
    assert "Copy the store and its -wal" in line


def test_looking_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (*READING, *ACTING[:-1]):
        complaint(invoke(*command), 2)
    assert os.listdir(tmp_path) == []


def test_a_store_in_memory_serves_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("run", "Hello", "--store", "memory:")
    assert result.exit_code == 0
    assert "Hello" in result.stdout
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_backup_that_is_told_to_end_leaves_nothing(tmp_path: Path, monkeypatch, number: signal.Signals) -> None:
    async def make() -> None:
        async with perdure.open(str(tmp_path / "store.db")) as session:
            await session.root()

    asyncio.run(make())
    before, handler = sorted(os.listdir(tmp_path)), signal.getsignal(number)
    monkeypatch.setattr("perdure.commands.db._teller", lambda progress: lambda *told: os.kill(os.getpid(), number))
    done = CliRunner().invoke(cli, ["db", "backup", str(tmp_path / "copy.db"), "--store", str(tmp_path / "store.db")])
    assert done.exit_code == 128 + number
    assert sorted(os.listdir(tmp_path)) == before
    assert signal.getsignal(number) is handler
