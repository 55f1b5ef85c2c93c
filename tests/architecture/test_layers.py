"""The layers of docs/design/overview.md: import-linter holds the arrows, this file what import-linter cannot see."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "perdure"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

#: Packages of adapters: loaded by name, so that nobody pays for one that is not used.
ADAPTERS = frozenset({"backends", "providers", "schemas", "sandboxes", "exporters", "client", "server", "protocols"})
#: Distributions whose import name is another one.
IMPORT_NAMES = {
    "google-genai": "google",
    "griffelib": "griffe",
    "psycopg[binary,pool]": "psycopg",
    "pydantic-ai-slim": "pydantic_ai",
}

SOURCES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import; `from a import b` counts as `a`."""
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif node.module is not None:
            yield node.lineno, node.module


def modules_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}


def contract(id: str) -> dict[str, list[str]]:
    return next(each for each in PROJECT["tool"]["importlinter"]["contracts"] if each["id"] == id)


def layer_names() -> list[tuple[str, bool]]:
    """Each name in the layers with whether it stands in parentheses."""
    names = [name.strip() for row in contract("layers")["layers"] for name in re.split(r"[|:]", row)]
    return [(name.strip("()"), name.startswith("(")) for name in names]


@pytest.mark.slow
def test_imports_keep_to_the_layers() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_parentheses_are_only_around_layers_that_are_not_written() -> None:
    written = modules_in(PACKAGE)
    wrong = [name for name, optional in layer_names() if optional and name in written]
    assert not wrong, f"written, so take the parentheses off in pyproject.toml (tool.importlinter): {wrong}"


def test_every_adapter_package_is_in_the_contract_of_adapters() -> None:
    written = {f"perdure.{name}" for name in ADAPTERS - {"client", "server", "protocols"} if (PACKAGE / name).is_dir()}
    assert written == set(contract("adapters")["source_modules"])


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_inside_the_package_names_come_from_where_they_are_defined(path: Path) -> None:
    """Another package's `__init__` is public and may be asked; `perdure` itself and the own package may not."""
    own = ["perdure", *path.relative_to(PACKAGE).parts[:1]] if path.parent != PACKAGE else ["perdure"]
    forbidden = {"perdure", ".".join(own)}
    problems: list[str] = []
    for node in import_nodes(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            problems.append(f"line {node.lineno}: relative import")
        elif isinstance(node, ast.ImportFrom) and node.module in forbidden:
            modules = modules_in(PACKAGE.parent.joinpath(*node.module.split(".")))
            reexports = [alias.name for alias in node.names if alias.name not in modules]
            if reexports:
                problems.append(f"line {node.lineno}: {', '.join(reexports)} from {node.module}")
        elif isinstance(node, ast.Import) and any(alias.name == "perdure" for alias in node.names):
            problems.append(f"line {node.lineno}: import perdure")
    assert not problems, problems


def test_no_init_loads_an_adapter() -> None:
    problems: list[str] = []
    for path in PACKAGE.rglob("__init__.py"):
        mine = module_name(path).split(".")[1:2]
        for line, name in imports(path):
            parts = name.split(".")
            if parts[0] == "perdure" and len(parts) > 1 and (parts[1] in ADAPTERS or (mine and mine[0] in ADAPTERS)):
                problems.append(f"{module_name(path)}, line {line}: {name}")
    assert not problems, problems


def test_the_package_needs_only_what_it_declares() -> None:
    project = PROJECT["project"]
    requirements = project["dependencies"] + [
        r for extra in project.get("optional-dependencies", {}).values() for r in extra
    ]
    distributions = {re.split(r"[ <>=!~;\[]", requirement)[0] for requirement in requirements}
    declared = {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in distributions}
    known = declared | set(sys.stdlib_module_names) | {"perdure"}
    problems = [
        f"{module_name(path)}, line {line}: {name}"
        for path in SOURCES
        for line, name in imports(path)
        if name.split(".")[0] not in known
        # The test kit serves people who have pytest; only its contract suites ask for it.
        and not (name.split(".")[0] == "pytest" and path.parent.name == "testing" and path.stem.endswith("_contract"))
    ]
    assert not problems, problems


def test_every_declared_dependency_is_imported_somewhere() -> None:
    used = {name.split(".")[0] for path in SOURCES for _, name in imports(path)}
    declared = {re.split(r"[ <>=!~;\[]", requirement)[0] for requirement in PROJECT["project"]["dependencies"]}
    idle = sorted(name for name in declared if IMPORT_NAMES.get(name, name.replace("-", "_")) not in used)
    assert not idle, f"declared in pyproject.toml and imported nowhere: {idle}"
