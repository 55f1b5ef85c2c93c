"""A process through which a flood of output passes: it tells how much memory and how much of the loop that took.

flood.py STRATEGY BYTES: the command prints so many bytes; both ends are kept, as bash does, and the rest in a file.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from perdure.harness.output import Output
from perdure.sandbox import Spill
from perdure.sandboxes.local import LocalSandbox

TICK = 0.005


def resident() -> int:
    """The most memory that this process has had, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


async def main(strategy: str, size: int) -> None:
    loop, lags, printed = asyncio.get_running_loop(), [0.0], Output(keep="both")

    def tick(planned: float) -> None:
        lags.append(loop.time() - planned)
        loop.call_at(loop.time() + TICK, tick, loop.time() + TICK)

    with tempfile.TemporaryDirectory() as root:
        sandbox = LocalSandbox(root, isolation=strategy)
        await sandbox.run("true", timeout=20, output=printed.feed)
        tick(loop.time())
        began, worked = time.monotonic(), time.process_time()
        command = f"head -c {size} /dev/zero | tr '\\0' a"  # one line
        ended = await sandbox.run(command, timeout=120, output=printed.feed, spill=Spill())
        seconds, busy = time.monotonic() - began, time.process_time() - worked
        assert ended.spill is not None
        told = {
            "code": ended.code,
            "bytes": ended.total_bytes,
            "spilled": os.stat(ended.spill).st_size,
            "kept": len(printed.text()),
            "seconds": round(seconds, 2),
            "processor": round(busy, 2),
            "resident": resident(),
            "lag": max(lags),
        }
        await sandbox.close()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
