"""Output without end costs neither memory nor the loop nor the time limit (I75)."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.probing import chosen
from perdure.testing.processes import run_child

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
FLOOD = str(Path(__file__).with_name("flood.py"))
GIB, MIB = 1 << 30, 1 << 20


def flooded(strategy: str) -> dict[str, Any]:
    found = run_child([sys.executable, FLOOD, strategy, str(GIB)])
    assert found.code == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.parametrize("strategy", [None, "subreaper"])
def test_a_gibibyte_takes_less_than_64_mib_and_stops_the_loop_for_less_than_50_ms(strategy: str | None) -> None:
    """What else the machine does stops the loop too: the best of three tells what we do."""
    runs: list[dict[str, Any]] = []
    while len(runs) < 3 and not (runs and runs[-1]["lag"] < 0.05):
        runs.append(flooded(strategy or chosen(None).strategy.name))

    best = min(runs, key=lambda each: each["lag"])
    assert (best["code"], best["bytes"], best["spilled"]) == (0, GIB, 64 * MIB)
    assert best["kept"] < 64 * 1024
    assert max(each["resident"] for each in runs) < 64 * MIB
    assert best["lag"] < 0.05, runs


async def test_a_time_limit_is_kept_under_a_flood(sandbox: LocalSandbox) -> None:
    began = time.monotonic()

    ended = await sandbox.run("yes", timeout=0.5, output=lambda _: None)

    assert ended.timed_out
    assert time.monotonic() - began < 2


async def test_many_single_bytes_pass(sandbox: LocalSandbox) -> None:
    pieces: list[bytes] = []
    code = "import os\nfor _ in range(200_000): os.write(1, b'x')"

    await sandbox.run(f'python3 -c "{code}"', timeout=20, output=pieces.append)

    assert b"".join(pieces) == b"x" * 200_000


async def test_a_thousand_processes_in_sessions_of_their_own_are_gone_when_the_call_returns(
    sandbox: LocalSandbox, processes: Any
) -> None:
    spoke = asyncio.Event()
    bomb = "for i in $(seq 1000); do setsid sleep 300 & done; echo; wait; sleep 300"
    running = asyncio.ensure_future(sandbox.run(bomb, timeout=60, output=lambda _: spoke.set()))
    await asyncio.wait_for(spoke.wait(), 30)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert processes.alive() == set()
