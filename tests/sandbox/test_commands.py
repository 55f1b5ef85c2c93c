"""Commands in the local sandbox by the strategy that is taken here; the contract has what holds for each of them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import SandboxError
from perdure.sandbox import Exit
from perdure.sandboxes.local import LocalSandbox

pytestmark = pytest.mark.anyio


async def ran(sandbox: LocalSandbox, command: str, *, timeout: float = 20, **more: Any) -> tuple[Exit, bytes]:
    pieces: list[bytes] = []
    ended = await sandbox.run(command, timeout=timeout, output=pieces.append, **more)
    return ended, b"".join(pieces)


async def test_both_streams_arrive_in_order_with_the_exit_code(sandbox: LocalSandbox) -> None:
    ended, output = await ran(sandbox, "echo one; echo two >&2; echo three; exit 42")

    assert output == b"one\ntwo\nthree\n"
    assert ended.code == 42


@pytest.mark.parametrize(
    "command, code",
    [
        ("kill $$; echo lives", 143),
        ("kill -9 $$", 137),
        ("sh -c 'kill -9 $$'", 137),
        ("no-such-command-here", 127),
        ("exit 300", 44),
        ("if", 2),
    ],
)
async def test_every_end_has_the_code_that_a_shell_gives_it(sandbox: LocalSandbox, command: str, code: int) -> None:
    ended, output = await ran(sandbox, command)

    assert ended.code == code
    assert b"lives" not in output


@pytest.mark.parametrize(
    "command", ["read line", "cat", "python3 -c 'input()'", "python3 -c 'import getpass; getpass.getpass()'"]
)
async def test_whoever_reads_standard_input_is_at_its_end_at_once(sandbox: LocalSandbox, command: str) -> None:
    ended, _ = await ran(sandbox, command, timeout=15)

    assert not ended.timed_out


async def test_there_is_no_terminal_to_ask_at(sandbox: LocalSandbox) -> None:
    _, output = await ran(sandbox, "cat < /dev/tty && echo opened")

    assert b"No such device" in output
    assert b"opened" not in output


@pytest.mark.parametrize("command", ["git commit", "git commit --amend"])
async def test_what_would_open_an_editor_fails_or_goes_on_at_once(sandbox: LocalSandbox, command: str) -> None:
    await ran(sandbox, "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first")

    ended, _ = await ran(sandbox, f"git config user.name a; git config user.email a@b; echo > f; git add f; {command}")

    assert not ended.timed_out


# -- surroundings -------------------------------------------------------------------------------


@pytest.mark.parametrize("cwd, message", [("nowhere", "nowhere is no directory"), ("/", "outside of")])
async def test_a_command_cannot_run_elsewhere(sandbox: LocalSandbox, cwd: str, message: str) -> None:
    with pytest.raises(SandboxError, match=message):
        await ran(sandbox, "pwd", cwd=cwd)


async def test_secrets_of_the_harness_are_not_handed_on(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "one")
    monkeypatch.setenv("GITHUB_TOKEN", "two")
    monkeypatch.setenv("HARMLESS", "three")

    _, output = await ran(
        sandbox, "echo [$SOME_API_KEY] [$GITHUB_TOKEN] [$HARMLESS] [$GIVEN_TOKEN]", env={"GIVEN_TOKEN": "4"}
    )

    assert output == b"[] [] [three] [4]\n"


@pytest.mark.parametrize(
    "command, message",
    [
        ("echo " + "x" * 140_000, "write it into a file"),
        ("echo \0", "cannot be started"),
        ("echo \ud835", "cannot be started"),
    ],
    ids=["too long", "NUL", "surrogate"],
)
async def test_a_command_that_no_system_takes_is_an_error_with_its_reason(
    sandbox: LocalSandbox, command: str, message: str
) -> None:
    with pytest.raises(SandboxError, match=message):
        await ran(sandbox, command)


async def test_a_command_runs_as_well_on_a_loop_in_another_thread(sandbox: LocalSandbox) -> None:
    found: list[Exit] = []

    def thread() -> None:
        found.append(asyncio.run(ran(sandbox, "echo x"))[0])

    other = threading.Thread(target=thread)
    other.start()
    other.join(20)

    assert [each.code for each in found] == [0]


# -- ends ---------------------------------------------------------------------------------------


async def test_a_call_that_was_cancelled_before_it_began_starts_nothing(sandbox: LocalSandbox) -> None:
    running = asyncio.ensure_future(ran(sandbox, "touch started"))
    await asyncio.sleep(0)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert not (Path(sandbox.root) / "started").exists()


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8, 13])
async def test_a_call_can_be_cancelled_at_any_turn_of_the_loop(
    sandbox: LocalSandbox, processes: Any, turns: int
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    running = asyncio.ensure_future(ran(sandbox, "sleep 300; true"))
    for _ in range(turns):
        ready = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, ready.set_result, None)
        await ready
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes.alive() == set()
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the guard's pipe


@pytest.mark.slow
async def test_cancelling_again_neither_hastens_nor_breaks_the_ending(tmp_path: Path, processes: Any) -> None:
    sandbox = LocalSandbox(tmp_path, grace=0.3)
    spoke = asyncio.Event()
    command = "trap '' TERM; echo ready; sleep 300"
    running = asyncio.ensure_future(sandbox.run(command, timeout=20, output=lambda _: spoke.set()))
    await spoke.wait()

    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running

    assert processes.alive() == set()
    await sandbox.close()


@pytest.mark.slow
def test_a_loop_that_is_shut_down_leaves_nothing(tmp_path: Path, processes: Any) -> None:
    sandbox = LocalSandbox(tmp_path)

    async def main() -> None:
        spoke = asyncio.Event()
        forgotten = sandbox.run("echo x; sleep 300; true", timeout=300, output=lambda _: spoke.set())
        main.task = asyncio.ensure_future(forgotten)  # type: ignore[attr-defined]
        await spoke.wait()

    asyncio.run(main())

    assert processes.wait_gone(5) == set()


@pytest.mark.slow
async def test_a_process_has_two_seconds_between_sigterm_and_sigkill(sandbox: LocalSandbox) -> None:
    began = time.monotonic()

    ended, output = await ran(sandbox, "trap 'echo asked' TERM; while :; do sleep 0.05; done", timeout=0.5)

    assert 2.4 < time.monotonic() - began < 4.5
    assert ended.code == 137
    assert ended.timed_out
    assert b"asked\n" in output


async def test_where_commands_have_a_proc_of_their_own_the_processes_of_the_machine_are_out_of_sight(
    sandbox: LocalSandbox,
) -> None:
    """And with them the environment of the harness, which has its keys."""
    isolation = await sandbox.isolation()
    if "+proc" not in isolation and "bwrap" not in isolation:
        pytest.skip("the strategy that is taken here shows the processes of the machine")

    _, output = await ran(sandbox, "cat /proc/[0-9]*/comm")

    assert set(output.split()) <= {b"sh", b"bash", b"cat"}
