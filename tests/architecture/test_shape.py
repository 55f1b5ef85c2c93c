"""Budgets and bans: what keeps the tails of the code short. An exception is a line in allowlist.txt that says why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
ALLOWLIST = Path(__file__).with_name("allowlist.txt")

SOFT = {"module": 400, "function": 40, "class": 25}
HARD = {"module": 600, "function": 80}
CONFTEST_LINES = 200

#: Grab-bags: every module comes to need them, and they every module.
BANNED_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "base", "core", "types"})

#: Where time and chance come from; the simulator and the demo draw from a seeded `random.Random` only.
CLOCK = "src/perdure/clock.py"
BANNED_CALLS = {
    "time": {"time", "time_ns", "sleep", "localtime", "gmtime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "os": {"urandom", "getrandom"},
}
BANNED_MODULES = frozenset({"uuid", "secrets"})
SLEEPS = frozenset({"time.sleep", "asyncio.sleep", "anyio.sleep", "anyio.sleep_until"})
SLEEP_NAMES = frozenset(name.split(".")[1] for name in SLEEPS)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Excess(NamedTuple):
    rule: str
    where: str
    size: int


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def allowed() -> dict[tuple[str, str], str]:
    """The allowlist: (rule, place) to its reason."""
    entries: dict[tuple[str, str], str] = {}
    for line in ALLOWLIST.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            rule, where, reason = (*line.split(maxsplit=2), "", "")[:3]
            assert len(reason) > 15, f"an allowlist line needs its reason: {line!r}"
            assert (rule, where) not in entries, f"twice in the allowlist: {line!r}"
            entries[rule, where] = reason
    return entries


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, FunctionNode | ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode | ast.ClassDef):
            yield prefix + node.name, node
            yield from definitions(node, f"{prefix}{node.name}.")
        elif not isinstance(node, ast.expr):
            yield from definitions(node, prefix)


def function_lines(node: FunctionNode) -> int:
    """From `def` to the last line, without the docstring: a contract may be as long as it must be."""
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def excesses(path: Path) -> Iterator[Excess]:
    """Everything in a module that is over a soft budget."""
    where = relative(path)
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > SOFT["module"]:
        yield Excess("module", where, lines)
    for name, node in definitions(tree_of(path)):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, FunctionNode) for each in node.body)
            if methods > SOFT["class"]:
                yield Excess("class", f"{where}::{name}", methods)
        elif function_lines(node) > SOFT["function"]:
            yield Excess("function", f"{where}::{name}", function_lines(node))


@cache
def sleeps(path: Path) -> set[tuple[str, str]]:
    """Where a test waits for real time, as the allowlist names it; `asyncio.sleep(0)` only yields."""
    found: set[tuple[str, str]] = set()

    def visit(node: ast.AST, qualname: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FunctionNode | ast.ClassDef):
                visit(child, f"{qualname}.{child.name}" if qualname else child.name)
                continue
            if is_sleep(child):
                found.add(("sleep", f"{relative(path)}::{qualname}" if qualname else relative(path)))
            visit(child, qualname)

    visit(tree_of(path), "")
    return found


def is_sleep(node: ast.AST) -> bool:
    match node:
        case ast.Call(args=[ast.Constant(value=0)]):
            return False
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if name in SLEEP_NAMES:
            return f"{owner}.{name}" in SLEEPS
        case ast.ImportFrom(module="time" | "asyncio" | "anyio", names=names):
            return any(each.name == "sleep" for each in names)
        case _:
            return False


def is_allowed(place: tuple[str, str], entries: dict[tuple[str, str], str]) -> bool:
    """By its own line, or for a sleep by one for the whole file, such as the tests of a loop whose time is virtual."""
    rule, where = place
    return place in entries or (rule == "sleep" and (rule, where.split("::")[0]) in entries)


@cache
def all_excesses() -> list[Excess]:
    return [each for path in SOURCES for each in excesses(path)]


def test_there_is_code_to_look_at() -> None:
    assert any(relative(path) == CLOCK for path in SOURCES)
    assert any(path.name == "test_shape.py" for path in TESTS)


def test_modules_functions_and_classes_keep_their_budgets() -> None:
    entries = allowed()
    over = [each for each in all_excesses() if (each.rule, each.where) not in entries]
    assert not over, "over budget (split at a seam, or add a line with a reason to allowlist.txt):\n" + "\n".join(
        map(str, over)
    )


def test_no_exception_goes_over_the_hard_limits() -> None:
    over = [each for each in all_excesses() if each.size > HARD.get(each.rule, each.size)]
    assert not over, "\n".join(map(str, over))


def test_the_allowlist_has_no_line_too_many() -> None:
    needed = {(each.rule, each.where) for each in all_excesses()}
    slept = {place for path in TESTS for place in sleeps(path)}
    needed |= slept | {(rule, where.split("::")[0]) for rule, where in slept}
    idle = sorted(set(allowed()) - needed)
    assert not idle, f"no longer needed in allowlist.txt: {idle}"


def test_test_modules_stay_readable() -> None:
    long = [
        f"{relative(path)}: {lines}"
        for path in TESTS
        if (lines := len(path.read_text(encoding="utf-8").splitlines()))
        > (CONFTEST_LINES if path.name == "conftest.py" else HARD["module"])
    ]
    assert not long, long


def test_no_module_is_a_grab_bag() -> None:
    bags = [
        relative(path)
        for path in SOURCES
        if {part.strip("_") for part in path.relative_to(ROOT / "src").with_suffix("").parts} & BANNED_NAMES
    ]
    assert not bags, f"put each function beside its caller, or find the concept it belongs to: {bags}"


def test_imports_stand_at_the_top_of_a_module() -> None:
    inside = [
        f"{relative(path)}:{node.lineno} in {name}"
        for path in SOURCES
        for name, function in definitions(tree_of(path))
        if isinstance(function, FunctionNode)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not inside, inside


def is_reexport(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module is not None


def is_lazy_reexport(node: ast.stmt) -> bool:
    """Imports for type checkers, of names that are loaded when they are used."""
    if not isinstance(node, ast.If) or ast.unparse(node.test) != "TYPE_CHECKING" or node.orelse:
        return False
    return all(map(is_reexport, node.body))


def test_an_init_is_a_docstring_and_re_exports() -> None:
    problems: list[str] = []
    for path in SOURCES:
        if path.name != "__init__.py":
            continue
        tree = tree_of(path)
        rest = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
        for node in rest:
            is_all = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            if not (is_all or is_reexport(node) or is_lazy_reexport(node)):
                problems.append(f"{relative(path)}:{node.lineno}: {ast.unparse(node).splitlines()[0]}")
    assert not problems, problems


def ambient(tree: ast.Module) -> Iterator[str]:
    """Time, chance and ids that are not asked of a clock."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"{node.lineno}: import {each.name}" for each in names if each.name in BANNED_MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                banned = BANNED_CALLS.get(module, set())
                for each in names:
                    if (
                        module in BANNED_MODULES
                        or each.name in banned
                        or (module == "random" and each.name != "Random")
                    ):
                        yield f"{node.lineno}: from {module} import {each.name}"
            case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name) if (
                name in BANNED_CALLS.get(owner, set()) or (owner == "random" and name != "Random")
            ):
                yield f"{node.lineno}: {owner}.{name}"
            case ast.Call(func=ast.Attribute(attr="Random") | ast.Name(id="Random"), args=[], keywords=[]):
                yield f"{node.lineno}: Random() without a seed"
            case _:
                pass


