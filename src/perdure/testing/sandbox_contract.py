"""What every sandbox promises, as tests: inherit `SandboxContract` and give it a `sandbox` fixture."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from perdure.errors import FileChanged, SandboxError
from perdure.sandbox import Exit, Sandbox, Spill

#: What a call may take on top of what a command takes, on a busy machine.
BUSY = 3.0

#: Commands, and their exit codes as every shell gives them.
CODES = {
    "exit 42": 42,
    "no-such-command-here": 127,
    "exit 300": 44,
    "if": 2,
    "timeout 0.1 sleep 20": 124,
    "kill $$; echo lives": 143,
    "kill -9 $$": 137,
    "sh -c 'kill -9 $$'": 137,
    "python3 -c 'import os, signal; os.kill(os.getpid(), signal.SIGTERM)'": 143,
    "python3 -c 'import os; os.abort()'": 134,
    "true": 0,
}
#: A process group without group, session and parent of its command.
HIDDEN = "env -i setsid -f sh -c 'sleep 20'"


async def ran(sandbox: Sandbox, command: str, *, timeout: float = 20, **more: Any) -> tuple[Exit, bytes]:
    """How it ended, and what it printed."""
    pieces: list[bytes] = []
    ended = await sandbox.run(command, timeout=timeout, output=pieces.append, **more)
    return ended, b"".join(pieces)


class Heard:
    """Takes output, and tells when something came that was waited for."""

    def __init__(self, until: bytes) -> None:
        self.printed = b""
        self._until = until
        self.come = asyncio.Event()

    def __call__(self, piece: bytes) -> None:
        self.printed += piece
        if self._until in self.printed:
            self.come.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self.come.wait(), 20)


@pytest.mark.anyio
class EndingLaws:
    """How commands end."""

    #: Whether all that a command started ends with it, however it hides.
    finds_all = True

    async def test_both_streams_arrive_in_order_with_the_exit_code(self, sandbox: Sandbox) -> None:
        ended, output = await ran(sandbox, "echo one; echo two >&2; echo three; exit 42")

        assert output == b"one\ntwo\nthree\n"
        assert (ended.code, ended.total_bytes) == (42, len(output))
        assert (ended.timed_out, ended.capped, ended.held, ended.running, ended.stuck) == (False, False, False, (), ())

    async def test_every_end_has_the_code_that_a_shell_gives_it(self, sandbox: Sandbox) -> None:
        ends = await asyncio.gather(*(ran(sandbox, command) for command in CODES))

        assert {command: ended.code for command, (ended, _) in zip(CODES, ends, strict=True)} == CODES
        assert not any(b"lives" in output for _, output in ends)

    async def test_a_code_above_128_names_its_signal(self, sandbox: Sandbox) -> None:
        assert (await ran(sandbox, "kill $$"))[0].signal == 15
        assert (await ran(sandbox, "exit 1"))[0].signal is None

    async def test_an_end_by_a_signal_adds_nothing_to_the_output(self, sandbox: Sandbox) -> None:
        assert (await ran(sandbox, "echo x; kill -9 $$"))[1] == b"x\n"

    async def test_what_outlives_the_shell_is_ended_and_named(self, sandbox: Sandbox) -> None:
        began = time.monotonic()

        ended, output = await ran(sandbox, "sleep 31 & nohup setsid sleep 32 & disown; sleep 0.1; echo done")

        assert time.monotonic() - began < 0.5 + BUSY
        assert output == b"done\n"
        assert ended.code == 0
        assert sorted(ended.running) == ["sleep 31", "sleep 32"]

    async def test_one_that_holds_the_output_does_not_hold_the_call(self, sandbox: Sandbox) -> None:
        began = time.monotonic()

        ended, output = await ran(sandbox, f"{HIDDEN}; echo done")

        assert time.monotonic() - began < 0.5 + BUSY
        assert output == b"done\n"
        assert ended.held is not self.finds_all

    async def test_the_other_end_of_a_pipe_may_finish(self, sandbox: Sandbox) -> None:
        assert (await ran(sandbox, "echo x > >(sleep 0.03; cat)"))[1] == b"x\n"

    async def test_a_time_limit_ends_it_and_keeps_what_it_printed(self, sandbox: Sandbox) -> None:
        ended, output = await ran(sandbox, "echo begun; sleep 300; echo not reached", timeout=0.3)

        assert ended.timed_out
        assert ended.code == 143
        assert output.startswith(b"begun\n")
        assert b"not reached" not in output
        assert ended.seconds >= 0.3

    async def test_a_process_is_asked_before_it_is_killed(self, sandbox: Sandbox) -> None:
        ended, output = await ran(
            sandbox, "trap 'echo asked; exit 7' TERM; echo begun; while :; do sleep 0.02; done", timeout=0.3
        )

        assert (ended.code, ended.timed_out) == (7, True)
        assert b"asked\n" in output

    async def test_jobs_have_the_same_time_when_their_shell_obeys_at_once(self, sandbox: Sandbox) -> None:
        job = "(trap 'sleep 0.3; echo cleaned up; exit' TERM; echo ready; while :; do sleep 0.05; done) &"

        ended, output = await ran(sandbox, f"{job} wait", timeout=0.5)

        assert ended.timed_out
        assert b"cleaned up\n" in output

    async def test_one_that_ignores_sigterm_is_killed(self, sandbox: Sandbox) -> None:
        ended, _ = await ran(sandbox, "trap '' TERM; sleep 300; sleep 300", timeout=0.2)

        assert (ended.code, ended.timed_out) == (137, True)

    async def test_one_that_is_stopped_is_ended(self, sandbox: Sandbox) -> None:
        ended, _ = await ran(sandbox, "kill -STOP $$; sleep 300", timeout=0.2)

        assert ended.timed_out

    async def test_a_cancelled_call_returns_when_its_command_has_ended(self, sandbox: Sandbox) -> None:
        heard = Heard(b"ready")
        command = "trap 'echo ended > ended; exit' TERM; echo ready; while :; do sleep 0.02; done"
        running = asyncio.ensure_future(sandbox.run(command, timeout=60, output=heard))
        await heard.wait()

        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert await sandbox.read("ended") == b"ended\n"

    async def test_a_command_that_prints_more_than_it_may_is_ended(self, sandbox: Sandbox) -> None:
        ended, output = await ran(sandbox, "yes", most=100_000)

        assert (ended.capped, ended.timed_out) == (True, False)
        assert len(output) == ended.total_bytes == 100_000

    async def test_an_output_that_raises_ends_the_command_and_is_raised(self, sandbox: Sandbox) -> None:
        def output(piece: bytes) -> None:
            raise RuntimeError(f"full after {piece!r}")

        with pytest.raises(RuntimeError, match="full after"):
            await sandbox.run("echo x; sleep 300", timeout=20, output=output)


@pytest.mark.anyio
class GivenLaws:
    """What commands get, and what becomes of their output."""

    @pytest.mark.parametrize("command", ["read line", "cat", "python3 -c 'input()'", "ls -l /proc/self/fd/0"])
    async def test_whoever_reads_standard_input_is_at_its_end_at_once(self, sandbox: Sandbox, command: str) -> None:
        ended, output = await ran(sandbox, command, timeout=15)

        assert not ended.timed_out
        assert ended.seconds < BUSY
        assert not output.startswith(b"l") or b"/dev/null" in output

    async def test_there_is_no_terminal_to_ask_at(self, sandbox: Sandbox) -> None:
        _, output = await ran(sandbox, "cat < /dev/tty && echo opened")

        assert b"No such device" in output
        assert b"opened" not in output

    async def test_a_broken_pipe_ends_a_writer_silently(self, sandbox: Sandbox) -> None:
        assert (await ran(sandbox, "yes | head -1"))[1] == b"y\n"

    async def test_output_arrives_byte_for_byte_while_the_command_runs(self, sandbox: Sandbox) -> None:
        heard = Heard(b"early")
        command = "echo early; until [ -e gate ]; do sleep 0.01; done; head -c 300000 /dev/urandom | tee noise"
        running = asyncio.ensure_future(sandbox.run(command, timeout=20, output=heard))
        await heard.wait()
        assert not running.done()
        await sandbox.write("gate", b"")

        assert (await running).code == 0
        assert heard.printed == b"early\n" + await sandbox.read("noise")

    async def test_a_command_runs_in_the_root_or_in_a_directory_below_it(self, sandbox: Sandbox) -> None:
        await sandbox.write("below/file", b"")

        assert (await ran(sandbox, "pwd"))[1].decode().strip() == sandbox.root
        assert (await ran(sandbox, "pwd", cwd="below"))[1].decode().strip() == f"{sandbox.root}/below"

    async def test_variables_are_given(self, sandbox: Sandbox) -> None:
        assert (await ran(sandbox, "echo $GIVEN $TERM", env={"GIVEN": "4"}))[1] == b"4 dumb\n"

    async def test_files_of_commands_are_the_users(self, sandbox: Sandbox) -> None:
        ended, output = await ran(sandbox, "echo x > made; id -u; stat -c %u made")

        assert ended.code == 0
        assert output.split() == [str(os.geteuid()).encode()] * 2

    async def test_no_descriptor_of_this_process_is_handed_on(self, sandbox: Sandbox) -> None:
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        try:
            _, output = await ran(sandbox, "ls -1 /proc/self/fd")
            assert output.split() == [b"0", b"1", b"2", b"3"]  # the last one is the directory
        finally:
            os.close(reader)
            os.close(writer)

    async def test_a_run_gives_back_every_descriptor(self, sandbox: Sandbox) -> None:
        await ran(sandbox, "true")
        before = len(os.listdir("/proc/self/fd"))

        await asyncio.gather(*(ran(sandbox, "echo x; sleep 0.05 &") for _ in range(5)))
        with pytest.raises(SandboxError):
            await ran(sandbox, "x" * 140_000)

        assert len(os.listdir("/proc/self/fd")) == before

    # -- too much output

    async def test_long_output_is_kept_in_a_file_that_can_be_read(self, sandbox: Sandbox) -> None:
        ended, output = await ran(sandbox, "seq 1 30000", spill=Spill(bytes=1000, lines=100))

        assert ended.spill is not None
        assert ended.spilled == ended.total_bytes == len(output)
        assert await sandbox.read(ended.spill) == output

    async def test_short_output_makes_no_file(self, sandbox: Sandbox) -> None:
        ended, _ = await ran(sandbox, "seq 1 90", spill=Spill(bytes=1000, lines=100))

        assert (ended.spill, ended.spilled) == (None, 0)

    async def test_the_file_has_the_beginning_of_what_is_too_much_for_it(self, sandbox: Sandbox) -> None:
        ended, output = await ran(sandbox, "seq 1 30000", spill=Spill(bytes=1000, lines=100, most=50_000))

        assert ended.spill is not None
        assert (ended.spilled, ended.total_bytes) == (50_000, len(output))
        assert await sandbox.read(ended.spill) == output[:50_000]


@pytest.mark.anyio
class BackgroundLaws:
    """Commands in the background."""

    async def test_a_command_in_the_background_can_be_read_while_it_runs(self, sandbox: Sandbox) -> None:
        heard = Heard(b"two")
        job = await sandbox.start("echo one; echo two; sleep 300", output=heard)
        await heard.wait()

        assert job.exit is None
        assert sandbox.background == {job.id: job}
        assert await job.read() == (0, b"one\ntwo\n")
        assert await job.read(4) == (4, b"two\n")
        assert await job.read(-4, 2) == (4, b"tw")
        assert await sandbox.read(job.path) == b"one\ntwo\n"
        assert job.total_bytes == 8

        ended = await job.stop()
        assert job.exit == ended
        assert ended.code == 143
        assert sandbox.background == {}
        assert await job.stop() == await job.wait() == ended
        assert await job.read() == (0, b"one\ntwo\n")

    async def test_a_command_in_the_background_ends_by_itself_or_by_its_limit(self, sandbox: Sandbox) -> None:
        short = await sandbox.start("exit 3")
        long = await sandbox.start("sleep 300", timeout=0.2)

        assert (await short.wait()).code == 3
        assert (await long.wait()).timed_out

    async def test_of_a_command_in_the_background_the_newest_output_is_kept(self, sandbox: Sandbox) -> None:
        job = await sandbox.start("seq 1 100000", keep=20_000)
        await job.wait()

        begin, kept = await job.read()
        assert 0 < len(kept) <= 20_000
        assert begin + len(kept) == job.total_bytes
        assert kept.endswith(b"\n100000\n")
        assert (await job.read(-7))[1] == b"100000\n"

    async def test_a_cancelled_wait_leaves_it_running(self, sandbox: Sandbox) -> None:
        job = await sandbox.start("sleep 300")
        waiting = asyncio.ensure_future(job.wait())
        await asyncio.sleep(0)

        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert job.exit is None
        await job.stop()

    async def test_closing_ends_all_that_runs(self, sandbox: Sandbox) -> None:
        heard, other = Heard(b"ready"), Heard(b"ready")
        running = asyncio.ensure_future(sandbox.run("echo ready; sleep 300; true", timeout=300, output=heard))
        job = await sandbox.start("echo ready; sleep 300; true", output=other)
        await heard.wait()
        await other.wait()

        await sandbox.close()

        assert (await running).code == 143
        assert (await job.wait()).code == 143
        with pytest.raises(SandboxError, match="no such file"):
            await sandbox.read(job.path)


@pytest.mark.anyio
class SandboxContract(EndingLaws, GivenLaws, BackgroundLaws):
    """The laws of the sandbox port."""

    #: Whether a command sees processes of the machine outside of it, this one among them.
    sees_machine = False

    @pytest.fixture
    async def sandbox(self) -> Any:
        raise NotImplementedError("give the contract a fixture named `sandbox`, with an empty directory as its root")

    # -- what it says about itself

    async def test_the_isolation_is_the_same_for_all_its_commands_and_can_be_asked_about(
        self, sandbox: Sandbox
    ) -> None:
        recorded = await sandbox.isolation()
        ended, _ = await ran(sandbox, "true")

        assert recorded == await sandbox.isolation()
        assert ended.strategy in recorded
        assert (await sandbox.interrupted(recorded)).endswith(".")
        assert (await sandbox.interrupted("no record of any sandbox")).endswith(".")

    async def test_a_command_does_not_end_this_process(self, sandbox: Sandbox) -> None:
        if self.sees_machine:
            pytest.skip("commands of this sandbox can signal every process of their user")
        ended, _ = await ran(sandbox, f"kill -9 $PPID {os.getpid()}; [ $PPID = 1 ] && kill -9 -1; exit 5")

        assert ended.code == 5

    # -- files

    async def test_a_file_is_what_was_written(self, sandbox: Sandbox) -> None:
        await sandbox.write("new/directory/file", b"content")

        found = await sandbox.info("new/directory/file")
        assert found is not None
        assert (found.kind, found.size) == ("file", 7)
        assert await sandbox.read("new/directory/file", offset=3, limit=2) == b"te"
        assert await sandbox.names("new") == ("directory/",)
        assert await sandbox.info("other") is None

    async def test_a_file_that_was_changed_meanwhile_is_not_written(self, sandbox: Sandbox) -> None:
        await sandbox.write("file", b"one")
        seen = await sandbox.info("file")
        assert seen is not None
        await sandbox.write("file", b"other")

        with pytest.raises(FileChanged):
            await sandbox.write("file", b"two", expected=seen.version)
        assert await sandbox.read("file") == b"other"

    async def test_what_is_not_there_cannot_be_read(self, sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError):
            await sandbox.read("missing")


__all__ = ["CODES", "Heard", "SandboxContract", "ran"]
