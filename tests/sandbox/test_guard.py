"""The guard of process groups: what happens to commands when the process that ran them is gone (I74)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from perdure.sandboxes.guard import Guard
from perdure.sandboxes.local import LocalSandbox, Started
from perdure.testing import processes as kit

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Start = Callable[..., Any]


def guards(records: Iterable[Started]) -> list[kit.Process]:
    """The guards of commands: the mark of a command begins with its guard's."""
    prefixes = tuple({record.mark.rpartition(".")[0] + "." for record in records})
    return [each for each in kit.processes() if is_guard(each.pid, prefixes)]


def is_guard(pid: int, prefixes: tuple[str, ...]) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return False
    return "perdure-guard" in command and command.rstrip("\0").endswith(prefixes)


def started(harness: Any) -> Started:
    return Started(**harness.until("started")["it"])


def end(process: kit.Process, wait_end: Callable[[int, float], bool]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    assert wait_end(process.pid, 5)


async def test_one_guard_serves_all_commands_of_a_sandbox(tmp_path: Path, processes: Any, wait_end: Any) -> None:
    records: list[Started] = []
    sandbox = LocalSandbox(tmp_path, isolation="pgroup", on_start=records.append)
    for _ in range(3):
        await sandbox.run("true", timeout=20, output=lambda _: None)

    (guard,) = guards(records)
    assert guard.parent == 1  # nobody's zombie
    assert guard.session not in {os.getsid(0), os.getpid()}  # no signal of our terminal reaches it
    assert os.readlink(f"/proc/{guard.pid}/cwd") == "/"  # no directory is held

    await sandbox.close()
    assert wait_end(guard.pid, 5)


async def test_sandboxes_can_share_a_guard(tmp_path: Path, processes: Any) -> None:
    records: list[Started] = []
    guard = Guard()
    for _ in range(2):
        sandbox = LocalSandbox(tmp_path, isolation="pgroup", guard=guard, on_start=records.append)
        await sandbox.run("true", timeout=20, output=lambda _: None)

    assert len(guards(records)) == 1
    assert len({record.mark for record in records}) == 2
    guard.close()


async def test_the_guard_of_a_forgotten_sandbox_goes(tmp_path: Path, processes: Any, wait_end: Any) -> None:
    records: list[Started] = []
    sandbox = LocalSandbox(tmp_path, isolation="pgroup", on_start=records.append)
    await sandbox.run("true", timeout=20, output=lambda _: None)
    (guard,) = guards(records)

    del sandbox
    gc.collect()

    assert wait_end(guard.pid, 5)


async def test_a_guard_that_was_killed_is_replaced_and_knows_what_runs(
    tmp_path: Path, processes: Any, wait_end: Any
) -> None:
    records: list[Started] = []
    guard = Guard()
    spoke, told = asyncio.Event(), asyncio.Event()

    def on_start(record: Started) -> None:
        records.append(record)
        told.set()

    sandbox = LocalSandbox(tmp_path, isolation="pgroup", guard=guard, on_start=on_start)
    running = asyncio.ensure_future(sandbox.run("echo; sleep 300; true", timeout=60, output=lambda _: spoke.set()))
    await spoke.wait()
    await told.wait()
    end(guards(records)[0], wait_end)

    ended = await sandbox.run("true", timeout=20, output=lambda _: None)

    assert ended.code == 0
    assert len(guards(records)) == 1
    guard.close()  # which is what it sees when we die
    assert (await running).code == 137
    assert processes.wait_gone(5) == set()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_however_the_harness_dies_its_command_dies(harness: Start, wait_end: Any, sign: signal.Signals) -> None:
    running = harness("sleep 300 & echo ready; sleep 300; true", isolation="pgroup")
    record = started(running)
    running.until_ready()

    os.kill(running.child.pid, sign)

    assert running.child.wait(grace=5).left == ()
    assert wait_end(record.pid, 0)


async def test_a_group_kill_of_the_harness_does_not_reach_the_guard(harness: Start) -> None:
    running = harness("sleep 300 & echo ready; sleep 300; true", isolation="pgroup")
    running.until_ready()

    os.killpg(running.child.pid, signal.SIGKILL)

    assert running.child.wait(grace=5).left == ()


async def test_a_harness_inside_a_command_is_ended_with_it_and_so_is_what_it_runs(
    tmp_path: Path, processes: Any
) -> None:
    inner = tmp_path / "inner.py"
    inner.write_text(
        "import asyncio, sys\n"
        "from perdure.sandboxes.local import LocalSandbox\n"
        "command = 'setsid sleep 300 & echo ready; sleep 300'\n"
        "write = lambda piece: sys.stdout.write(piece.decode()) and sys.stdout.flush()\n"
        "asyncio.run(LocalSandbox('.', isolation='pgroup').run(command, timeout=60, output=write))\n"
    )
    sandbox = LocalSandbox(tmp_path, isolation="pgroup", grace=0.0)
    spoke = asyncio.Event()
    running = asyncio.ensure_future(sandbox.run(f"{sys.executable} {inner}", timeout=60, output=lambda _: spoke.set()))
    await asyncio.wait_for(spoke.wait(), 20)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert processes.wait_gone(5) == set()
    await sandbox.close()


# -- what a guard could not do: it is found when the next process begins ----------------------------


@pytest.fixture
def left(harness: Start, wait_end: Any) -> Callable[[str], str]:
    """A command that its harness and its guard left behind: its isolation, as an intent has recorded it."""

    def leave(command: str) -> str:
        running = harness(command, isolation="pgroup")
        record, isolation = started(running), running.until("isolation")["it"]
        running.until_ready()
        end(guards([record])[0], wait_end)
        running.child.kill()
        assert wait_end(running.child.pid, 5)
        return isolation

    return leave


async def test_a_later_process_ends_what_was_left_before_it_runs_anything(
    tmp_path: Path, left: Callable[[str], str], processes: Any
) -> None:
    left("setsid sleep 300 & sleep 300 & echo ready; sleep 300; true")
    assert len(processes.alive()) == 4

    await LocalSandbox(tmp_path, isolation="pgroup").isolation()

    assert processes.wait_gone(5) == set()


@pytest.mark.parametrize("isolation", [None, "pgroup"])
async def test_an_interrupted_call_says_what_was_found_of_it_and_ended(
    tmp_path: Path, left: Callable[[str], str], processes: Any, isolation: str | None
) -> None:
    said = ""
    for _ in range(5):  # a sandbox of another test, that begins meanwhile, may be quicker: it sweeps the whole machine
        recorded = left("sleep 300 & echo ready; sleep 301; true")
        said = await LocalSandbox(tmp_path, isolation=isolation).interrupted(recorded)
        if "Nothing of it was found" not in said:
            break

    assert said.startswith("What it had started may still be running. Found now and killed: ")
    assert "sleep 300" in said
    assert "sleep 301" in said
    assert processes.wait_gone(5) == set()


async def test_commands_of_a_process_that_lives_are_left_alone(tmp_path: Path, harness: Start, processes: Any) -> None:
    running = harness("echo ready; sleep 300; true", isolation="pgroup")
    recorded = running.until("isolation")["it"]
    running.until_ready()
    alive = processes.alive()
    sandbox = LocalSandbox(tmp_path, isolation="pgroup")

    await sandbox.isolation()
    said = await sandbox.interrupted(recorded)

    assert "still lives: what it had started may still run" in said
    assert alive <= processes.alive()
