"""Points to crash at: written, read, counted, and met by real children."""

import sys
from pathlib import Path

import apsw
import pytest

from perdure.errors import UsageError
from perdure.telemetry import Telemetry
from perdure.testing.crash import (
    VARIABLE,
    ChildFailed,
    Point,
    count_points,
    for_each_point,
    install_from_environment,
    kill_at,
    parse_point,
)
from perdure.testing.processes import Exit, run_child

WORKLOAD = Path(__file__).parents[1] / "crash" / "workload.py"
ROWS = 6


def command(path: Path, synchronous: str = "full") -> list[str]:
    return [sys.executable, str(WORKLOAD), str(path), synchronous, str(ROWS)]


def rows(path: Path) -> int:
    """How many rows a database has after a restart."""
    connection = apsw.Connection(str(path))
    try:
        return connection.execute("select count(*) from row").get
    finally:
        connection.close()


# -- real children -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_child_is_killed_at_a_write(tmp_path):
    exit = run_child(command(tmp_path / "x.db"), Point("write", 12, "torn").environment(), grace=0.0)

    assert exit.killed
    assert exit.lines == ["ack 1"]
    assert rows(tmp_path / "x.db") == 1


@pytest.mark.slow
def test_a_child_is_killed_at_an_event(tmp_path):
    exit = run_child(command(tmp_path / "x.db"), Point("workload.acknowledged", 4).environment(), grace=0.0)

    assert exit.killed
    assert exit.lines == ["ack 1", "ack 2", "ack 3", "ack 4"]
    assert rows(tmp_path / "x.db") == 4


@pytest.mark.slow
def test_a_machine_loses_power_at_an_event_and_with_it_what_was_not_synced(tmp_path):
    point = Point("workload.acknowledged", 2, "drop")

    durable = run_child(command(tmp_path / "full.db"), point.environment(), grace=0.0)
    hasty = run_child(command(tmp_path / "normal.db", "normal"), point.environment(), grace=0.0)

    assert durable.lines == hasty.lines == ["ack 1", "ack 2"]
    assert rows(tmp_path / "full.db") == 2
    with pytest.raises(apsw.SQLError, match="no such table"):
        rows(tmp_path / "normal.db")


@pytest.mark.slow
def test_points_are_counted_the_same_each_time(tmp_path):
    counts = [count_points(command(tmp_path / f"{number}.db")) for number in range(2)]

    assert counts[0] == counts[1]
    assert counts[0].writes > 2 * ROWS
    assert counts[0].syncs >= ROWS


@pytest.mark.slow
def test_a_child_that_fails_by_itself_is_told_with_its_standard_error(tmp_path):
    def start(point: Point) -> Exit:
        return run_child([sys.executable, "-c", "raise SystemExit('no store here')"], point.environment(), grace=0.0)

    with pytest.raises(ChildFailed, match=r"write:1:before:1.*exit code 1(?s:.*)no store here"):
        list(for_each_point(start, "write"))


def test_the_numbers_of_points_can_be_sampled_and_bounded():
    exits = Exit(code=None, signal=9, stdout="", stderr="")

    points = [point for point, _ in for_each_point(lambda _: exits, "write", "any", first=2, step=3, last=9, seed=100)]

    assert points == [Point("write", at, "any", seed=100 + at) for at in (2, 5, 8)]


def test_points_that_do_not_kill_need_a_last_one():
    with pytest.raises(UsageError, match="count_points"):
        next(for_each_point(lambda _: pytest.fail("started"), "write", "error"))


@pytest.mark.parametrize(
    "text,point",
    [
        ("write:17:before", Point("write", 17, "before")),
        ("sync:3:any:42", Point("sync", 3, "any", 42)),
        ("perdure.task.begun:2:before", Point("perdure.task.begun", 2, "before")),
    ],
)
def test_a_point_is_read_from_text(text, point):
    assert parse_point(text) == point
    assert parse_point(str(point)) == point


@pytest.mark.parametrize("text", ["write", "write:0:before", "write:x:before", "write:1:sideways", "some.event:1:torn"])
def test_a_wrong_point_is_told(text):
    with pytest.raises(UsageError, match=text):
        parse_point(text)


def test_without_the_variable_the_store_is_opened_as_usual():
    assert install_from_environment(environment={}) is None


def test_an_event_needs_telemetry():
    with pytest.raises(UsageError, match="no telemetry"):
        install_from_environment(environment={VARIABLE: "some.event:1:before"})


def test_an_action_is_done_at_the_nth_event_of_a_name():
    telemetry, done = Telemetry(), []
    kill_at(telemetry, "thing", 3, lambda: done.append("killed"))

    for name in ("thing", "other", "thing"):
        telemetry.emit(name)
    early = list(done)
    telemetry.emit("thing")
    telemetry.emit("thing")

    assert (early, done) == ([], ["killed"])


def test_two_kills_can_wait_on_one_bus():
    telemetry, done = Telemetry(), []
    kill_at(telemetry, "one", 1, lambda: done.append("one"))
    kill_at(telemetry, "two", 1, lambda: done.append("two"))

    telemetry.emit("two")
    telemetry.emit("one")

    assert done == ["two", "one"]
