"""A command that took all the processes which this user may have is ended nevertheless: threads are among them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.probing import try_out
from perdure.sandboxes.strategies import NAMES, named
from perdure.testing.processes import find_process

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.mark.parametrize("strategy", NAMES)
async def test_a_command_ends_at_its_time_where_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    known = named(strategy)
    assert known is not None
    finding = try_out(known)
    if not finding.works:
        pytest.skip(f"{strategy} does not work here: {finding.reason}")
    started: list[int] = []

    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def on_start(it: object) -> None:
        started.append(it.pid)  # type: ignore[attr-defined]
        monkeypatch.setattr(threading.Thread, "start", none_left)

    sandbox = LocalSandbox(tmp_path, isolation=strategy, grace=0.2, on_start=on_start)
    ended = await sandbox.run("trap '' TERM; sleep 60 & wait; sleep 60", timeout=0.3, output=lambda piece: None)
    await sandbox.close()

    assert ended.timed_out
    assert ended.stuck == ()
    row = find_process(started[0])
    assert row is None or row.state == "Z"  # of a first process that collects it when it gets to it
    assert not Path(sandbox.scratch).exists()  # noqa: ASYNC240
