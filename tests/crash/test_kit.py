"""The kit judged by SQLite alone: children killed at its writes and syncs, and machines that lose power there.

The workload is one numbered row per transaction, each acknowledged when it is durable.
The short form takes a sample of the points, the full one all of them.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.testing.crash import Point, count_points, for_each_point
from perdure.testing.processes import Exit, run_child

WORKLOAD = Path(__file__).with_name("workload.py")
ROWS = 12


def command(path: Path, synchronous: str = "full") -> list[str]:
    return [sys.executable, str(WORKLOAD), str(path), synchronous, str(ROWS)]


def acknowledged(exit: Exit) -> int:
    """How many rows the child said were durable."""
    return sum(line.startswith("ack ") for line in exit.lines)


def kept(path: Path) -> list[int]:
    """The rows after a restart; the database must be healthy."""
    connection = apsw.Connection(str(path))
    try:
        assert connection.pragma("integrity_check") == "ok"
        if not connection.execute("select 1 from sqlite_schema where name = 'row'").fetchall():
            return []
        return [n for (n,) in connection.execute("select n from row order by n")]
    finally:
        connection.close()


def survey(tmp_path: Path, on: str, action: Any, synchronous: str = "full", first: int = 1, step: int = 1):
    """(acknowledged, kept) for each point; what is kept must be a prefix."""
    results: list[tuple[int, int]] = []
    ends: list[Exit] = []
    numbers = itertools.count()

    def start(point: Point) -> Exit:
        return run_child(command(tmp_path / f"{next(numbers)}.db", synchronous), point.environment(), grace=0.0)

    for number, (_, exit) in enumerate(for_each_point(start, on, action, first=first, step=step)):
        rows = kept(tmp_path / f"{number}.db")
        assert rows == list(range(1, len(rows) + 1))
        results.append((acknowledged(exit), len(rows)))
        ends.append(exit)
    assert [exit.killed for exit in ends] == [True] * (len(ends) - 1) + [False]
    return results


def nothing_acknowledged_is_lost(results: list[tuple[int, int]]) -> bool:
    """Each run kept what was acknowledged, and at most the one transaction that was under way."""
    return all(said <= held <= said + 1 for said, held in results)


@pytest.fixture
def step(crash_form: str) -> int:
    """Every how manieth point is taken."""
    return 1 if crash_form == "full" else 11


# -- the process dies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "on,action", [("write", "before"), ("write", "after"), ("write", "torn"), ("sync", "before"), ("sync", "after")]
)
def test_a_kill_at_a_write_or_sync_loses_nothing_acknowledged(tmp_path, step, on, action):
    counts = count_points(command(tmp_path / "counted.db"))
    points = counts.writes if on == "write" else counts.syncs

    results = survey(tmp_path, on, action, step=step)

    assert nothing_acknowledged_is_lost(results)
    assert results[-1] == (ROWS, ROWS)
    assert len(results) == len(range(1, points + 1, step)) + 1


# -- the machine dies ---------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["write", "sync"])
@pytest.mark.parametrize("keep", ["drop", "prefix", "any"])
def test_a_power_loss_loses_nothing_acknowledged(tmp_path, step, on, keep):
    assert nothing_acknowledged_is_lost(survey(tmp_path, on, keep, step=step))


@pytest.mark.parametrize("keep", ["drop", "prefix"])
def test_a_power_loss_without_syncs_does_lose_what_was_acknowledged(tmp_path, keep):
    # The proof that the test above can fail. Whatever is left need not even be a database.
    path = tmp_path / "x.db"

    exit = run_child(command(path, "off"), Point("write", 40, keep, seed=3).environment(), grace=0.0)

    try:
        rows = len(kept(path))
    except (apsw.Error, AssertionError):
        rows = 0
    assert exit.killed
    assert acknowledged(exit) > rows + 1


def test_a_kill_without_syncs_loses_nothing(tmp_path, step):
    # What the process wrote, the kernel has.
    assert nothing_acknowledged_is_lost(survey(tmp_path, "write", "torn", "off", step=step))


def test_syncing_only_before_checkpoints_loses_the_newest_but_keeps_the_order(tmp_path, step):
    results = survey(tmp_path, "write", "any", "normal", first=17, step=step)

    # `survey` has checked that what is kept is a prefix.
    assert any(held < said for said, held in results)
    assert all(held <= said + 1 for said, held in results)
