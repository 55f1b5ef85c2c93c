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


def named(scenarios: dict[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("command", scenarios.values(), ids=scenarios.keys())


@named(LEAVING)
def test_a_call_returns_with_its_shell_and_says_what_it_ended(
    harness: Start, processes: Any, command: str
) -> None:
    running = harness(command)
    running.until_output("ready")
    said = time.monotonic()

    ended = running.until("exit")

    assert time.monotonic() - said < 2.0  # 0.5 s and a busy machine
    assert ended["code"] == 0
    assert len(ended["running"]) >= 1
    assert ended["stuck"] == []
    assert running.child.wait(grace=0.0).left == ()
    assert processes.alive() == set()


@named(STAYING)
def test_a_time_limit_ends_everything(harness: Start, processes: Any, command: str) -> None:
    running = harness(command, timeout=0.5, grace=0.2)
    running.until("started")
    began = time.monotonic()

    ended = running.until("exit")

    assert time.monotonic() - began < 0.5 + 0.2 + 0.5 + 1.5
    assert ended["timed_out"]
    assert ended["code"] in {128 + 15, 128 + 9}
    assert ended["stuck"] == []
    assert "ready" in running.output
    assert running.child.wait(grace=0.0).left == ()
    assert processes.alive() == set()


@named(STAYING)
def test_cancelling_the_call_ends_everything_before_it_is_acknowledged(
    harness: Start, processes: Any, command: str
) -> None:
    running = harness(command, grace=0.2, cancel=True)
    running.until("cancelled")

    assert running.child.wait(grace=0.0).left == ()
    assert processes.alive() == set()


@named(LEAVING | STAYING)
def test_sigkill_of_the_harness_leaves_nothing(harness: Start, processes: Any, command: str) -> None:
    running = harness(command + "; sleep 300")
    running.until_output("ready")

    running.child.kill()

    assert running.child.wait(grace=5.0).left == ()
    assert processes.wait_gone(5.0) == set()
