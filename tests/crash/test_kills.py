"""A scripted agent, killed by SIGKILL or a power loss at every write and sync of SQLite and in every effect.

Each point is a run of real processes: one that dies there, then one that goes on to the end. What is left is judged
after the crash and at the end, from the raw database and the notes of the outside world (`scenario.judge`).
The full form takes every point, the short one all syncs and events, and a sample of the writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import count, takewhile
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perdure.messages import ToolMessage
from perdure.records import Done
from perdure.testing.crash import Point
from perdure.testing.scenario.cast import EVENTS
from perdure.testing.scenario.judge import at_end
from perdure.testing.scenario.kennel import NOTES, STORE, Kennel
from perdure.testing.scenario.notes import Accepted, Effect, Note, Notes, of
from perdure.testing.scenario.ordeal import undergo
from perdure.testing.scenario.stored import RawStore, Stored

VARIANTS = ("plain", "abort", "tasks", "kernel")
#: The work of the writes is shared by so many tests, so that they can run side by side.
SHARES = 2
#: How many of the writes the short form takes, in a hundred.
SAMPLE = 2

Place = Callable[[], Path]
Record = Callable[[str, object], None]


class Survey:
    """Runs points and counts them."""

    def __init__(self, kennel: Kennel, place: Place, record: Record, form: str) -> None:
        self.kennel = kennel
        self.place = place
        self._record = record
        self.full = form == "full"

    def run(self, variant: str, points: Iterable[Point], **how: Any) -> int:
        """Each point by itself. Ends with the first that a run does not reach; how many were reached."""
        kills = 0
        for point in points:
            survived = undergo(self.kennel, self.place(), variant, [point], **how)
            if variant == "kernel":
                assert survived.rows == self.undisturbed(variant), point
            if not survived.kills:
                break
            kills += 1
        self.tell(points=kills, kills=kills)
        return kills

    def chain(self, variant: str, points: list[Point]) -> None:
        """Several crashes of one run."""
        survived = undergo(self.kennel, self.place(), variant, points)
        assert variant != "kernel" or survived.rows == self.undisturbed(variant), points
        self.tell(points=1, kills=survived.kills)

    def undisturbed(self, variant: str) -> dict[str, list[Any]]:
        """The rows that a run without any crash leaves."""
        if variant not in _undisturbed:
            _undisturbed[variant] = undergo(self.kennel, self.place(), variant, []).rows
        return _undisturbed[variant]

    def sample(self, key: str, first: int = 1, step: int = 1) -> Iterator[int]:
        """Numbers from `first` on: all of them, or in the short form some that the key draws."""
        chance = Random(key)
        for number in count(first, step):
            if self.full or chance.random() < SAMPLE / 100:
                yield number

    def tell(self, **counts: int) -> None:
        for name, value in counts.items():
            self._record(f"crash: {name}", value)


_undisturbed: dict[str, dict[str, list[Any]]] = {}


@pytest.fixture
def survey(kennel: Kennel, place: Place, record_property: Record, crash_form: str) -> Survey:
    return Survey(kennel, place, record_property, crash_form)


@pytest.fixture
def finished(kennel: Kennel, place: Place) -> Callable[[str], tuple[Stored, list[Note]]]:
    """What an undisturbed run of a variant leaves."""

    def finish(variant: str) -> tuple[Stored, list[Note]]:
        directory = place()
        directory.mkdir()
        assert kennel.run(directory, variant).code == 0
        with RawStore(directory / STORE) as raw:
            left = raw.records(), list(Notes(directory / NOTES))
        shutil.rmtree(directory)
        return left

    return finish


# -- the run itself -----------------------------------------------------------------------------


def test_undisturbed_every_effect_happens_once_and_every_call_succeeds(finished):
    stored, notes = finished("plain")

    results = [
        message for entry in stored.entries.values() for message in entry.messages if isinstance(message, ToolMessage)
    ]
    assert at_end(stored, notes, "plain") == []
    assert [effect.tool for effect in of(notes, Effect)].count("stamp") == 4
    assert len({effect.key for effect in of(notes, Effect)}) == len(of(notes, Effect)) == len(results) == 13
    assert {result.error for result in results} == {None}


def test_the_steer_joins_the_run_and_the_follow_up_starts_the_next_one(finished):
    stored, notes = finished("plain")

    named = {note.name: stored.submissions[note.id].state for note in of(notes, Accepted)}
    assert all(isinstance(state, Done) for state in named.values())
    assert named["steer"].answer == named["main"].answer < named["later"].answer
    assert named["steer"].entry < named["main"].answer


def test_the_abort_stops_an_effect_and_the_conversation_goes_on(finished):
    stored, notes = finished("abort")

    [linger] = [effect for effect in of(notes, Effect) if effect.tool == "linger"]
    named = {note.name: stored.submissions[note.id].state for note in of(notes, Accepted)}
    assert type(stored.tasks[linger.task].outcome).__name__ == "Aborted"
    assert [type(named[name]).__name__ for name in ("main", "later", "afterwards")] == [
        "Unanswered",
        "Unanswered",
        "Done",
    ]


# -- the process dies ---------------------------------------------------------------------------


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("action", ["before", "torn", "after"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_a_kill_at_every_write(survey, variant, action, share):
    numbers = survey.sample(f"{variant} {action} {share}", 1 + share, SHARES)

    survey.run(variant, (Point("write", at, action) for at in numbers))


@pytest.mark.parametrize("action", ["before", "after"])
@pytest.mark.parametrize("variant", [*VARIANTS, "odd"])
def test_a_run_survives_a_kill_at_every_sync(survey, variant, action):
    assert survey.run(variant, (Point("sync", at, action) for at in count(1))) > 10


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("variant", ["plain", "abort", "tasks"])
def test_a_run_survives_a_kill_around_and_inside_every_effect(survey, variant, event):
    assert survey.run(variant, (Point(event, at) for at in count(1))) > 0


def test_a_kill_inside_a_command_leaves_no_process_behind(survey):
    for event in EVENTS:
        assert survey.run("shell", (Point(event, at) for at in count(1))) > 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_syncs_of_its_commits_a_run_survives_kills_too(survey, variant):
    # What a process wrote, the kernel has: `durability="process"` gives up power losses only.
    numbers = survey.sample(f"{variant} process", step=7)

    survey.run(variant, (Point("write", at, "torn") for at in numbers), durability="process")


# -- the disk fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["write", "sync"])
@pytest.mark.parametrize("action", ["error", "full"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_a_failure_of_every_write_and_sync(survey, variant, action, on):
    # What fails in doubt stops the session, and the next start goes on; a disk that was full heals by itself.
    counts = survey.kennel.count(survey.place(), variant)
    numbers = survey.sample(f"{variant} {action} {on}") if on == "write" else count(1)

    for at in takewhile(lambda at: at <= (counts.writes if on == "write" else counts.syncs), numbers):
        survey.chain(variant, [Point(on, at, action)])


# -- the machine dies ---------------------------------------------------------------------------


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("keep", ["drop", "prefix", "any"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_a_power_loss_at_every_write(survey, variant, keep, share):
    numbers = survey.sample(f"{variant} {keep} {share}", 1 + share, SHARES)

    survey.run(variant, (Point("write", at, keep, seed=at) for at in numbers))


@pytest.mark.parametrize("keep", ["drop", "prefix", "any"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_a_power_loss_at_every_sync(survey, variant, keep):
    assert survey.run(variant, (Point("sync", at, keep, seed=at) for at in count(1))) > 10


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("variant", ["plain", "abort", "tasks"])
def test_a_run_survives_a_power_loss_around_and_inside_every_effect(survey, variant, event):
    for keep in ("drop", "any") if survey.full else ("drop",):
        assert survey.run(variant, (Point(event, at, keep, seed=at) for at in count(1))) > 0


# -- again and again ----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_crashes_of_its_recovery(survey, variant):
    chance = Random(variant)
    actions: list[Any] = ["before", "after", "torn", "drop", "prefix", "any"]

    for seed in range(200 if survey.full else 8):
        # Two in a row: the third of one attempt would park it (H44).
        first = Point("write", chance.randrange(1, 500), chance.choice(actions), seed=seed)
        second = Point(chance.choice(["write", "sync"]), chance.randrange(1, 40), chance.choice(actions[:2]), seed=seed)
        survey.chain(variant, [first, second])
