"""What is put before a command does nothing for somebody who is gone, whenever that was."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from tests.sandbox.conftest import FIRST
from tests.sandbox.scenarios import Numbers

from perdure.errors import SandboxError
from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.probing import Finding, try_out
from perdure.sandboxes.strategies import STRATEGIES, Strategy, argv

WRAPPED = [each for each in STRATEGIES if each.kind != "group"]
by_name = pytest.mark.parametrize("strategy", WRAPPED, ids=lambda each: each.name)


class Wrapper:
    """A wrapper that runs, and the other side of what it says."""

    def __init__(self, strategy: Strategy, command: str, directory: Path) -> None:
        found = try_out(strategy)
        if not found.works:
            pytest.skip(f"{strategy.name} does not work here: {found.reason}")
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(20)
        self.process = subprocess.Popen(
            argv(found.wrapper, command),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd=directory,
        )
        theirs.close()

    def hears(self) -> bytes:
        return self.ours.recv(100)

    def says(self, word: bytes) -> None:
        self.ours.sendall(word + b"\n")

    def ends(self) -> int:
        self.ours.close()
        return self.process.wait(20)


@pytest.mark.slow
@by_name
def test_a_command_does_not_begin_where_nobody_lets_it(strategy: Strategy, tmp_path: Path) -> None:
    silent, other = (Wrapper(strategy, "touch made", tmp_path) for _ in range(2))
    assert silent.hears() == other.hears() == b"ready\n"
    assert os.listdir(tmp_path) == []
    other.says(b"stop")

    assert (silent.ends(), other.ends()) == (125, 125)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@by_name
def test_what_is_left_waits_for_an_answer_and_ends_where_none_comes(strategy: Strategy, tmp_path: Path) -> None:
    number = str(FIRST)
    wrapper = Wrapper(strategy, f"setsid sleep {number} & exit 9", tmp_path)
    wrapper.hears()
    wrapper.says(b"go")
    assert wrapper.hears() == b"left\n"
    wrapper.says(b"more")
    assert wrapper.hears() == b"left\n"
    assert Numbers(0).alive({number: ""})

    assert wrapper.ends() == 9
    assert Numbers(0).alive({number: ""}) == {}


@pytest.mark.anyio
async def test_one_that_fails_later_than_its_probe_is_an_error_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Finding(strategy=STRATEGIES[0], works=True, wrapper=("/bin/sh", "-c", "echo no room >&2; exit 1", "sh"))
    monkeypatch.setattr("perdure.sandboxes.local.chosen", lambda forced: failing)
    sandbox = LocalSandbox(tmp_path)
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(SandboxError, match=r"^the command could not be started: no room$"):
        await sandbox.run("touch made", timeout=5, output=lambda _: None)

    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before