def test_time_chance_and_ids_come_from_the_clock() -> None:
    found = {
        relative(path): problems
        for path in SOURCES
        if relative(path) != CLOCK and (problems := list(ambient(tree_of(path))))
    }
    assert not found, found


@pytest.mark.parametrize(
    "line",
    [
        "import time; time.time()",
        "from time import time",
        "import uuid",
        "from secrets import token_hex",
        "import os; os.urandom(4)",
        "import datetime; datetime.datetime.now()",
        "import random; random.shuffle(x)",
        "import random; random.Random()",
        "from random import choice",
    ],
    ids=str,
)
def test_the_ban_on_ambient_time_and_chance_sees(line: str) -> None:
    assert list(ambient(ast.parse(line)))


def test_tests_do_not_sleep() -> None:
    entries = allowed()
    places = sorted(where for path in TESTS for rule, where in sleeps(path) if not is_allowed((rule, where), entries))
    assert not places, f"advance the clock, or wait for what is meant to happen: {places}"


def test_tests_name_private_things_only_of_their_own_layer() -> None:
    problems: list[str] = []
    for path in TESTS:
        layer = path.relative_to(ROOT / "tests").parts[0]
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("perdure."):
                private = [each.name for each in node.names if each.name.startswith("_")]
                if private and layer not in {"architecture", node.module.split(".")[1]}:
                    problems.append(f"{relative(path)}:{node.lineno}: {', '.join(private)} of {node.module}")
    assert not problems, problems
