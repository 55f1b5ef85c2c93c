"""Lives as processes for the crash suite, a place for their stores, and the sum of what was killed."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.testing.scenario.kennel import Kennel

#: In memory: what a killed process wrote the kernel keeps there, as on any disk, and power is lost by a test's VFS.
FAST = Path("/dev/shm")


@pytest.fixture(scope="session")
def kennels() -> Iterator[list[Kennel]]:
    """Two, for lives side by side."""
    with Kennel() as one, Kennel() as another:
        yield [one, another]


@pytest.fixture
def kennel(kennels: list[Kennel]) -> Kennel:
    return kennels[0]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Path]]:
    """Names of directories to make, one after another. Those that are left at the end held what failed."""
    fast = os.access(FAST, os.W_OK) and shutil.disk_usage(FAST).free > 1 << 30
    base = Path(tempfile.mkdtemp(prefix="perdure-crash-", dir=FAST)) if fast else tmp_path_factory.mktemp("crash")
    numbers = itertools.count(1)
    yield lambda: base / str(next(numbers))
    if not any(base.iterdir()):
        base.rmdir()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many points were tried and how many processes were killed, over all tests that say so."""
    totals: dict[str, int] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name.startswith("crash: "):
                totals[name] = totals.get(name, 0) + int(str(value))
    for name, value in totals.items():
        terminalreporter.write_line(f"{name} {value:,}")
