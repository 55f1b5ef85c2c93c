"""The scripted agent on a storage whose n-th write fails, for every n and every kind of failure.

In this process, in memory and in virtual time, so that nothing but the fault decides (SQLite's out-of-memory loop, for
storages). What a fault stops for good goes on with a new session, as after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import pytest

from perdure.testing.faults import FAULTS, How
from perdure.testing.scenario.faulty import Weathered, weather

VARIANTS = ("plain", "abort", "tasks", "kernel", "odd")


Storm = Callable[..., list[Weathered]]


@pytest.fixture
def storm(crash_form: str, record_property: Any) -> Storm:
    """Runs for one write after another that fails, ending with a run that has fewer; counts the faults.

    The full form takes every write in ten orders of what is ready at once, the short one every `short`-th in one.
    """

    def every_n(variant: str, how: How, *, short: int = 1, **more: Any) -> list[Weathered]:
        full = crash_form == "full"
        first, step = (1, 1) if full else (1 + Random(f"{variant} {how} {more}").randrange(short), short)
        runs: list[Weathered] = []
        for at in count(first, step):
            runs += [weather(variant, how, at, seed=1000 * at + seed, **more) for seed in range(10 if full else 1)]
            if not all(run.struck for run in runs):
                break
        record_property("crash: storage faults", sum(run.struck for run in runs))
        return runs

    return every_n


def complaints(runs: list[Weathered]) -> list[str]:
    return [f"write {run.at}: {each}" for run in runs for each in run.wrong]


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_a_fault_of_every_write(variant, how, storm):
    runs = storm(variant, how, short=2)

    assert complaints(runs) == []
    assert len(runs) > 6


@pytest.mark.parametrize("times", [2, 6])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_full_disk_heals_by_itself_at_every_write(variant, times, storm):
    runs = storm(variant, "full", short=4, times=times)

    assert complaints(runs) == []
    # Never by a restart: only where the session was just being opened there is none to heal.
    assert max(run.lives for run in runs if run.at > 2) == 1


@pytest.mark.parametrize("how", ["lost", "after", "refused"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_refusals_in_a_row_need_no_restart(variant, how, storm):
    runs = storm(variant, how, short=4, times=3)

    assert complaints(runs) == []
    assert max(run.lives for run in runs if run.at > 4) == 1


@pytest.mark.parametrize("how", ["lost", "after"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_was_lost_is_looked_up_until_the_connection_is_back(variant, how, storm):
    runs = storm(variant, how, short=4, lookups=3)

    assert complaints(runs) == []
    assert max(run.lives for run in runs if run.at > 2) == 1


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_of_handing_in_is_no_loss(how, storm):
    runs = storm("tasks", how, op="hand_in")

    assert complaints(runs) == []
    assert runs[0].struck


@pytest.mark.parametrize("how", ["full", "poison", "poison_after"])
def test_no_effect_starts_while_nothing_can_be_recorded(how, storm):
    runs = storm("plain", how, times=6 if how == "full" else 1)

    assert [each for run in runs for each in run.early] == []
