"""The locks: hashes for everything, nothing about where it comes from, and in step with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKS = ["runtime", "dev", "lock"]


def read(lock: str) -> str:
    return (REQUIREMENTS / f"{lock}.txt").read_text(encoding="utf-8")


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", read(lock), flags=re.MULTILINE))


def declared(lock: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    runtime, groups = project["project"]["dependencies"], project["dependency-groups"]
    extras = [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    dev = runtime + [each for each in extras if not each.startswith("perdure[")] + groups["dev"]
    return [Requirement(each) for each in {"runtime": runtime, "dev": dev, "lock": groups["lock"]}[lock]]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_every_package_with_hashes_and_holds_nothing_else(lock: str) -> None:
    lines = [
        line
        for line in read(lock).replace("\\\n", " ").splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    assert lines
    odd = [
        line
        for line in lines
        if not re.fullmatch(r"[a-z0-9._-]+==\S+ (; [^;]+ )? *(--hash=sha256:[0-9a-f]{64} *)+", line)
    ]
    assert not odd, odd


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_satisfies_what_pyproject_declares(lock: str) -> None:
    locked = pins(lock)
    wrong = [
        str(each)
        for each in declared(lock)
        if not each.specifier.contains(locked.get(canonicalize_name(each.name), "0"), prereleases=True)
    ]
    assert not wrong, f"run `make lock`: {wrong}"


def test_development_uses_the_packages_that_users_get() -> None:
    dev = pins("dev")
    assert {name: dev.get(name) for name in pins("runtime")} == pins("runtime")
