"""Commands in the local sandbox: what they get, what they print, how they end."""

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


async def test_a_broken_pipe_ends_a_writer_silently(sandbox: LocalSandbox) -> None:
    _, output = await ran(sandbox, "yes | head -1")

    assert output == b"y\n"


async def test_output_that_is_no_text_arrives_byte_for_byte(sandbox: LocalSandbox) -> None:
    _, output = await ran(sandbox, "head -c 300000 /dev/urandom | tee noise")

    assert output == (Path(sandbox.root) / "noise").read_bytes()
    assert len(output) == 300_000


async def test_output_arrives_while_the_command_runs(sandbox: LocalSandbox) -> None:
    seen: list[bytes] = []
    there = asyncio.Event()

    def output(piece: bytes) -> None:
        seen.append(piece)
        there.set()

    running = asyncio.ensure_future(sandbox.run("mkfifo gate; echo early; cat gate", timeout=20, output=output))
    await there.wait()
    assert seen == [b"early\n"]
    (Path(sandbox.root) / "gate").write_bytes(b"late\n")

    assert (await running).code == 0
    assert b"".join(seen) == b"early\nlate\n"


# -- surroundings -------------------------------------------------------------------------------


async def test_a_command_runs_in_the_root_or_in_a_directory_below_it(sandbox: LocalSandbox) -> None:
    (Path(sandbox.root) / "below").mkdir()

    assert (await ran(sandbox, "pwd"))[1].decode().strip() == sandbox.root
    assert (await ran(sandbox, "pwd", cwd="below"))[1].decode().strip() == f"{sandbox.root}/below"


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


async def test_no_descriptor_of_the_harness_is_handed_on(sandbox: LocalSandbox) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        _, output = await ran(sandbox, "ls -1 /proc/$$/fd; true")
        assert output.split() == [b"0", b"1", b"2"]
    finally:
        os.close(reader)
        os.close(writer)


async def test_a_run_gives_back_every_descriptor(sandbox: LocalSandbox) -> None:
    await ran(sandbox, "true")
    before = len(os.listdir("/proc/self/fd"))

    await asyncio.gather(*(ran(sandbox, "echo x; sleep 0.05 &") for _ in range(5)))
    with pytest.raises(SandboxError):
        await ran(sandbox, "x" * 140_000)

    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_command_runs_as_well_on_a_loop_in_another_thread(sandbox: LocalSandbox) -> None:
    found: list[Exit] = []

    def thread() -> None:
        found.append(asyncio.run(ran(sandbox, "echo x"))[0])

    other = threading.Thread(target=thread)
    other.start()
    other.join(20)

    assert [each.code for each in found] == [0]


# -- ends ---------------------------------------------------------------------------------------


async def test_an_output_that_raises_ends_the_command_and_is_raised(sandbox: LocalSandbox, processes: Any) -> None:
    def output(piece: bytes) -> None:
        raise RuntimeError(f"full after {piece!r}")

    with pytest.raises(RuntimeError, match="full after"):
        await sandbox.run("echo x; sleep 300", timeout=20, output=output)

    assert processes.alive() == set()


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


@pytest.mark.slow
async def test_jobs_have_the_same_time_when_their_shell_obeys_at_once(sandbox: LocalSandbox) -> None:
    job = "(trap 'sleep 0.3; echo cleaned up; exit' TERM; echo ready; while :; do sleep 0.05; done) &"

    ended, output = await ran(sandbox, f"{job} wait", timeout=0.5)

    assert ended.timed_out
    assert b"cleaned up\n" in output


async def test_the_other_end_of_a_pipe_may_finish(sandbox: LocalSandbox) -> None:
    _, output = await ran(sandbox, "echo x > >(sleep 0.03; cat)")

    assert output == b"x\n"


# -- floods (I75) -------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
async def test_a_gibibyte_passes_without_filling_the_memory_or_starving_the_loop(sandbox: LocalSandbox) -> None:
    total = 0
    lags: list[float] = []
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def count(piece: bytes) -> None:
        nonlocal total
        total += len(piece)
        if total % 2**24 < len(piece):
            peaks.append(resident())

    def tick(planned: float) -> None:
        lags.append(loop.time() - planned)
        if not over.is_set():
            loop.call_at(loop.time() + 0.005, tick, loop.time() + 0.005)

    peaks: list[int] = []
    before = resident()
    tick(loop.time())
    ended = await sandbox.run("head -c 1G /dev/zero", timeout=60, output=count)
    over.set()

    assert ended.code == 0
    assert total == 1 << 30
    assert max(peaks) - before < 16 * 2**20
    assert sorted(lags)[len(lags) * 99 // 100] < 0.05


@pytest.mark.slow
async def test_a_time_limit_is_kept_under_a_flood(sandbox: LocalSandbox) -> None:
    began = time.monotonic()

    ended = await sandbox.run("yes", timeout=0.5, output=lambda _: None)

    assert ended.timed_out
    assert time.monotonic() - began < 2


@pytest.mark.slow
async def test_many_single_bytes_pass(sandbox: LocalSandbox) -> None:
    code = "import os\nfor _ in range(200_000): os.write(1, b'x')"

    _, output = await ran(sandbox, f'python3 -c "{code}"')

    assert output == b"x" * 200_000
