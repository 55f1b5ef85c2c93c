"""Commands that turn against whoever runs them, as `pkill -f python` does by accident (2.4)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from tests.sandbox.conftest import ended

from perdure.sandboxes.strategies import STRATEGIES

pytestmark = pytest.mark.slow
NAMESPACES = [each.name for each in STRATEGIES if each.kind == "namespace"]
#: In a job: the command's own session would be ended with its shell.
JOB = "setsid sleep {n} & until pgrep -f '^sleep {n}$' > /dev/null; do sleep 0.01; done; "

Start = Callable[..., Any]


@pytest.fixture
def attack(caged: Start) -> Callable[[str, str], tuple[Any, dict[str, str]]]:
    """A cage in which a command with a job attacks, and the job's number."""
    if shutil.which("pgrep") is None:
        pytest.skip("needs pgrep and pkill (procps)")

    def start(strategy: str, command: str) -> tuple[Any, dict[str, str]]:
        cage = caged(isolation=strategy, grace=0.2)
        cage.order("probe")
        if why := cage.until("found")[strategy]:
            pytest.skip(f"{strategy} does not work here for this user: {why}")
        number = next(iter(cage.numbers.commands("stay")))
        script = (JOB + command).replace("{n}", number).replace("{harness}", str(cage.child.pid))
        cage.order("run", commands={number: script}, timeout=10)
        return cage, {number: ""}

    return start


#: The last one only where it is in a namespace indeed.
ATTACKS = ["kill -9 $PPID; true", "kill -9 {harness}; true", '[ "$PPID" = 1 ] && kill -9 -1; true']


@pytest.mark.parametrize("strategy", NAMESPACES)
@pytest.mark.parametrize("command", ATTACKS)
def test_from_a_namespace_the_harness_cannot_be_reached(attack: Any, strategy: str, command: str) -> None:
    cage, commands = attack(strategy, command)

    ends = cage.ends("exit", commands)

    assert cage.left(commands) == {}
    assert all(not each["timed_out"] for each in ends.values())
    cage.order("isolation")
    assert cage.until("isolation")


def test_a_command_that_kills_its_helper_is_found_by_its_mark_and_ended(attack: Any) -> None:
    cage, commands = attack("subreaper", "kill -9 $PPID; sleep {n}")

    ends = cage.ends("exit", commands)

    assert cage.left(commands) == {}
    assert [each["code"] for each in ends.values()] == [137]
    assert [each["stuck"] for each in ends.values()] == [[]]


@pytest.mark.parametrize("strategy", ["subreaper", "pgroup"])
def test_without_a_namespace_a_command_can_kill_the_harness_but_not_outlive_it(attack: Any, strategy: str) -> None:
    cage, commands = attack(strategy, "kill -9 {harness}; sleep {n}")

    assert ended(cage.child.pid, 20)
    assert cage.child.wait(grace=5.0).signal == 9
    assert cage.left(commands, seconds=5) == {}
