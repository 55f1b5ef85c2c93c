"""Owners of a store in other processes: alive, frozen inside an effect, frozen inside a commit, and taken over (K1)."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import SessionOwned, StorageRejected
from perdure.messages import ToolMessage
from perdure.testing.processes import Child
from perdure.testing.scenario.cast import BEFORE_EFFECT, MODEL_SPEAKS, SHOWN
from perdure.testing.scenario.judge import at_end
from perdure.testing.scenario.kennel import NOTES, STORE, Kennel
from perdure.testing.scenario.notes import Effect, Notes, Shown, of
from perdure.testing.scenario.stored import RawStore, Stored, copied

pytestmark = pytest.mark.anyio

OWNER = Path(__file__).with_name("owner.py")
#: Inside the transaction of a commit in the middle of the run.
IN_A_COMMIT = f"{SHOWN} 9 write"

Frozen = Callable[[str], Child]


@pytest.fixture
def directory(place: Callable[[], Path]) -> Iterator[Path]:
    directory = place()
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def frozen(directory: Path) -> Iterator[Frozen]:
    """An owner of the store in the directory, frozen at a point of the run."""
    with ExitStack() as owners:

        def start(point: str) -> Child:
            owner = owners.enter_context(Child([sys.executable, str(OWNER), str(directory), "plain", *point.split()]))
            assert owner.read_line() == "standing"
            owner.stop()
            return owner

        yield start


def thaw(owner: Child) -> str:
    """What ends the run of an owner that goes on."""
    owner.proceed()
    owner.write_line("")
    ended = owner.read_line()
    assert owner.wait().code == 0
    return ended


def look(directory: Path) -> tuple[Stored, str]:
    with RawStore(copied(directory / STORE, directory / "aside")) as raw:
        return raw.records(), raw.digest()


def head(directory: Path) -> int:
    """The newest commit of the one session in the store."""
    with RawStore(copied(directory / STORE, directory / "aside")) as raw:
        ((_, newest, _),) = raw.without_times()["session"]
        return newest


def of_first_life(notes: Notes, kind: type[Any]) -> list[Any]:
    return [note for note in of(notes, kind) if note.life == 1]


def results(stored: Stored) -> dict[int | None, ToolMessage]:
    return {
        entry.task: message
        for entry in stored.entries.values()
        for message in entry.messages
        if isinstance(message, ToolMessage)
    }


# -- a live owner -------------------------------------------------------------------------------


async def test_a_store_of_a_live_owner_names_it_and_what_can_be_done(directory, frozen):
    owner = frozen(f"{BEFORE_EFFECT} 1")

    with pytest.raises(SessionOwned) as refused:
        async with perdure.open(str(directory / STORE)):
            pass

    told = str(refused.value)
    assert f"process {owner.pid} on {socket.gethostname()} since 20" in told
    assert "stopped" in told
    assert "take_over=True" in told


async def test_beside_a_live_owner_anyone_may_read_and_hand_in(directory, frozen):
    owner = frozen(f"{BEFORE_EFFECT} 1")

    async with perdure.open(str(directory / STORE), mode="hand-in") as session:
        root = await session.find(1)
        seen = await root.entries()
        handed = await root.submit("task: answer one who came by")

    assert [entry.kind for entry in seen] == ["perdure.assistant", "perdure.user"]
    assert thaw(owner) == "ended well"
    stored, _ = look(directory)
    assert handed.id in stored.inbound


# -- frozen inside an effect --------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", [f"{BEFORE_EFFECT} 1", f"{BEFORE_EFFECT} 3", f"{BEFORE_EFFECT} 7", f"{SHOWN} 9", f"{MODEL_SPEAKS} 2"]
)
def test_a_frozen_owner_that_was_taken_over_brings_nothing_in(directory, frozen, kennel: Kennel, point):
    owner = frozen(point)
    before = len(of_first_life(Notes(directory / NOTES), Shown))
    landed = head(directory)
    taken = kennel.run(directory, "plain", life=2, take_over=True)
    stored, digest = look(directory)

    ended = thaw(owner)

    notes = Notes(directory / NOTES)
    assert taken.code == 0, taken.stderr
    assert ended == "ended Fenced"
    late = of_first_life(notes, Shown)[before:]
    assert [shown for shown in late if shown.seq > landed] == []  # what had landed by then, it may still show
    assert look(directory)[1] == digest
    assert at_end(stored, notes, "plain") == []


def test_what_a_frozen_owner_had_begun_may_happen_once_and_the_taker_knows_that_it_does_not_know(
    directory, frozen, kennel: Kennel
):
    owner = frozen(f"{BEFORE_EFFECT} 1")
    begun = [task.id for task in look(directory)[0].tasks.values() if task.kind == "perdure.tool"]
    assert kennel.run(directory, "plain", life=2, take_over=True).code == 0

    thaw(owner)

    stored, _ = look(directory)
    late = of_first_life(Notes(directory / NOTES), Effect)
    told = results(stored)
    assert late
    assert {effect.task for effect in late} <= set(begun)
    assert {told[effect.task].error for effect in late if not effect.safe} <= {"interrupted"}
    assert {told[id].error for id in begun if told[id].name != "look"} == {"interrupted"}


# -- frozen inside a commit ---------------------------------------------------------------------


async def test_a_takeover_from_an_owner_frozen_in_a_commit_fails_soon_and_names_it(directory, frozen):
    owner = frozen(IN_A_COMMIT)
    began = time.monotonic()

    with pytest.raises(StorageRejected) as refused:
        async with perdure.open(str(directory / STORE), take_over=True):
            pass

    assert time.monotonic() - began < 5 + 5  # K1's five seconds, and room for a machine that is busy
    assert f"process {owner.pid}, stopped (T)" in str(refused.value)
    assert "kill=True" in str(refused.value)
    assert thaw(owner) == "ended well"  # it was not harmed
    stored, _ = look(directory)
    assert at_end(stored, Notes(directory / NOTES), "plain") == []


async def test_a_takeover_with_kill_ends_an_owner_frozen_in_a_commit_and_goes_on(directory, frozen, kennel: Kennel):
    owner = frozen(IN_A_COMMIT)

    async with perdure.open(str(directory / STORE), take_over=True, kill=True):
        assert not owner.running

    assert kennel.run(directory, "plain", life=2).code == 0
    stored, _ = look(directory)
    assert at_end(stored, Notes(directory / NOTES), "plain") == []
