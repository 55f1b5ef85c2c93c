"""A process that cannot be killed does not hold the call, and the result says so (I73)."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PERL = shutil.which("perl")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0 or PERL is None, reason="needs root and perl, to make a program of root's"),
]


@pytest.fixture
def uid() -> int:
    return 65534


@pytest.fixture
def immune(root: Path) -> Path:
    """A program that becomes root wholly, so that whoever started it may not signal it."""
    assert PERL is not None
    program = root / "immune"
    shutil.copy(PERL, program)
    program.chmod(0o4755)
    (root / "script").write_text("$< = 0; $| = 1; print qq(ready $$ $<\\n); sleep 60;\n")
    return program


@pytest.mark.parametrize("how", ["job", "command"])
def test_one_that_cannot_be_killed_is_named_and_the_call_returns(
    harness: Callable[..., Any], immune: Path, how: str
) -> None:
    command = f"{immune} script" + (" & wait -n; true" if how == "job" else "")
    running = harness(command, timeout=1.0, grace=0.2, isolation="pgroup")
    running.until_ready()
    said = next(event["output"] for event in running.events if "ready" in event.get("output", ""))
    _, pid, user = said.split()
    if user != "0":
        pytest.skip("programs of root's are not honoured on this file system")
    began = time.monotonic()

    ended = running.until("exit")["it"]

    assert time.monotonic() - began < 1.0 + 0.2 + 0.5 + 2.0
    assert ended["timed_out"]
    assert ended["stuck"] == [int(pid)]
    assert ended["code"] in {137, 143}
    os.kill(int(pid), signal.SIGKILL)
