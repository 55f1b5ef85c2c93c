"""Damaged and newer files, full disks, directories that cannot be written, odd values: a clear error, nothing lost."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure import Answered
from perdure.errors import SchemaTooNew, StorageCorrupt, StorageFull
from perdure.messages import ToolMessage
from perdure.telemetry import Telemetry
from perdure.testing.processes import run_child
from perdure.testing.scenario.cast import AFTER_EFFECT
from perdure.testing.scenario.judge import at_end
from perdure.testing.scenario.kennel import NOTES, STORE, Kennel
from perdure.testing.scenario.notes import Effect, Notes, of
from perdure.testing.scenario.stored import RawStore, Stored
from perdure.testing.scripted import ScriptedModel, answer, by_round, call, say
from perdure.testing.strict import StrictModel

pytestmark = pytest.mark.anyio

NOBODY = 65534
#: Opens a store as a user who may not write there, and says what came of it.
OPENS = """
import asyncio, os, sys
import perdure, perdure.backends.sqlite

for name in perdure.__all__:  # a name is loaded when it is used, and its user may not even read where it comes from
    getattr(perdure, name)

async def main():
    for mode in ("own", "read"):
        try:
            async with perdure.open(sys.argv[1], mode=mode, model=None) as session:
                if mode == "read":
                    await session.find(1)
            print(mode, "opened", flush=True)
        except Exception as error:
            print(mode, type(error).__name__, error, flush=True)

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
asyncio.run(main())
"""


def results(stored: Stored) -> list[ToolMessage]:
    return [each for entry in stored.entries.values() for each in entry.messages if isinstance(each, ToolMessage)]


# -- a file that is damaged or newer ------------------------------------------------------------


@pytest.fixture
def interrupted(place: Callable[[], Path], kennel: Kennel) -> Iterator[Path]:
    """The directory of a run that was killed inside an effect, with nothing left to copy from the log."""
    directory = place()
    directory.mkdir()
    assert kennel.run(directory, "plain", point=f"{AFTER_EFFECT}:6:before").killed
    connection = apsw.Connection(str(directory / STORE))
    connection.pragma("user_version")
    connection.close()
    assert not (directory / f"{STORE}-wal").exists()
    yield directory
    shutil.rmtree(directory)


def goes_on(kennel: Kennel, directory: Path) -> list[str]:
    """What is wrong once the run was seen through."""
    assert kennel.run(directory, "plain", life=9).code == 0
    with RawStore(directory / STORE) as raw:
        return at_end(raw.records(), Notes(directory / NOTES), "plain")


def restore(path: Path, content: bytes) -> None:
    """A backup in place of the store."""
    for log in ("-wal", "-shm"):
        Path(f"{path}{log}").unlink(missing_ok=True)
    path.write_bytes(content)


async def test_a_newer_store_is_refused_untouched_and_goes_on_under_its_own_version(interrupted, kennel):
    path = interrupted / STORE
    connection = apsw.Connection(str(path))
    version = connection.pragma("user_version")
    connection.pragma("user_version", 99)
    connection.close()
    before = path.read_bytes()

    with pytest.raises(SchemaTooNew, match=rf"{path}.*schema 99.*upgrade"):
        async with perdure.open(str(path)):
            pass

    assert path.read_bytes() == before
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", version)
    connection.close()
    assert goes_on(kennel, interrupted) == []


@pytest.mark.parametrize("page", ["the first page", "every page behind the schema"])
async def test_a_damaged_store_is_refused_and_nothing_of_it_runs(interrupted, kennel, page):
    path = interrupted / STORE
    before = path.read_bytes()
    damaged = bytearray(before)
    for start in [0] if page == "the first page" else range(30 * 4096, len(damaged), 4096):
        damaged[start : start + 64] = b"\xa5" * 64
    path.write_bytes(damaged)
    effects = len(of(Notes(interrupted / NOTES), Effect))

    with pytest.raises(StorageCorrupt, match=rf"{path} is (no|not a healthy) perdure store.*backup"):
        async with perdure.open(str(path)) as session:
            await session.resume()

    assert page != "the first page" or path.read_bytes() == damaged  # a claim came before what is found later
    assert kennel.run(interrupted, "plain", life=5).code == 1
    assert len(of(Notes(interrupted / NOTES), Effect)) == effects
    restore(path, before)
    assert goes_on(kennel, interrupted) == []


# -- a full disk --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """20 MB of tmpfs, which only root can make."""
    place, libc = tmp_path / "disk", ctypes.CDLL(None, use_errno=True)
    place.mkdir()
    if libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, b"size=20m") != 0:
        pytest.skip(f"cannot mount a tmpfs here: {os.strerror(ctypes.get_errno())} (needs root)")
    yield place
    libc.umount2(str(place).encode(), 2)


class FullDisk:
    """An agent whose first round fills the disk. It counts effects and refusals."""

    def __init__(self, place: Path) -> None:
        self.path = str(place / STORE)
        self.effects: list[str] = []
        self.refusals: asyncio.Queue[None] = asyncio.Queue()
        self._ballast = place / "ballast"
        telemetry = Telemetry()
        telemetry.attach("test", ["perdure.commit.refused"], lambda *_: self.refusals.put_nowait(None))
        rounds = by_round(answer(call("fill"), call("pay")), call("pay"), say("done"), say("more"))
        self.options: dict[str, Any] = {
            "model": StrictModel(ScriptedModel(rounds)),
            "registry": perdure.Registry([perdure.Extension(name="test", tools=self._tools())]),
            "telemetry": telemetry,
        }

    def _tools(self) -> list[Any]:
        filled = asyncio.Event()

        @perdure.tool
        async def fill() -> str:
            self.fill()
            self.effects.append("fill")
            filled.set()
            return "filled"

        @perdure.tool
        async def pay() -> str:
            await filled.wait()
            self.effects.append("pay")
            return "paid"

        return [fill, pay]

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            for piece in (1 << 20, 4096):
                try:
                    while file.write(b"\0" * piece) == piece:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        self._ballast.unlink()


async def test_a_disk_that_fills_up_in_a_run_is_told_starts_no_effect_and_heals_by_itself(small_disk):
    """I59."""
    disk = FullDisk(small_disk)
    async with perdure.open(disk.path, **disk.options) as session:
        chat = await session.root()
        sent = await chat.submit("go")
        for _ in range(3):  # it is tried again and again
            await asyncio.wait_for(disk.refusals.get(), 20)

        with pytest.raises(StorageFull, match="no space left"):
            await chat.submit("and then?", request_id="second")
        shown = session.inspect().storage
        effects = list(disk.effects)
        disk.free()
        settled = await asyncio.wait_for(sent.wait(), 20)
        later = await (await chat.submit("and then?", request_id="second")).wait()

        assert shown == "full"
        assert effects == ["fill", "pay"]
        assert disk.effects == ["fill", "pay", "pay"]
        assert isinstance(settled, Answered)
        assert settled.text == "done"
        assert isinstance(later, Answered)
        assert later.text == "more"
        assert session.inspect().storage == "ok"
    with RawStore(small_disk / STORE) as raw:
        told = [result.error for result in results(raw.records())]
    assert told == [None, None, None]


async def test_a_session_that_is_closed_on_a_full_disk_goes_on_when_there_is_space(small_disk):
    disk = FullDisk(small_disk)
    with suppress(StorageFull):  # the mark of an orderly end finds no space either
        async with perdure.open(disk.path, **disk.options) as session:
            await (await session.root()).submit("go", request_id="first")
            await asyncio.wait_for(disk.refusals.get(), 20)

    disk.free()

    async with perdure.open(disk.path, **disk.options) as session:
        sent = await (await session.root()).submit("go", request_id="first")
        settled = await asyncio.wait_for(sent.wait(), 20)
    with RawStore(small_disk / STORE) as raw:
        told = [result.error for result in results(raw.records())]
    assert isinstance(settled, Answered)
    assert settled.text == "done"
    assert disk.effects == ["fill", "pay", "pay"]
    assert told == ["interrupted", "interrupted", None]  # what could not be recorded is unknown, and not repeated


# -- a directory that cannot be written ---------------------------------------------------------


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user can reach."""
    place = Path(tempfile.mkdtemp(prefix="perdure-shared-"))
    place.chmod(0o755)
    yield place
    place.chmod(0o755)
    shutil.rmtree(place)


