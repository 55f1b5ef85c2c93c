"""What users install is what lies in src/: the data files too."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


@pytest.mark.slow
def test_the_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("uv_build", reason="the build backend comes with `make setup`")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        tmp_path,
    ]

    done = subprocess.run(
        [sys.executable, *build, ROOT], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("perdure/") and not name.endswith("/")}
    files = {
        file.relative_to(SOURCE).as_posix()
        for file in SOURCE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert "perdure/py.typed" in packed
    assert packed == files
