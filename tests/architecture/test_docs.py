"""Documents are code: they keep a budget, their links lead somewhere, and each Python block in them runs.

A ```python block of README.md or docs/ is a script of its own, in an empty directory.
```python continues goes on where the block before it ended, as a tutorial does.
What cannot run by itself is a ```text block.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
README_LINES, MARKDOWN_LINES, DESIGN_LINES = 200, 500, 300
MADE = {"build", "dist", "__pycache__"}
BINARY = {".png", ".gif", ".ico", ".woff2", ".db", ".gz", ".pyc"}

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$")
LINK = re.compile(r"\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")


def files() -> Iterator[Path]:
    """Everything that belongs to the repository, git's own and what the tools make left out."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            name for name in folders if name not in MADE and (not name.startswith(".") or name == ".ci")
        )
        yield from (Path(folder, name) for name in sorted(names) if name != ".git" and Path(name).suffix not in BINARY)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


FILES = list(files())
MARKDOWN = [path for path in FILES if path.suffix == ".md"]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


class Script(NamedTuple):
    name: str
    code: str


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, info string and body of each fenced block."""
    opening: re.Match[str] | None = None
    start, body = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if opening is None:
            if match:
                opening, start, body = match, number, []
        elif match and match["fence"].startswith(opening["fence"]) and not match["info"].strip():
            yield start, opening["info"].strip(), "\n".join(body) + "\n"
            opening = None
        else:
            body.append(line.removeprefix(opening["indent"]))
    assert opening is None, f"the block that opens in line {start} is never closed"


def scripts(path: Path) -> list[Script]:
    found: list[Script] = []
    for line, info, body in blocks(path.read_text(encoding="utf-8")):
        language, *words = info.split() or [""]
        if language != "python":
            continue
        if words == ["continues"]:
            assert found, f"{relative(path)}:{line} continues nothing"
            found[-1] = Script(found[-1].name, found[-1].code + body)
        else:
            assert not words, (
                f"{relative(path)}:{line}: unknown words {words} after ```python; there is only `continues`"
            )
            found.append(Script(f"{relative(path)}:{line}", body))
    return found


def documented() -> list[Script]:
    pages = [path for path in MARKDOWN if relative(path) == "README.md" or relative(path).startswith("docs/")]
    return [script for page in pages for script in scripts(page)]


def run_script(code: str, folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("script", documented(), ids=lambda script: script.name)
def test_each_python_block_of_the_documents_runs(script: Script, tmp_path: Path) -> None:
    run_script(script.code, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_each_example_runs(example: Path, tmp_path: Path) -> None:
    run_script(example.read_text(encoding="utf-8"), tmp_path)


def test_examples_are_numbered_so_that_they_are_run() -> None:
    stray = sorted(relative(path) for path in (ROOT / "examples").glob("*.py") if path not in EXAMPLES)
    assert not stray, stray


def test_documents_keep_their_budget() -> None:
    def budget(name: str) -> int:
        return (
            README_LINES if name == "README.md" else DESIGN_LINES if name.startswith("docs/design/") else MARKDOWN_LINES
        )

    sizes = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MARKDOWN}
    long = {name: size for name, size in sizes.items() if size > (60 if name == "AGENTS.md" else budget(name))}
    assert {"README.md", "AGENTS.md", "CONTRIBUTING.md"} <= set(sizes)
    assert not long, long


@pytest.mark.parametrize("page", MARKDOWN, ids=relative)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for _, _, body in blocks(text):
        text = text.replace(body, "\n")
    targets = [match["target"].split("#")[0] for match in LINK.finditer(text)]
    dead = [target for target in targets if target and "://" not in target and not (page.parent / target).exists()]
    assert not dead, f"{relative(page)} links to what is not there: {dead}"


def test_no_file_carries_what_is_forbidden() -> None:
    lines = Path(__file__).with_name("forbidden.txt").read_text(encoding="utf-8").splitlines()
    rules = [re.split(r" {2,}", line, maxsplit=1) for line in lines if line and not line.startswith("#")]
    found: list[str] = []
    for path in FILES:
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [
            f"{relative(path)}: {match[0]!r} ({why})" for pattern, why in rules for match in re.finditer(pattern, text)
        ]
    assert rules
    assert not found, "\n".join(found)


def test_changes_are_named_by_issue_and_kind() -> None:
    kinds = {"added", "changed", "fixed", "removed", "breaking"}
    wrong = [
        path.name
        for path in (ROOT / "changes").iterdir()
        if path.name != "README.md"
        and not ((match := re.fullmatch(r"\d+(-[a-z0-9-]+)?\.([a-z]+)\.md", path.name)) and match[2] in kinds)
    ]
    assert not wrong, f"name a fragment changes/<issue>.<kind>.md, kind one of {sorted(kinds)}: {wrong}"
