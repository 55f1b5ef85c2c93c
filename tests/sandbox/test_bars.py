"""What a call may take beyond its command, by each strategy. Of three the best counts: others use this machine too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.probing import try_out
from perdure.sandboxes.strategies import NAMES, named

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MOST = 0.5
HOLDERS = {
    "a job": "sleep 300 & echo done",
    "a job in a session of its own": "setsid sleep 300 & echo done",
    "a job that ignores SIGTERM": "(trap '' TERM; sleep 300) & echo done",
    "a flood": "(yes &) ; echo done",
    "one that hides": "env -i setsid -f sleep 20; echo done",
}


def forced(root: Path, name: str) -> LocalSandbox:
    strategy = named(name)
    assert strategy is not None
    if not (found := try_out(strategy)).works:
        pytest.skip(f"{name} does not work here: {found.reason}")
    return LocalSandbox(root, isolation=name)


async def delay(sandbox: LocalSandbox, command: str) -> float:
    """Seconds from the last word of the shell to the return of the call."""
    said = [0.0]

    def output(piece: bytes) -> None:
        if b"done\n" in piece:
            said.append(time.monotonic())

    ended = await sandbox.run(command, timeout=20, output=output)
    assert (ended.code, ended.timed_out) == (0, False)
    return time.monotonic() - said[-1]


@pytest.mark.parametrize("name", NAMES)
async def test_one_that_holds_the_output_delays_a_call_by_at_most_half_a_second(
    tmp_path: Path, processes: Any, name: str
) -> None:
    sandbox = forced(tmp_path, name)

    delays = {holder: min([await delay(sandbox, HOLDERS[holder]) for _ in range(3)]) for holder in HOLDERS}

    assert {holder: seconds for holder, seconds in delays.items() if seconds >= MOST} == {}
    await sandbox.close()


@pytest.mark.parametrize("name", NAMES)
async def test_a_command_that_reads_its_input_ends_at_once(tmp_path: Path, name: str) -> None:
    sandbox = forced(tmp_path, name)

    for command in ("read line", "cat", "python3 -c 'input()' 2>/dev/null", "ssh-keygen -f key -y >/dev/null 2>&1"):
        ends = [await sandbox.run(command, timeout=20, output=lambda _: None) for _ in range(3)]
        assert not any(each.timed_out for each in ends)
        assert min(each.seconds for each in ends) < MOST
    await sandbox.close()
