"""A scripted agent, killed by SIGKILL or a power loss at every write and sync of SQLite and in every effect.

Each point is a run of real processes: one that dies there, then one that goes on to the end. What is left is judged
after the crash and at the end, from the raw database and the notes of the outside world (`scenario.judge`).
The full form takes every point, the short one all syncs and events, and a sample of the writes.
On text files (JSONL) a run has a tenth of the writes, rewritings of the files among them; it is judged from its lines.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, takewhile
from pathlib import Path
from random import Random
from threading import Event, Lock
from typing import Any

import pytest

import perdure
from perdure.harness.approval import asked_call
from perdure.messages import ToolMessage
from perdure.records import Done
from perdure.testing.crash import Point
from perdure.testing.scenario.cast import BEFORE_EFFECT, EVENTS, SHOWN
from perdure.testing.scenario.judge import at_end
from perdure.testing.scenario.kennel import NOTES, STORE, Kennel
from perdure.testing.scenario.notes import Accepted, Effect, Note, Notes, of
from perdure.testing.scenario.ordeal import undergo
from perdure.testing.scenario.stored import RawStore, Stored

pytestmark = [pytest.mark.anyio, pytest.mark.invariant("O-1", "O-2", "O-3", "O-4")]

VARIANTS = ("plain", "abort", "tasks", "kernel", "compact")
#: The work of the writes is shared by so many tests, so that they can run side by side.
SHARES = 2
#: How many of the writes the short form takes, and of syncs and events where each was seen by another test.
WRITES, OTHERS = 2, 30

Place = Callable[[], Path]
Record = Callable[[str, object], None]


class Survey:
    """Runs points and counts them. A few run side by side: most of a life is waiting."""

    def __init__(self, kennels: Sequence[Kennel], place: Place, record: Record, form: str) -> None:
        self.kennels = kennels
        self.place = place
        self._record = record
        self.full = form == "full"

    def run(self, variant: str, points: Iterable[Point], **how: Any) -> int:
        """Each point by itself, until a run does not reach one; how many were reached."""
        return self.chains(variant, ([point] for point in points), **how)

    def chains(self, variant: str, chains: Iterable[list[Point]], **how: Any) -> int:
        """Several crashes of one run after another; how many of these runs were hit at all."""
        rows = self.undisturbed(variant, how.get("backend", "sqlite")) if variant == "kernel" else None
        left, guard, ended = iter(chains), Lock(), Event()

        def next_chain() -> list[Point] | None:
            with guard:
                return None if ended.is_set() else next(left, None)

        def lane(kennel: Kennel) -> list[int]:
            hits: list[int] = []
            while (points := next_chain()) is not None:
                survived = undergo(kennel, self.place(), variant, points, **how)
                # Where a disk was full, commits of nothing tried it, and took their numbers.
                assert rows is None or points[0].action == "full" or survived.rows == rows, points
                if not survived.hits:
                    ended.set()
                hits.append(survived.hits)
            return hits

        with ThreadPoolExecutor(len(self.kennels)) as pool:
            hits = [each for found in pool.map(lane, self.kennels) for each in found]
        self._record("crash: points", sum(map(bool, hits)))
        self._record("crash: kills and failures", sum(hits))
        return sum(map(bool, hits))

    def undisturbed(self, variant: str, backend: str) -> dict[str, list[Any]]:
        """The rows that a run without any crash leaves."""
        if (variant, backend) not in _undisturbed:
            survived = undergo(self.kennels[0], self.place(), variant, [], backend=backend)
            _undisturbed[variant, backend] = survived.rows
        return _undisturbed[variant, backend]

    def sample(self, key: str, percent: int, first: int = 1, step: int = 1) -> Iterator[int]:
        """Numbers from `first` on: all of them, or in the short form so many of a hundred, which the key draws."""
        chance = Random(key)
        for number in count(first, step):
            if self.full or chance.randrange(100) < percent:
                yield number


_undisturbed: dict[tuple[str, str], dict[str, list[Any]]] = {}


@pytest.fixture
def survey(kennels: list[Kennel], place: Place, record_property: Record, crash_form: str) -> Survey:
    return Survey(kennels, place, record_property, crash_form)


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


@pytest.mark.invariant("HC-14")
def test_undisturbed_a_run_compacts_in_every_way_and_is_reset(finished):
    stored, notes = finished("compact")

    heads = [entry for entry in stored.entries.values() if entry.head is not None]
    assert at_end(stored, notes, "compact") == []
    assert {entry.data["reason"] for entry in heads if entry.kind == "perdure.compaction"} == {
        "background", "manual", "threshold", "overflow",
    }  # fmt: skip
    assert [entry.kind for entry in heads][-1] == "perdure.reset"


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


def test_each_call_that_is_asked_about_gets_its_own_answer(finished):
    stored, notes = finished("approvals")

    results = sorted(
        ([int(part) for part in message.call.split(".")], message.name, message.error)
        for entry in stored.entries.values()
        for message in entry.messages
        if isinstance(message, ToolMessage)
    )
    assert at_end(stored, notes, "approvals") == []
    assert [(name, error) for _, name, error in results] == [
        ("look", None), ("pay", None), ("send", "blocked"), ("stamp", None), ("send", "blocked"), ("pay", None)
    ]  # fmt: skip
    assert sorted(effect.tool for effect in of(notes, Effect)) == ["look", "pay", "pay", "stamp"]
    assert sum(asked_call(task) is not None for task in stored.tasks.values()) == 7


# -- the process dies ---------------------------------------------------------------------------


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("action", ["before", "torn", "after"])
@pytest.mark.parametrize("variant", [*VARIANTS, "approvals"])
def test_a_run_survives_a_kill_at_every_write(survey, variant, action, share):
    numbers = survey.sample(f"{variant} {action} {share}", WRITES, 1 + share, SHARES)

    survey.run(variant, (Point("write", at, action) for at in numbers))


@pytest.mark.parametrize("action", ["before", "after"])
@pytest.mark.parametrize("variant", [*VARIANTS, "odd", "approvals"])
def test_a_run_survives_a_kill_at_every_sync(survey, variant, action):
    assert survey.run(variant, (Point("sync", at, action) for at in count(1))) > 10


@pytest.mark.invariant("SA-2", "SA-21")
@pytest.mark.parametrize("action", ["before", "torn", "after"])
def test_sub_agents_survive_a_kill_at_every_write(survey, action):
    numbers = survey.sample(f"agents {action}", WRITES * 2)

    survey.run("agents", (Point("write", at, action) for at in numbers))


@pytest.mark.invariant("SA-2", "SA-21")
@pytest.mark.parametrize("on", ["sync", SHOWN])
def test_sub_agents_survive_a_kill_at_every_sync_and_after_every_commit(survey, on):
    assert survey.run("agents", (Point(on, at) for at in count(1))) > 10


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("variant", ["plain", "abort", "tasks", "approvals"])
def test_a_run_survives_a_kill_around_and_inside_every_effect(survey, variant, event):
    assert survey.run(variant, (Point(event, at) for at in count(1))) > 0


@pytest.mark.parametrize("event", EVENTS)
def test_a_kill_inside_a_command_leaves_no_process_behind(survey, event):
    assert survey.run("shell", (Point(event, at) for at in count(1))) > 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_syncs_of_its_commits_a_run_survives_kills_too(survey, variant):
    # What a process wrote, the kernel has: `durability="process"` gives up power losses only.
    numbers = survey.sample(f"{variant} process", WRITES * 7, step=7)

    survey.run(variant, (Point("write", at, "torn") for at in numbers), durability="process")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_crashes_of_its_recovery(survey, variant):
    chance = Random(variant)
    actions: list[Any] = ["before", "after", "torn", "drop", "prefix", "any"]

    def chain(seed: int) -> list[Point]:
        # Two in a row: the third of one attempt would park it (H44).
        first = Point("write", chance.randrange(1, 400), chance.choice(actions), seed=seed)
        second = Point(chance.choice(["write", "sync"]), chance.randrange(1, 40), chance.choice(actions[:2]), seed=seed)
        return [first, second]

    survey.chains(variant, map(chain, range(200 if survey.full else 8)))


async def test_a_call_that_kills_its_process_three_times_is_parked_and_goes_on_when_told_to(kennel, place):
    """H44: only the call that may be repeated runs again, and it is what the process dies of."""
    directory = place()
    directory.mkdir()
    for life in (1, 2, 3):
        assert kennel.run(directory, "plain", life=life, point=str(Point(BEFORE_EFFECT, 1))).killed

    async with perdure.open(str(directory / STORE), model=None) as session:
        [held] = session.inspect().held
        await session.retry(held.id)

    assert (held.label, held.reason, held.crashes) == ("look", "parked", 3)
    assert "died 3 times" in (held.detail or "")
    assert kennel.run(directory, "plain", life=4).code == 0
    with RawStore(directory / STORE) as raw:
        assert at_end(raw.records(), Notes(directory / NOTES), "plain") == []
    shutil.rmtree(directory)


# -- the disk fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["error", "full"])
@pytest.mark.parametrize("on", ["write", "sync"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_a_failure_of_every_write_and_sync(survey, variant, on, action):
    # What fails in doubt stops the session, and the next start goes on; a disk that was full heals by itself.
    counts = survey.kennels[0].count(survey.place(), variant)
    last = counts.writes if on == "write" else counts.syncs
    numbers = survey.sample(f"{variant} {action} {on}", WRITES if on == "write" else OTHERS)

    survey.run(variant, (Point(on, at, action) for at in takewhile(lambda at: at <= last, numbers)))


# -- the machine dies ---------------------------------------------------------------------------


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("keep", ["drop", "prefix", "any"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_a_power_loss_at_every_write(survey, variant, keep, share):
    numbers = survey.sample(f"{variant} {keep} {share}", WRITES, 1 + share, SHARES)

    survey.run(variant, (Point("write", at, keep, seed=at) for at in numbers))


@pytest.mark.parametrize("keep", ["drop", "prefix", "any"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_a_power_loss_at_every_sync(survey, variant, keep):
    numbers = survey.sample(f"{variant} {keep} sync", 100 if keep == "any" else OTHERS)

    survey.run(variant, (Point("sync", at, keep, seed=at) for at in numbers))


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("variant", ["plain", "abort", "tasks"])
def test_a_run_survives_a_power_loss_around_and_inside_every_effect(survey, variant, event):
    for keep in ("drop", "any"):
        numbers = survey.sample(f"{variant} {keep} {event}", OTHERS)
        survey.run(variant, (Point(event, at, keep, seed=at) for at in numbers))


# -- on text files ------------------------------------------------------------------------------


def points_of(survey: Survey, key: str, on: str, actions: Sequence[Any], percent: int) -> Iterator[Point]:
    """Each call with each action, one call after another; or a sample."""
    for number in survey.sample(f"jsonl {key} {on}", percent, 0):
        at, action = divmod(number, len(actions))
        yield Point(on, at + 1, actions[action], seed=number)


@pytest.mark.parametrize("variant", VARIANTS)
def test_on_text_files_a_run_survives_a_kill_and_a_power_loss_at_every_write(survey, variant):
    actions = ("before", "torn", "after", "drop", "prefix", "any")

    survey.run(variant, points_of(survey, variant, "write", actions, WRITES), backend="jsonl")


@pytest.mark.parametrize("variant", VARIANTS)
def test_on_text_files_a_run_survives_a_kill_and_a_power_loss_at_every_sync(survey, variant):
    actions = ("before", "after", "drop", "any")

    survey.run(variant, points_of(survey, variant, "sync", actions, WRITES), backend="jsonl")


@pytest.mark.parametrize("on", ["write", "sync"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_on_text_files_a_run_survives_a_failure_of_every_write_and_sync(survey, variant, on):
    counts = survey.kennels[0].count(survey.place(), variant, backend="jsonl")
    last = counts.writes if on == "write" else counts.syncs

    points = points_of(survey, f"failing {variant}", on, ("error", "full"), WRITES)
    survey.run(variant, takewhile(lambda point: point.at <= last, points), backend="jsonl")


@pytest.mark.parametrize("event", EVENTS)
def test_on_text_files_a_run_survives_a_kill_around_and_inside_every_effect(survey, event):
    survey.run("plain", points_of(survey, "plain", event, ("before", "any"), WRITES * 3), backend="jsonl")


@pytest.mark.parametrize("variant", VARIANTS)
def test_on_text_files_without_syncs_of_its_commits_a_run_survives_kills_too(survey, variant):
    points = points_of(survey, f"process {variant}", "write", ("torn",), WRITES * 2)

    survey.run(variant, points, backend="jsonl", durability="process")
