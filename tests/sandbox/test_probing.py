"""Which strategy is taken, and what is said when one does not work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.conftest import NOBODY

from perdure.errors import SandboxError, UsageError
from perdure.sandboxes import strategies
from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.probing import VARIABLE, chosen, hint, probe, try_out
from perdure.sandboxes.strategies import NAMES, STRATEGIES, Strategy

pytestmark = pytest.mark.anyio
BROKEN = Strategy(name="broken", kind="namespace", label="", programs=(("sh", "-c", "echo no such thing >&2; exit 1"),))


async def test_the_first_that_works_is_taken(tmp_path: Path) -> None:
    first = next(each.strategy.name for each in probe() if each.works)

    assert chosen(None).strategy.name == first
    assert (await LocalSandbox(tmp_path).isolation()).startswith(f"local:{first} ")


@pytest.mark.slow
def test_every_strategy_has_a_finding_with_a_reason_where_it_does_not_work() -> None:
    found = probe()

    assert tuple(each.strategy.name for each in found) == NAMES
    assert all(bool(each.reason) is not each.works for each in found)


def test_the_names_are_those_that_people_may_force() -> None:
    assert NAMES == ("pidns+proc", "userns+proc", "pidns", "userns", "bwrap", "subreaper", "pgroup")


def test_an_unknown_name_is_refused_with_those_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "jail")

    with pytest.raises(UsageError, match=r"PERDURE_BASH_ISOLATION=jail: .*: use one of pidns\+proc, .*, pgroup"):
        LocalSandbox(tmp_path)


async def test_the_variable_forces_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "pgroup")

    assert (await LocalSandbox(tmp_path).isolation()).startswith("local:pgroup ")


async def test_a_forced_one_that_does_not_work_is_refused_in_the_words_of_the_probe_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.sandboxes.probing.STRATEGIES", (BROKEN, *STRATEGIES))
    monkeypatch.setattr("perdure.sandboxes.strategies.STRATEGIES", (BROKEN, *STRATEGIES))
    sandbox = LocalSandbox(tmp_path, isolation="broken")

    with pytest.raises(SandboxError, match=r"isolation broken is asked for .*: no such thing \(exit code 1\)"):
        await sandbox.run("touch made", timeout=5, output=lambda _: None)
    assert not (tmp_path / "made").exists()


def test_one_whose_program_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies.shutil, "which", lambda name: None)

    found = try_out(STRATEGIES[0])

    assert (found.works, found.reason) == (False, "setpriv is not installed")


def test_what_makes_no_namespace_is_not_believed() -> None:
    pretender = Strategy(name="pretender", kind="namespace", label="", programs=(("env",),))

    assert "this is no new pid namespace" in try_out(pretender).reason


@pytest.mark.parametrize(
    "said",
    [
        "unshare: write failed /proc/self/uid_map: Operation not permitted",
        "bwrap: setting up uid map: Permission denied",
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
    ],
)
def test_where_apparmor_forbids_it_the_profile_that_allows_it_is_shown(said: str) -> None:
    shown = hint(said, ("/usr/bin/setpriv", "--pdeathsig", "KILL", "/usr/bin/unshare", "--user"))

    assert "profile perdure-unshare /usr/bin/unshare flags=(unconfined)" in shown
    assert "apparmor_parser -r" in shown
    assert hint("unshare failed: No space left on device", ("/usr/bin/unshare",)) == ""


# -- where something forbids it: each limit in a namespace that is thrown away -----------------------

needs_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and util-linux, to set the limit"
)
WITHOUT_RIGHTS = "exec setpriv --inh-caps=-all --bounding-set=-all --no-new-privs"


@pytest.fixture
def uid() -> int | None:
    return None


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize(
    "where, script, taken, refused",
    [
        (
            ["unshare", "--user", "--map-root-user"],
            f'echo 0 > /proc/sys/user/max_user_namespaces; {WITHOUT_RIGHTS} "$@"',
            "subreaper",
            {"userns+proc": "No space left on device", "pidns+proc": "Operation not permitted", "bwrap": ""},
        ),
        (
            ["unshare", "--mount"],
            'mount -t tmpfs none /proc/bus && exec "$@"',
            "userns",
            {"userns+proc": "mount /proc failed: Operation not permitted", "bwrap": "proc"},
        ),
    ],
    ids=["no user namespaces left", "a masked proc"],
)
def test_what_is_forbidden_is_told_and_the_next_one_is_taken(
    caged: Callable[..., Any], where: list[str], script: str, taken: str, refused: dict[str, str]
) -> None:
    more: dict[str, Any] = {} if "--user" in where else {"uid": NOBODY, "root": "/"}
    cage = caged(before=[*where, "sh", "-c", script, "sh"], **more)
    cage.order("probe")
    found = cage.until("found")
    cage.order("isolation")

    assert cage.until("isolation").startswith(f"local:{taken} ")
    for name, words in refused.items():
        assert words in found[name]
        assert found[name]
