"""Whatever a command leaves behind is gone when it ends, is ended, is cancelled, and when its harness is killed.

Each strategy is forced, as root and as another user; and where namespaces are forbidden, what is taken then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox import seccomp
from tests.sandbox.scenarios import HIDDEN, Numbers, glance

from perdure.sandboxes.strategies import NAMES
from perdure.testing.processes import Child

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
CAGE = Path(__file__).with_name("cage.py")
Start = Callable[..., "Caged"]
#: Unlike the numbers of any other test that runs now.
FIRST = 10_000_000 + os.getpid() * 1000


class Caged:
    """See cage.py."""

    def __init__(self, child: Child, numbers: Numbers) -> None:
        self.child = child
        self.numbers = numbers
        self.until("ready")

    def order(self, do: str, **more: Any) -> None:
        self.child.write_line(json.dumps({"do": do, **more}))

    def until(self, key: str) -> Any:
        event = json.loads(self.child.read_line())
        assert key in event, event
        return event[key]

    def ends(self, key: str, commands: dict[str, str]) -> dict[str, Any]:
        """How each command ended."""
        found: dict[str, Any] = {}
        while len(found) < len(commands):
            event = json.loads(self.child.read_line())
            assert key in event, event
            found[event["name"]] = event[key]
        return found

    def until_all_run(self, commands: dict[str, str]) -> None:
        until = time.monotonic() + 30
        while missing := commands.keys() - self.numbers.alive(commands).keys():
            assert time.monotonic() < until, [commands[each] for each in missing]
            glance()

    def left(self, commands: dict[str, str], seconds: float = 0.0) -> dict[str, int]:
        """How many processes of each scenario live, after they had some time; they are killed then."""
        until = time.monotonic() + seconds
        while (alive := self.numbers.alive(commands)) and time.monotonic() < until:
            glance()
        for pids in alive.values():
            for pid in pids:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
        return {self.numbers.names[each]: len(pids) for each, pids in alive.items()}


@pytest.fixture
def caged(root: Path, uid: int | None) -> Iterator[Callable[..., Caged]]:
    started: list[Caged] = []

    def start(**more: Any) -> Caged:
        given = {"root": str(root), **more} | ({} if uid is None else {"uid": uid})
        here = str(Path(__file__).parents[2])
        child = Child([sys.executable, str(CAGE), json.dumps(given)], {"PYTHONPATH": here}, cwd=root)
        started.append(Caged(child, Numbers(FIRST + 100 * len(started))))
        return started[-1]

    yield start
    for each in started:
        with each.child:
            pass


def end(cage: Caged) -> tuple[dict[str, int], list[Any]]:
    commands = cage.numbers.commands("end")
    cage.order("run", commands=commands, timeout=30)
    ends = cage.ends("exit", commands)
    return cage.left(commands), [each["code"] for each in ends.values()]


def timeout(cage: Caged) -> tuple[dict[str, int], list[Any]]:
    commands = cage.numbers.commands("stay")
    cage.order("run", commands=commands, timeout=1.5)
    cage.until_all_run(commands)
    ends = cage.ends("exit", commands)
    return cage.left(commands), [each["timed_out"] for each in ends.values()]


def cancel(cage: Caged) -> tuple[dict[str, int], list[Any]]:
    commands = cage.numbers.commands("stay")
    cage.order("run", commands=commands, timeout=60)
    cage.until_all_run(commands)
    cage.order("cancel")
    return cage.left(commands) if cage.ends("cancelled", commands) else {}, []


def sigkill(cage: Caged) -> dict[str, int]:
    """Of the harness, by itself: nothing of it is there any more that could end anything."""
    commands = cage.numbers.commands("stay")
    cage.order("run", commands=commands, timeout=60)
    cage.until_all_run(commands)
    cage.child.kill()
    return cage.left(commands, seconds=5)


def matrix(cage: Caged) -> dict[str, dict[str, int]]:
    """What was left, by scenario, of each way in which commands end."""
    after_end, codes = end(cage)
    after_timeout, timed_out = timeout(cage)
    after_cancel, _ = cancel(cage)
    assert codes == [0] * len(codes)
    assert all(timed_out)
    return {"end": after_end, "timeout": after_timeout, "cancel": after_cancel, "SIGKILL": sigkill(cage)}


NOTHING: dict[str, dict[str, int]] = {"end": {}, "timeout": {}, "cancel": {}, "SIGKILL": {}}


@pytest.mark.parametrize("strategy", [name for name in NAMES if name != "pgroup"])
def test_nothing_is_left_of_any_command(caged: Start, strategy: str, uid: int | None) -> None:
    cage = caged(isolation=strategy, grace=0.2)
    cage.order("probe")
    if why := cage.until("found")[strategy]:
        pytest.skip(f"{strategy} does not work here for this user: {why}")

    assert matrix(cage) == NOTHING


def test_of_a_process_group_nothing_is_left_but_what_hides(caged: Start, uid: int | None) -> None:
    found = matrix(caged(isolation="pgroup", grace=0.2))

    assert {how: left.keys() - {HIDDEN} for how, left in found.items()} == {how: set() for how in NOTHING}


@pytest.mark.skipif(not seccomp.available(), reason="no filter for this architecture")
def test_where_namespaces_are_forbidden_a_subreaper_is_taken_and_nothing_is_left(caged: Start, uid: int | None) -> None:
    cage = caged(forbid=True, grace=0.2)
    cage.order("isolation")

    assert cage.until("isolation").startswith("local:subreaper ")
    assert matrix(cage) == NOTHING
