"""What the benchmark cases share: bars, scratch folders, resident memory, medians."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Bar:
    """One measured figure and the limit that it has to keep. `at_least` says on which side."""

    name: str
    value: float
    limit: float
    unit: str
    at_least: bool
    note: str = ""

    @property
    def kept(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        state = "ok  " if self.kept else "MISS"
        note = f"  ({self.note})" if self.note else ""
        return f"{state} {self.name}: {self.value:.3g} {self.unit}, bar {sign} {self.limit:g}{note}"


def at_least(name: str, value: float, limit: float, unit: str = "of the floor", note: str = "") -> Bar:
    return Bar(name, value, limit, unit, True, note)


def at_most(name: str, value: float, limit: float, unit: str, note: str = "") -> Bar:
    return Bar(name, value, limit, unit, False, note)


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder beside the project, on a real disk, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="perdure-bench-", dir=os.environ.get("PERDURE_BENCH_DIR", ".")))
    try:
        yield path.resolve()
    finally:
        shutil.rmtree(path, ignore_errors=True)


def resident() -> int:
    """Resident memory of this process in bytes, after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def middle(values: list[float]) -> float:
    """The median."""
    return float(median(values))


def text(size: int, seed: int = 7) -> str:
    """`size` characters that do not compress to nothing, the same each time."""
    letters = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,"
    state, out = seed, []
    for _ in range(size):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out.append(letters[(state >> 16) % len(letters)])
    return "".join(out)
