"""The tool `bash`."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from perdure.errors import SandboxError
from perdure.harness.output import LIMIT_BYTES, LIMIT_LINES
from perdure.sandbox import Exit
from perdure.tools.bash import bash, report
from perdure.tools.read import read

pytestmark = pytest.mark.anyio


async def test_the_answer_is_the_output_and_the_exit_code(call: Any) -> None:
    assert await bash(call, "echo out; echo err >&2; exit 3") == "out\nerr\n[exit code 3]"
    assert call.shown == b"out\nerr\n"
    told = {"code": 3, "signal": None, "timed_out": False, "running": [], "stuck": [], "bytes": 8, "spill": None}
    assert {name: call.noted[name] for name in told} == told
    assert set(call.noted) - set(told) == {"seconds", "strategy"}


async def test_no_output_is_said(call: Any) -> None:
    assert await bash(call, "true") == "[no output]\n[exit code 0]"


async def test_what_was_left_running_is_named(call: Any) -> None:
    text = await bash(call, "sleep 300 & echo x")

    assert text.split("\n") == [
        "x",
        "[still running after the command, and ended with it: sleep 300; background=true lets one run on]",
        "[exit code 0]",
    ]


async def test_a_time_limit_raises_when_the_output_until_then_was_shown(call: Any) -> None:
    with pytest.raises(TimeoutError, match=r"^it was ended after 0.2 s, with everything that it had started$"):
        await bash(call, "echo begun; sleep 300", timeout=0.2)

    assert call.shown == b"begun\n"
    assert call.noted["timed_out"]


async def test_the_call_is_asked_to_wait_longer_than_the_command_may_take(call: Any) -> None:
    await bash(call, "true", timeout=100)
    assert call.seconds == 105
    await bash(call, "true", timeout=10_000)
    assert call.seconds == 605


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
async def test_a_time_limit_is_more_than_nothing(call: Any, timeout: float) -> None:
    with pytest.raises(SandboxError, match="more than 0 seconds"):
        await bash(call, "true", timeout=timeout)


async def test_both_ends_of_long_output_are_kept_within_the_limit_of_outputs(call: Any) -> None:
    text = await bash(call, "seq 1 100000; sleep 300 &")

    assert text.startswith("1\n2\n")
    assert "lines, " in text
    assert text.split("\n")[-4:-3] == ["100000"]
    assert len(text.encode()) <= LIMIT_BYTES
    assert text.count("\n") <= LIMIT_LINES


@pytest.mark.slow
async def test_binary_output_is_shown_and_marked(call: Any) -> None:
    text = await bash(call, "head -c 5000 /dev/urandom")

    assert "[the output is binary: what is no text is shown as \ufffd and \u2400]" in text
    text.encode()
    assert "\0" not in text


async def test_cancelling_the_call_ends_the_command(call: Any) -> None:
    running = asyncio.ensure_future(bash(call, "mkfifo gate; echo; cat gate"))
    await call.spoke.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running


def test_one_that_cannot_be_ended_is_named() -> None:
    ended = Exit(code=0, running=("sleep 300",), stuck=(8,))

    assert report("", ended).split("\n")[1:] == [
        "[still running after the command, and ended with it: sleep 300; background=true lets one run on]",
        "[could not be ended and may still run: process 8]",
        "[exit code 0]",
    ]


async def test_output_that_is_too_long_to_show_is_whole_in_a_file_that_read_reaches(call: Any) -> None:
    text = await bash(call, "seq 1 100000")

    (path,) = re.findall(r"\[all of the output can be read and searched in (.*)\]", text)
    assert (await read(call, path, offset=99_999)).splitlines()[:2] == ["99999", "100000"]
    assert call.sandbox.root not in path


async def test_a_file_that_holds_only_the_beginning_says_so() -> None:
    ended = Exit(code=0, total_bytes=100, spill="/scratch/1.txt", spilled=60)

    assert "[its first 60 bytes can be read and searched in /scratch/1.txt]" in report("x", ended)


@pytest.mark.parametrize(
    "command, said",
    [
        ("kill -TERM $$", "[exit code 143: SIGTERM]"),
        ("kill -KILL $$", "[exit code 137: SIGKILL]"),
        ("exit 200", "[exit code 200]"),
    ],
)
async def test_a_signal_has_its_name(call: Any, command: str, said: str) -> None:
    assert (await bash(call, command)).endswith(said)
