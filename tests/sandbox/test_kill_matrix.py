"""Whatever a command leaves behind is gone when it ends, is ended, is cancelled, and when its harness is killed.

Each strategy is forced, as root and as another user; and where namespaces are forbidden, what is taken then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.sandbox import seccomp
from tests.sandbox.caged import Caged
from tests.sandbox.scenarios import HIDDEN

from perdure.sandboxes.strategies import NAMES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
Start = Callable[..., Caged]


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
