"""The machine: what it is, how busy it is, and how long its disk takes."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

#: Before each run: so many seconds at most until others use less than this part of the processors.
PATIENCE = float(os.environ.get("BENCH_PATIENCE", "2"))
QUIET = 0.3


def _ticks() -> tuple[int, int]:
    """All and idle ticks of the processors."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(fields), fields[3] + fields[4]


def busy(seconds: float = 0.2) -> float:
    """The part of the processors that somebody uses."""
    total, idle = _ticks()
    time.sleep(seconds)
    later, resting = _ticks()
    return round(1 - (resting - idle) / max(1, later - total), 2)


def wait_for_quiet() -> float:
    """Wait a little until others rest; how busy they are then."""
    began = time.perf_counter()
    while (found := busy()) > QUIET and time.perf_counter() - began < PATIENCE:
        pass
    return found


def revision() -> str:
    """The commit of the tree, with a + when the product was changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], check=False, capture_output=True, text=True, cwd=ROOT).stdout.strip()

    changed = git("status", "--porcelain", "--", "src")
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def sync_ms(folder: Path) -> float:
    """The median of 50 small appends, each with fdatasync."""
    path, times = folder / "sync", []
    with path.open("wb", buffering=0) as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(b"x" * 256)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1e3)
    path.unlink()
    return round(statistics.median(times), 3)


def machine(folder: Path) -> dict[str, Any]:
    """Facts that the figures depend on."""
    model = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1e6
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": revision(),
        "processor": model[0] if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "sync_ms": sync_ms(folder),
        "load_before": round(os.getloadavg()[0], 1),
    }
