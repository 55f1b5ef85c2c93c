"""docs/field-reports.md: every report stands there once, with tests that exist or the part that brings it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "field-reports.md"
REPORTS = [f"I{number:02d}" for number in range(1, 86)]

ROW = re.compile(r"^\| (?P<id>I\d+) \| (?P<behaviour>[^|]+) \| (?P<held>[^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"`(?P<path>[a-z_/]+\.py)::(?P<name>\w+)`")
PART = re.compile(r"^\| (?P<word>[A-Za-z-]+) \| ", re.MULTILINE)


class Row(NamedTuple):
    id: str
    behaviour: str
    held: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        return TEST.findall(self.held)


TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [Row(*match.groups()) for match in ROW.finditer(TEXT)]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_report_stands_in_the_table_once() -> None:
    assert [row.id for row in ROWS] == REPORTS
    mentioned = Counter(re.findall(r"^\| (I\d+)\b", TEXT, re.MULTILINE))
    assert mentioned == Counter(REPORTS), "a line of the table is not of the form | I01 | behaviour | held by |"


def test_every_test_that_is_named_exists() -> None:
    named: dict[str, list[str]] = {}
    for row in ROWS:
        for path, name in row.tests:
            named.setdefault(path, []).append(name)
    missing = [path for path in named if not (ROOT / "tests" / path).is_file()]
    assert not missing, missing
    unknown = [f"{path}::{name}" for path in named for name in set(named[path]) - functions(ROOT / "tests" / path)]
    assert not unknown, unknown


def test_no_test_is_named_twice() -> None:
    counted = Counter(f"{path}::{name}" for row in ROWS for path, name in row.tests)
    twice = [name for name, count in counted.items() if count > 1]
    assert not twice, f"each report has tests of its own: {twice}"


def test_a_report_without_a_test_names_the_part_that_brings_it() -> None:
    parts = set(PART.findall(TEXT.split("\n## ")[0]))
    unexplained = [row.id for row in ROWS if not row.tests and row.held.split()[0] not in parts]
    assert not unexplained, f"name one of {sorted(parts)}: {unexplained}"


def test_a_behaviour_is_a_sentence() -> None:
    wrong = [row.id for row in ROWS if not re.search(r"[.)]$", row.behaviour) or len(row.behaviour) > 180]
    assert not wrong, wrong
