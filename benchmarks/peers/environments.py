"""A virtual environment for each peer, made once from its pinned requirements."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".bench"


def requirements(name: str) -> Path:
    return HERE / "requirements" / f"{name}.txt"


def pins(name: str) -> str:
    """What is installed, as text: the environment is made anew when it changes."""
    own = requirements(name).read_text()
    return own + (ROOT / "requirements/runtime.txt").read_text() if name == "perdure" else own


def environment(name: str) -> Path:
    """The Python of an environment, which is made first where it is missing or older than its pins."""
    if name == "floor":  # needs nothing
        name = "burr"
    folder = CACHE / "environments" / name
    stamp, wanted = folder / "pins", hashlib.sha256(pins(name).encode()).hexdigest()
    python = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"making the environment of {name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*install, "--requirement", str(requirements(name))], check=True, cwd=HERE)
    stamp.write_text(wanted)
    return python


#: Run inside an environment: how many distributions it needs and how large they are, with compiled files.
FOOTPRINT = """
import importlib.metadata, pathlib, sysconfig
tools = {"pip", "setuptools", "wheel"}
names = {each.metadata["Name"] for each in importlib.metadata.distributions()} - tools
place = pathlib.Path(sysconfig.get_paths()["purelib"])
size = sum(
    each.stat().st_size for each in place.rglob("*")
    if each.is_file() and each.relative_to(place).parts[0].split("-")[0].lower() not in tools | {"_distutils_hack"}
)
print(len(names), size / 1e6)
"""


def footprint(name: str, python: Path) -> dict[str, float]:
    """Distributions and megabytes that a peer brings."""
    if name == "floor":
        return {"distributions": 0, "mb": 0.0}
    found = subprocess.run([str(python), "-c", FOOTPRINT], capture_output=True, text=True, check=True).stdout.split()
    count, size = int(found[0]), float(found[1])
    if name == "perdure":  # runs from the tree
        count += 1
        size += sum(each.stat().st_size for each in (ROOT / "src").rglob("*") if each.is_file()) / 1e6
    return {"distributions": count, "mb": round(size, 1)}
