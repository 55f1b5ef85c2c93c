"""What a command of the shell costs by each strategy, and a gibibyte of output: `python benchmarks/shell.py`.

Medians, since a machine has other things to do. Exits 1 when the gibibyte takes 64 MiB, or stops the loop for 50 ms.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.probing import probe

FLOOD = Path(__file__).parents[1] / "tests" / "sandbox" / "flood.py"
GIB, MIB = 1 << 30, 1 << 20
TIMES = 30


async def seconds_of(sandbox: LocalSandbox, command: str) -> float:
    began = time.perf_counter()
    await sandbox.run(command, timeout=30, output=lambda _: None)
    return time.perf_counter() - began


async def costs(name: str) -> tuple[float, float]:
    """Milliseconds of `true`, and of a command whose job outlives it."""
    with tempfile.TemporaryDirectory() as root:
        sandbox = LocalSandbox(root, isolation=name)
        await seconds_of(sandbox, "true")
        plain = [await seconds_of(sandbox, "true") for _ in range(TIMES)]
        job = [await seconds_of(sandbox, "sleep 300 &") for _ in range(5)]
        await sandbox.close()
    return statistics.median(plain) * 1000, statistics.median(job) * 1000


def main() -> int:
    began = time.perf_counter()
    findings = probe()
    print(f"probe of all strategies: {(time.perf_counter() - began) * 1000:.0f} ms")
    bad = 0
    for finding in findings:
        name = finding.strategy.name
        if not finding.works:
            print(f"{name:12} does not work here: {finding.reason}")
            continue
        plain, job = asyncio.run(costs(name))
        ran = subprocess.run([sys.executable, FLOOD, name, str(GIB)], capture_output=True, text=True, check=True)
        flood = json.loads(ran.stdout)
        kept = flood["resident"] < 64 * MIB and flood["lag"] < 0.05
        bad += not kept
        print(
            f"{name:12} true {plain:5.1f} ms · one job left {job:5.0f} ms · 1 GiB in {flood['seconds']:4.1f} s, "
            f"{flood['resident'] / MIB:.0f} MiB resident, loop stopped for {flood['lag'] * 1000:.1f} ms at most"
            f"{'' if kept else '   MISSED'}"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
