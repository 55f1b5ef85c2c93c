"""The public names with their signatures, against a snapshot.

Nobody changes what users rely on without seeing it in the diff.

Public is what `perdure` and the package `__init__`s re-export. After a wanted change: `make exports`.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from perdure.public_names import PLACES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SNAPSHOT = Path(__file__).with_name("exports.txt")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@cache
def parsed(module: str) -> ast.Module | None:
    path = SOURCE.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


def packages() -> list[str]:
    return sorted(".".join(file.parent.relative_to(SOURCE).parts) for file in SOURCE.rglob("__init__.py"))


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module, with those under an `if`: names that are loaded late are imported for type checkers only."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from statements(node.body)


def reexports(module: str) -> Iterator[tuple[str, str, str]]:
    """What a module re-exports: the name, the module it is taken from, its name there."""
    tree = parsed(module)
    for node in statements(tree.body if tree else ()):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "perdure":
            for alias in node.names:
                if not alias.name.startswith("__"):
                    yield alias.asname or alias.name, node.module, alias.name


def definitions(module: str, name: str) -> list[Definition]:
    """Where a name is made, through any number of re-exports. Several for an overloaded function, none for a module."""
    tree = parsed(module)
    found: list[Definition] = []
    for node in tree.body if tree else ():
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name == name:
                found.append(node)
            case ast.AnnAssign(target=ast.Name(id=target)) if target == name:
                found.append(node)
            case ast.Assign(targets=[ast.Name(id=target)]) if target == name:
                found.append(node)
            case _:
                pass
    if found:
        return found
    return next((definitions(source, original) for mine, source, original in reexports(module) if mine == name), [])


def function_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks = "".join(f"@{ast.unparse(each)} " for each in node.decorator_list)
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{marks}{word} {node.name}({ast.unparse(node.args)}){returns}"


def class_lines(node: ast.ClassDef) -> Iterator[str]:
    heads = [ast.unparse(base) for base in node.bases] + [
        f"{each.arg}={ast.unparse(each.value)}" for each in node.keywords
    ]
    yield f"class {node.name}({', '.join(heads)})"
    for member in node.body:
        match member:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield f"  {ast.unparse(member)}"
            case ast.Assign(targets=[ast.Name(id=name)]) if not name.startswith("_"):
                yield f"  {ast.unparse(member)}"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if (
                name == "__init__" or not name.startswith("_")
            ):
                yield f"  {function_line(member)}"
            case _:
                pass


def inherited(module: str, node: ast.ClassDef) -> Iterator[str]:
    """What a class has from bases of other modules that are no public names themselves."""
    public = {original for _, _, original in reexports("perdure")}
    sources = {name: (source, original) for name, source, original in reexports(module)}
    for base in node.bases:
        source, original = sources.get(ast.unparse(base), ("", ""))
        for made in definitions(source, original) if source and original not in public else ():
            if isinstance(made, ast.ClassDef):
                yield from list(class_lines(made))[1:]


def lines_of(node: Definition, module: str) -> Iterator[str]:
    match node:
        case ast.ClassDef():
            yield from class_lines(node)
            yield from inherited(module, node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield function_line(node)
        case _:
            yield ast.unparse(node)


def snapshot() -> str:
    lines: list[str] = []
    for package in packages():
        exported = sorted(reexports(package))
        if exported:
            lines += [f"## {package}", ""]
        for name, module, original in exported:
            made = definitions(module, original)
            assert made or parsed(f"{module}.{original}"), (
                f"{package} exports {name}, but {module} does not define {original}"
            )
            lines += (
                [f"{name}  ({module})"] + [f"    {line}" for node in made for line in lines_of(node, module)] + [""]
            )
    return "\n".join(lines)


def test_the_names_that_are_loaded_late_are_those_that_are_imported_for_type_checkers() -> None:
    imported = {name: (module, original) for name, module, original in reexports("perdure")}
    assert dict(PLACES) == imported


def test_the_public_names_and_signatures_are_those_of_the_snapshot() -> None:
    now, before = snapshot(), SNAPSHOT.read_text(encoding="utf-8")
    diff = "\n".join(
        difflib.unified_diff(before.splitlines(), now.splitlines(), "exports.txt", "src", lineterm="", n=1)
    )
    assert now == before, f"the public names changed; if that is wanted, run `make exports`:\n{diff}"


def test_every_exported_class_and_function_has_a_docstring() -> None:
    bare: list[str] = []
    for package in packages():
        for name, module, original in reexports(package):
            made = [node for node in definitions(module, original) if not isinstance(node, ast.Assign | ast.AnnAssign)]
            if made and not any(ast.get_docstring(node) for node in made):
                bare.append(f"{package}.{name} ({module})")
    assert not bare, f"exported without a docstring: {bare}"


def test_all_names_exactly_what_perdure_re_exports() -> None:
    tree = parsed("perdure")
    assert tree is not None
    exported = {name for name, _, _ in reexports("perdure")}
    named = {
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
        for name in ast.literal_eval(node.value)
    }
    assert named == exported


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), encoding="utf-8")
