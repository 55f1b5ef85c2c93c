"""The judge of the scripted run finds each thing that can go wrong: a verdict that is always good proves nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.backends.memory import MemoryStorage
from perdure.messages import ToolMessage
from perdure.records import Checkpoint, Pending, Queued, encode
from perdure.telemetry import Telemetry
from perdure.testing.clock import LoopClock
from perdure.testing.loop import run
from perdure.testing.scenario.client import SESSION, live
from perdure.testing.scenario.judge import after_crash, at_end
from perdure.testing.scenario.notes import Accepted, Effect, Note, Notes, Shown, of
from perdure.testing.scenario.stored import Stored, read_stored

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def finished() -> tuple[Stored, list[Note]]:
    """What an undisturbed run leaves."""

    async def main(loop: Any) -> tuple[Stored, list[Note]]:
        clock, notes = LoopClock(loop, start=1000.0), Notes()
        storage = MemoryStorage(clock)
        await live(storage, "plain", notes, life=1, clock=clock, telemetry=Telemetry())
        return await read_stored(storage, SESSION), list(notes)

    return run(7, main).value


def without(stored: Stored, table: str, id: Any) -> Stored:
    return replace(stored, **{table: {key: value for key, value in getattr(stored, table).items() if key != id}})


def changed(stored: Stored, table: str, id: Any, **fields: Any) -> Stored:
    records = getattr(stored, table)
    return replace(stored, **{table: {**records, id: replace(records[id], **fields)}})


def a_result(stored: Stored) -> Any:
    """The first entry with a result."""
    return next(
        entry for entry in stored.entries.values() if entry.messages and isinstance(entry.messages[0], ToolMessage)
    )


def unsafe_effect(notes: list[Note]) -> Effect:
    return next(effect for effect in of(notes, Effect) if not effect.safe)


def test_a_run_that_went_well_is_judged_so(finished):
    stored, notes = finished

    assert at_end(stored, notes, "plain") == []
    assert len(of(notes, Shown)) > 10


def test_an_entry_that_was_shown_and_is_lost_is_found(finished):
    stored, notes = finished
    shown = next(id for note in of(notes, Shown) for id in note.entries)

    [wrong] = after_crash(without(stored, "bodies", shown), notes)

    assert wrong.startswith(f"entry {shown} of commit")


def test_an_entry_that_changed_after_it_was_shown_is_found(finished):
    stored, notes = finished
    shown = next(id for note in of(notes, Shown) for id in note.entries)
    other = encode(replace(stored.entries[shown], at=1.0))

    assert after_crash(replace(stored, bodies={**stored.bodies, shown: other}), notes)


def test_a_submission_that_was_accepted_and_is_lost_is_found(finished):
    stored, notes = finished
    accepted = next(note.id for note in of(notes, Accepted) if note.name == "steer")

    assert any("'steer'" in wrong for wrong in after_crash(without(stored, "submissions", accepted), notes))


def test_a_submission_that_went_back_is_found(finished):
    stored, notes = finished
    accepted = next(note.id for note in of(notes, Accepted))

    wrong = after_crash(changed(stored, "submissions", accepted, state=Queued()), notes)

    assert any("was shown as" in each for each in wrong)


def test_one_name_under_two_ids_is_found(finished):
    stored, notes = finished
    again = Accepted(name="main", id=next(iter(of(notes, Accepted)[1:])).id, life=2)

    assert any("several ids" in wrong for wrong in after_crash(stored, [*notes, again]))


def test_an_effect_without_its_intent_is_found(finished):
    stored, notes = finished
    task = unsafe_effect(notes).task
    state = Pending(checkpoint=Checkpoint(phase="execute"))

    wrong = after_crash(changed(stored, "tasks", task, state=state), notes)
    lost = after_crash(without(stored, "tasks", task), notes)

    assert any("no intent is stored" in each for each in wrong)
    assert any("its task is not stored" in each for each in lost)


def test_an_unsafe_effect_that_happened_twice_is_found(finished):
    stored, notes = finished

    [wrong] = at_end(stored, [*notes, unsafe_effect(notes)], "plain")

    assert wrong.endswith("happened 2 times")


def test_a_safe_effect_may_happen_again(finished):
    stored, notes = finished
    safe = next(effect for effect in of(notes, Effect) if effect.safe)

    assert at_end(stored, [*notes, safe], "plain") == []


def test_a_result_of_what_never_happened_is_found(finished):
    stored, notes = finished
    entry = a_result(stored)
    rest = [note for note in notes if not (isinstance(note, Effect) and note.task == entry.task)]

    [wrong] = at_end(stored, rest, "plain")

    assert wrong.startswith(f"entry {entry.id} says that")


def test_a_call_without_its_result_is_found(finished):
    stored, notes = finished
    entry = a_result(stored)

    wrong = at_end(without(stored, "entries", entry.id), notes, "plain")

    assert any("has no result" in each for each in wrong)


def test_a_submission_that_never_settled_is_found(finished):
    stored, notes = finished
    accepted = next(note.id for note in of(notes, Accepted))

    wrong = at_end(changed(stored, "submissions", accepted, state=Queued()), notes, "plain")

    assert any("never settled" in each for each in wrong)
