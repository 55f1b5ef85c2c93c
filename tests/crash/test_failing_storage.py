"""The scripted agent on a storage whose n-th write fails, for every n and every kind of failure.

In this process, in memory and in virtual time, so that nothing but the fault decides (SQLite's out-of-memory loop, for
storages). What a fault stops for good goes on with a new session, as after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from perdure.testing.faults import FAULTS, How
from perdure.testing.scenario.faulty import Weathered, weather

VARIANTS = ("plain", "abort", "tasks", "kernel", "odd")
#: What a caller need not be told of: the acknowledgement was found again.
SILENT = ("after",)


@pytest.fixture
def seeds(crash_form: str) -> int:
    """Orders of what is ready at once, for each fault."""
    return 10 if crash_form == "full" else 1


@pytest.fixture
def tell(record_property) -> Any:
    """Counts the faults."""

    def tell(runs: list[Weathered]) -> list[Weathered]:
        record_property("crash: storage faults", sum(run.struck for run in runs))
        return runs

    return tell


def every_n(variant: str, how: How, seeds: int, **more: Any) -> Iterator[Weathered]:
    """A run for each write that there is to fail, ending with one that has fewer."""
    for at in count(1):
        for seed in range(seeds):
            weathered = weather(variant, how, at, seed=1000 * at + seed, **more)
            yield weathered
            if not weathered.struck:
                return


def complaints(runs: list[Weathered]) -> list[str]:
    return [f"write {run.at}: {each}" for run in runs for each in run.wrong]


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_survives_a_fault_of_every_write(variant, how, seeds, tell):
    runs = tell(list(every_n(variant, how, seeds)))

    assert complaints(runs) == []
    assert len(runs) > 12


@pytest.mark.parametrize("times", [2, 6])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_full_disk_heals_by_itself_at_every_write(variant, times, seeds, tell):
    runs = tell(list(every_n(variant, "full", seeds, times=times)))

    assert complaints(runs) == []
    # Never by a restart: only where the session was just being opened there is none to heal.
    assert max(run.lives for run in runs if run.at > 2) == 1


@pytest.mark.parametrize("how", ["lost", "after", "refused"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_refusals_in_a_row_need_no_restart(variant, how, seeds, tell):
    runs = tell(list(every_n(variant, how, seeds, times=3)))

    assert complaints(runs) == []
    assert max(run.lives for run in runs if run.at > 4) == 1


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_of_handing_in_is_no_loss(how, seeds, tell):
    runs = tell(list(every_n("tasks", how, seeds, op="hand_in")))

    assert complaints(runs) == []
    assert runs[0].struck


@pytest.mark.parametrize("how", ["full", "poison", "poison_after"])
def test_no_effect_starts_while_nothing_can_be_recorded(how):
    runs = list(every_n("plain", how, 4, times=6 if how == "full" else 1))

    assert [each for run in runs for each in run.early] == []
