"""The table of processes: what belongs to a command."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.sandboxes import table
from perdure.sandboxes.table import Process, belonging, parse_stat

TAIL = "S 1 20 30 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 2813952 199 18446744073709551615 1 1"


@given(st.text(st.characters(codec="utf-8"), max_size=15))
def test_a_process_may_have_any_name(name: str) -> None:
    assert parse_stat(f"10 ({name}) {TAIL}".encode()) == Process(10, 1, 20, 30, "S", 4711)


def row(pid: int, parent: int = 1, group: int = 0, session: int = 0) -> Process:
    return Process(pid, parent, group or pid, session or pid, "S", 1)


def pids(rows: list[Process]) -> list[int]:
    return [each.pid for each in rows]


def test_group_and_session_belong() -> None:
    rows = [row(5), row(6, group=5, session=5), row(7, session=5), row(8)]

    assert pids(belonging(rows, 5, [])) == [5, 6, 7]


def test_descendants_of_those_belong_in_any_order_and_wherever_they_went() -> None:
    rows = [row(9, parent=8), row(8, parent=6), row(6, group=5), row(10)]

    assert pids(belonging(rows, 5, [])) == [9, 8, 6]


def test_the_marked_and_their_descendants_belong_without_any_group() -> None:
    rows = [row(5), row(8), row(9, parent=8)]

    assert pids(belonging(rows, None, [8])) == [8, 9]


def test_a_signal_is_not_sent_to_another_process_with_the_same_pid() -> None:
    child = subprocess.Popen(["sleep", "300"])
    try:
        there = table.process(child.pid)
        assert there is not None

        table.send(there._replace(started=there.started + 1), signal.SIGKILL)
        assert child.poll() is None

        table.send(there, signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


def test_a_process_that_is_gone_is_none() -> None:
    assert table.process(2**22 + 1) is None
    assert not table.carries(2**22 + 1, "x")


def test_this_process_is_in_the_table() -> None:
    assert os.getpid() in pids(table.processes())


@pytest.mark.parametrize("patience", [0.0, 0.05])
def test_where_there_is_no_table_the_group_is_killed(monkeypatch: pytest.MonkeyPatch, patience: float) -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 300 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        monkeypatch.setattr(table, "PROC", "/no/such/table")

        left = table.Brood(child.pid, "no mark", 0).kill({}, patience=patience, limit=0.2)

        assert left == set()
        assert child.wait(10) == -signal.SIGKILL
        assert child.stdout.read() == b""  # the job had it too


def test_where_there_is_no_table_a_group_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    child.wait()
    monkeypatch.setattr(table, "PROC", "/no/such/table")

    assert table.Brood(child.pid, "no mark", 0).kill({}, patience=60, limit=60) == set()
