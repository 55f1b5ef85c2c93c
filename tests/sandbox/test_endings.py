"""Whatever a command leaves running, and however the call ends, nothing of it lives on (I23, I72, I73, I74)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

#: Each says "ready" once everything that it starts runs.
DOUBLE_FORK = """python3 -c '
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"ready\\n")
        time.sleep(300)
    os._exit(0)
os.wait()
'"""
LEAVING: dict[str, str] = {
    "a job that holds the pipe": "sleep 300 & echo ready",
    "a silent job": "sleep 300 >/dev/null 2>&1 & echo ready",
    "a job that ignores hang-up": "nohup sleep 300 & disown; echo ready",
    "a job in a session of its own": "setsid sleep 300 & echo ready",
    "a job that ignores SIGTERM": "(trap '' TERM; sleep 300) & echo ready",
    "a job that floods the pipe": "echo ready; (yes &)",
    "a daemon that forked twice": DOUBLE_FORK,
    "a server": "nohup python3 -m http.server 0 --bind 127.0.0.1 >/dev/null & echo ready",
}
STAYING: dict[str, str] = {
    "a child": "echo ready; sleep 300; true",
    "a command that ignores SIGTERM": "trap '' TERM; echo ready; sleep 300",
    "a shell that waits for a job": "trap '' TERM; sleep 300 & echo ready; wait",
    "a job in another session": "setsid bash -c 'trap \"\" TERM; echo ready; sleep 300' & sleep 300",
    "a job that respawns": "echo ready; while :; do (setsid sleep 300 &); sleep 0.02; done",
    "time-out, told to ignore": "echo ready; timeout 300 bash -c 'trap \"\" TERM; sleep 300 & wait'",
}

Start = Callable[..., Any]
pytestmark = pytest.mark.slow


def test_a_call_returns_with_its_shell_and_says_what_it_ended(harness: Start, processes: Any) -> None:
    running = harness(LEAVING)
    running.until_ready()
    said = time.monotonic()

    ended = running.until("exit")

    assert time.monotonic() - said < 0.5 + 3.0  # on a busy machine
    assert {name: each["code"] for name, each in ended.items()} == dict.fromkeys(LEAVING, 0)
    assert [name for name, each in ended.items() if not each["running"] or each["stuck"]] == []
    assert running.child.wait(grace=0.0).left == ()
    assert processes.alive() == set()


def test_a_time_limit_ends_everything(harness: Start, processes: Any) -> None:
    running = harness(STAYING, timeout=1.5, grace=0.2)
    running.until("started")
    began = time.monotonic()

    ended = running.until("exit")

    assert time.monotonic() - began < 1.5 + 0.2 + 0.5 + 3.0
    assert [name for name, each in ended.items() if not each["timed_out"] or each["stuck"]] == []
    assert {each["code"] for each in ended.values()} == {128 + 15, 128 + 9}
    assert running.child.wait(grace=0.0).left == ()
    assert processes.alive() == set()


def test_cancelling_the_call_ends_everything_before_it_is_acknowledged(harness: Start, processes: Any) -> None:
    running = harness(
        {name: f"{command}; sleep 300" for name, command in (LEAVING | STAYING).items()}, grace=0.2, cancel=True
    )
    running.until("cancelled")

    assert running.child.wait(grace=0.0).left == ()
    assert processes.alive() == set()


def test_sigkill_of_the_harness_leaves_nothing(harness: Start, processes: Any) -> None:
    running = harness({name: f"{command}; sleep 300" for name, command in (LEAVING | STAYING).items()})
    running.until_ready()

    running.child.kill()

    assert running.child.wait(grace=10.0).left == ()
    assert processes.wait_gone(5.0) == set()
