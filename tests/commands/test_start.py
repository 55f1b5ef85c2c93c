"""What starting a command loads: help is cheap, and looking needs no schemas and no model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from perdure.cli import main
try:
    main()
finally:
    print(*sys.modules, sep="\\n", file=sys.stderr)
"""


def loaded(path: Path, *args: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args], cwd=path, capture_output=True, text=True, timeout=30, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("args", [["--help"], ["--version"]], ids=" ".join)
def test_help_loads_no_command_and_no_heavy_library(tmp_path: Path, args: list[str]) -> None:
    modules = loaded(tmp_path, *args)
    packages = {name.partition(".")[0] for name in modules}
    commands = sorted(name for name in modules if name.startswith("perdure.commands."))
    assert "click" in packages
    assert not packages & {"pydantic", "rich", "apsw", "griffe", "platformdirs"}
    assert commands == ["perdure.commands.visible"]


def test_looking_loads_neither_schemas_nor_a_model(shop) -> None:
    shop.perdure("run", "Hello")
    for args in (["ls"], ["show", "1"], ["inspect"]):
        modules = loaded(shop.path, *args)
        assert "apsw" in modules
        assert not {"pydantic", "griffe", "perdure.providers.demo", "perdure.sandboxes.local"} & modules
