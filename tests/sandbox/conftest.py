"""Real processes: each test marks those that it starts, so that what is left of them can be found, and is ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.caged import Caged
from tests.sandbox.scenarios import Numbers

from perdure.sandboxes.local import LocalSandbox
from perdure.testing.processes import Child, find_process

HARNESS = Path(__file__).with_name("harness.py")
CAGE = Path(__file__).with_name("cage.py")
NOBODY = 65534
#: Unlike the numbers of any other test that runs now.
FIRST = 10_000_000 + os.getpid() * 1000
TOKEN = "PERDURE_TEST_RUN"  # no name that looks like a secret: those are not handed on


class Processes:
    """The living processes that carry a test's token in their environment."""

    def __init__(self, token: str) -> None:
        self.token = token

    def alive(self) -> set[int]:
        return {int(name) for name in os.listdir("/proc") if name.isdigit() and self._is_ours(int(name))}

    def _is_ours(self, pid: int) -> bool:
        try:
            marked = f"{TOKEN}={self.token}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        row = find_process(pid)
        return marked and row is not None and row.living

    def wait_gone(self, seconds: float) -> set[int]:
        """Return when none lives, or what does after that time."""
        until = time.monotonic() + seconds
        while (alive := self.alive()) and time.monotonic() < until:
            ended(alive.pop(), until - time.monotonic())
        return self.alive()

    def kill(self) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def ended(pid: int, seconds: float) -> bool:
    """Whether a process, of whomever, ended in that time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))
    finally:
        os.close(handle)


class Harness:
    """A process of its own that runs commands and tells about them; see harness.py."""

    def __init__(self, child: Child, names: set[str]) -> None:
        self.child = child
        self.names = names
        self.events: list[dict[str, Any]] = []

    def until(self, key: str, holds: Callable[[Any], bool] = bool) -> dict[str, Any]:
        """By name of command: the first value under this key that will do, told before or now."""
        while True:
            found: dict[str, Any] = {}
            for event in self.events:
                if key in event and holds(event[key]):
                    found.setdefault(event["name"], event[key])
            if found.keys() == self.names:
                return found
            self.events.append(json.loads(self.child.read_line()))

    def until_ready(self) -> None:
        """Until each command said so."""
        self.until("output", lambda text: "ready" in text)


@pytest.fixture
def processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    found = Processes(f"{os.getpid()}-{request.node.name}")
    monkeypatch.setenv(TOKEN, found.token)
    yield found
    found.kill()


@pytest.fixture
def wait_end() -> Callable[[int, float], bool]:
    return ended


@pytest.fixture
async def sandbox(tmp_path: Path, processes: Processes) -> AsyncIterator[LocalSandbox]:
    made = LocalSandbox(tmp_path)
    yield made
    await made.close()


@pytest.fixture(params=["same user", "unprivileged"])
def uid(request: pytest.FixtureRequest) -> int | None:
    """Whom a harness becomes before it does anything: nobody else, or nobody, which only root may."""
    if request.param == "same user":
        return None
    if os.getuid() != 0:
        pytest.skip("only root can become another user; the other variant of this test is the unprivileged one")
    return NOBODY


@pytest.fixture
def root(tmp_path: Path, uid: int | None) -> Iterator[Path]:
    """A directory that the harness's user may write, and reach."""
    if uid is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory() as made:
        os.chown(made, uid, uid)
        yield Path(made)


@pytest.fixture
def harness(root: Path, uid: int | None, processes: Processes) -> Iterator[Callable[..., Harness]]:
    with contextlib.ExitStack() as stack:

        def start(commands: str | dict[str, str], **more: Any) -> Harness:
            named = {"it": commands} if isinstance(commands, str) else commands
            given = {"root": str(root), "commands": named, **more} | ({} if uid is None else {"uid": uid})
            child = stack.enter_context(Child([sys.executable, str(HARNESS), json.dumps(given)]))
            return Harness(child, set(named))

        yield start


@pytest.fixture
def caged(root: Path, uid: int | None) -> Iterator[Callable[..., Caged]]:
    started: list[Caged] = []

    def start(before: Sequence[str] = (), **more: Any) -> Caged:
        """Behind a command that sets its limits, if wanted."""
        given = {"root": str(root), **more} | ({} if uid is None else {"uid": uid})
        here = str(Path(__file__).parents[2])
        child = Child([*before, sys.executable, str(CAGE), json.dumps(given)], {"PYTHONPATH": here}, cwd=root)
        started.append(Caged(child, Numbers(FIRST + 100 * len(started))))
        return started[-1]

    yield start
    for each in started:
        with each.child:
            pass
