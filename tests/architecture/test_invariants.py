"""The invariants of docs/design/ have ids, and each id is carried by a test: `@pytest.mark.invariant("S-3")`.

A page defines an id by writing it in bold: **S-3**. Source code may cite it; to cite what no page defines fails, too.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))
#: Contract suites are tests that live in the package.
TESTS = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "src/perdure/testing").rglob("*_contract*.py")])
TEXTS = sorted(
    [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
)

DEFINITION = re.compile(r"\*\*([A-Z]+-\d+)\*\*")
CITATION = re.compile(r"(?<![\w-])([A-Z]+)-(\d+)(?![\w-])")


def defined() -> Counter[str]:
    return Counter(id for page in DESIGN for id in DEFINITION.findall(page.read_text(encoding="utf-8")))


@cache
def carried() -> list[tuple[str, str]]:
    return list(_carried())


def _carried() -> Iterator[tuple[str, str]]:
    """Each id that a marker names, with the file. A marker may stand on a test, on a class, or in `pytestmark`."""
    for path in TESTS:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "invariant" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "pytest.mark.invariant",
                "mark.invariant",
                "invariant",
            }:
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), (
                        f"{path.name}:{node.lineno}: an invariant's id is written out"
                    )
                    yield str(argument.value), path.relative_to(ROOT).as_posix()


def test_each_invariant_is_defined_once() -> None:
    twice = sorted(id for id, count in defined().items() if count > 1)
    assert not twice, f"in bold more than once in docs/design: {twice}"


def test_each_invariant_is_carried_by_a_test() -> None:
    if not DESIGN:
        pytest.skip("docs/design has no page yet")
    assert defined(), "docs/design defines no invariant: write its id in bold, **S-1**"
    bare = sorted(set(defined()) - {id for id, _ in carried()})
    assert not bare, f'no test carries @pytest.mark.invariant("ID") for: {bare}'


def test_each_invariant_that_a_test_carries_is_defined() -> None:
    if not DESIGN:
        pytest.skip("docs/design has no page yet")
    unknown = sorted({f"{id} ({where})" for id, where in carried() if id not in defined()})
    assert not unknown, f"no page of docs/design defines: {unknown}"


def test_each_citation_names_an_invariant_that_exists() -> None:
    ids = set(defined())
    prefixes = {id.split("-")[0] for id in ids}
    unknown = [
        f"{path.relative_to(ROOT).as_posix()}: {match[0]}"
        for path in TEXTS
        if path != Path(__file__)
        for match in CITATION.finditer(path.read_text(encoding="utf-8"))
        if match[1] in prefixes and match[0] not in ids
    ]
    assert not unknown, unknown