def opened_by_nobody(path: Path) -> list[str]:
    exit = run_child([sys.executable, "-c", OPENS, str(path), str(NOBODY)])
    assert exit.code == 0, exit.stderr
    return exit.lines


def test_a_directory_that_may_not_be_written_is_named_with_the_remedy(shared):
    shared.chmod(0o555)

    owned, read = opened_by_nobody(shared / STORE)

    assert owned.startswith(f"own StorageRejected cannot open {shared / STORE}")
    assert "Make its directory writable for this user, or name another store" in owned
    assert read.startswith("read NotFound")
    assert list(shared.iterdir()) == []


async def test_a_store_in_a_directory_that_may_not_be_written_any_more_loses_nothing(shared):
    path = shared / STORE
    async with perdure.open(str(path), model=None) as session:
        await (await session.root()).write(perdure.entry_kind("note"), {"n": 1})
    path.chmod(0o666)
    (shared / f"{STORE}.workers").chmod(0o777)
    shared.chmod(0o555)
    before = path.read_bytes()

    owned, _ = opened_by_nobody(path)

    assert owned.startswith("own StorageRejected")
    assert "writable for this user" in owned
    assert path.read_bytes() == before
    shared.chmod(0o755)
    async with perdure.open(str(path), model=None) as session:
        [entry] = await (await session.root()).entries()
    assert entry.data == {"n": 1}


# -- values that nobody wanted ------------------------------------------------------------------


@pytest.fixture
def odd(place: Callable[[], Path], kennel: Kennel) -> Iterator[tuple[Stored, Notes]]:
    """What is stored of a run with odd prompts, calls and results, after a restart."""
    directory = place()
    directory.mkdir()
    exit = kennel.run(directory, "odd", idle=1)
    assert exit.code == 0, exit.stderr
    with RawStore(directory / STORE) as raw:
        yield raw.records(), Notes(directory / NOTES)
    shutil.rmtree(directory)


def test_whatever_people_models_and_tools_come_up_with_the_conversation_goes_on(odd):
    stored, notes = odd

    by_call = {result.call: result for result in results(stored)}
    assert at_end(stored, notes, "odd") == []
    assert len(by_call) == len(results(stored))
    assert [by_call[key].error for key in sorted(by_call, key=lambda key: tuple(map(int, key.split("."))))] == [
        *["tool_unavailable", "invalid_arguments", "invalid_arguments", "invalid_arguments"],
        *["invalid_arguments", "invalid_arguments", "invalid_arguments", None],
        *[None, "tool_error", None, "tool_error", "tool_error", None, "tool_error"],
        None,
    ]


def test_every_result_is_bounded_and_can_be_sent(odd):
    stored, _ = odd

    texts = [result.text for result in results(stored)]

    assert max(len(text.encode()) for text in texts) < 60 * 1024
    assert not any("\0" in text for text in texts)
