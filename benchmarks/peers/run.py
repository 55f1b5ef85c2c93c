"""The peers and perdure, side by side: `make bench` (all), `make bench CASES=agent ROUNDS=1`, `make bench-bars`.

One line of JSON a figure goes to `.bench/rows.jsonl`, all of them with the machine to `.bench/results.json`.
`--record` writes docs/benchmarks anew. Exits 1 when a bar is missed or a case failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from environments import CACHE, HERE, ROOT, environment, footprint, pins
from machine import busy, machine, revision, wait_for_quiet
from matrix import AGAIN, CASES, CHILD, IMPORTS, PACKAGES, PEERS, Figure, chosen
from page import page
from summary import bars

DOCS = ROOT / "docs/benchmarks"
LIMIT = 300  #: seconds for a case
LONGEST = 1500  #: seconds for filling a store
KILLED = -9


def child() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, **CHILD, "PYTHONPATH": str(ROOT / "src"), "BENCH_STARTED": str(time.time())}


def call(figure: Figure, function: str, folder: Path, limit: float = LIMIT) -> subprocess.CompletedProcess[str]:
    python = environment(figure.environment or figure.peer)
    module = HERE / f"peer_{figure.peer}.py"
    command = [str(python), str(module), function, str(folder)]
    if function in (figure.function, "crash"):
        command.append(json.dumps(figure.arguments))
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit, env=child(), cwd=folder)


def store_of(figure: Figure) -> Path:
    """The folder that a figure starts from. It is made once, and again when what makes it changed."""
    parts = [(HERE / name).read_text() for name in ("job.py", f"peer_{figure.peer}.py")]
    if figure.peer == "perdure":
        format = [ROOT / "src/perdure/records.py", *sorted((ROOT / "src/perdure/backends/sql").rglob("*.sql"))]
        parts += [path.read_text() for path in format] if figure.store == "fill" else [revision()]
    elif figure.peer != "floor":
        parts.append(pins(figure.peer))
    words = [figure.peer, figure.store, *(figure.arguments.values() if figure.store == "crash" else ())]
    name = "-".join(map(str, words))
    folder = CACHE / "stores" / f"{name}.{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"
    if not folder.exists():
        print(f"  filling the store of {figure}", flush=True)
        for old in folder.parent.glob(f"{name}.*"):
            shutil.rmtree(old)
        made = folder.with_name(f"new {name}")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        done = call(figure, figure.store, made, LONGEST)
        if done.returncode != (KILLED if figure.store in ("build", "crash") else 0):
            raise RuntimeError(f"{figure.store} ended with {done.returncode}: {done.stderr[-500:]}")
        made.rename(folder)
    return folder


def measure(figure: Figure) -> list[dict[str, Any]]:
    """The rows of one run."""
    source = store_of(figure) if figure.store else None
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="run-") as name:
        folder = Path(name)
        if source is not None:
            shutil.copytree(source, folder, dirs_exist_ok=True)
        before = wait_for_quiet()
        began = time.perf_counter()
        done = call(figure, figure.function, folder)
        taken = time.perf_counter() - began
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    for line in lines:
        if figure.function == "cold":
            line["figures"] = {"wall_ms": round(taken * 1e3, 1), **imported(figure.peer)}
    return [{**line, "busy": before, "wall_s": round(taken, 2)} for line in lines]


def imported(peer: str) -> dict[str, float]:
    """Milliseconds of a process that imports a peer, and of one that imports nothing."""
    python, times = environment(peer), []
    for code in (f"import {IMPORTS[peer]}", "pass"):
        began = time.perf_counter()
        subprocess.run([str(python), "-c", code], check=True, env=child(), capture_output=True)
        times.append((time.perf_counter() - began) * 1e3)
    return {"import_ms": round(times[0], 1), "python_ms": round(times[1], 1)}


def versions() -> dict[str, str]:
    found = {"perdure": revision()}
    for peer, packages in PACKAGES.items():
        pinned = dict(line.split("==", 1) for line in pins(peer).split() if "==" in line)
        found[peer] = ", ".join(f"{package} {pinned[package]}" for package in packages)
    return found


def rounds(wanted: list[Figure], count: int, log: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    with log.open("w") as file:
        for number in range(count):
            for figure in wanted:
                if number >= figure.rounds:
                    continue
                key = {"case": figure.case, "peer": figure.peer, "round": number * AGAIN + figure.again}
                try:
                    found = [{**key, **row} for row in measure(figure)]
                except KeyboardInterrupt:
                    print("stopped: what was measured is kept", flush=True)
                    failed.append({**key, "what": f"stopped before {figure}", "error": "interrupted"})
                    return rows, failed
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    failed.append({**key, "what": str(figure), "error": str(error)[-400:]})
                    print(f"{number + 1}/{count} {figure}: FAILED {error}", flush=True)
                    continue
                rows += found
                for row in found:
                    file.write(json.dumps(row) + "\n")
                    shown = " ".join(f"{name}={value}" for name, value in row["figures"].items())
                    print(f"{number + 1}/{count} {figure}: {shown}", flush=True)
                file.flush()
    return rows, failed


def record(results: dict[str, Any]) -> None:
    """docs/benchmarks: the results, the page that is made of them, and the plots."""
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (DOCS / "README.md").write_text(page(results))
    subprocess.run([str(environment("plots")), str(HERE / "plots.py"), str(DOCS)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="", help=f"some of: {', '.join(CASES)}, bars")
    parser.add_argument("--record", action="store_true", help="write docs/benchmarks anew")
    parser.add_argument("--redraw", action="store_true", help="measure nothing: page and plots from docs/benchmarks")
    asked = parser.parse_args()
    if asked.redraw:
        record(json.loads((DOCS / "results.json").read_text()))
        return 0
    try:
        wanted = chosen(asked.cases.replace(",", " ").split())
    except ValueError as error:
        parser.error(str(error))
    CACHE.mkdir(exist_ok=True)
    facts, began = machine(CACHE), time.perf_counter()
    names = [peer for peer in PEERS if any(figure.peer == peer for figure in wanted)]
    sizes = {name: footprint(name, environment(name)) for name in names}
    rows, failed = rounds(wanted, asked.rounds, CACHE / "rows.jsonl")
    facts |= {"load_after": round(os.getloadavg()[0], 1), "seconds": round(time.perf_counter() - began)}
    results = {
        "machine": {**facts, "rounds": asked.rounds},
        "versions": versions(),
        "sizes": sizes,
        "rows": rows,
        "failed": failed,
    }
    (CACHE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if asked.record:
        record(results)
    found = bars(rows)
    for bar in found:
        print(bar)
    missed = sum(not bar.kept for bar in found)
    print(
        f"{missed} of {len(found)} bars missed, {len(failed)} cases failed, in {facts['seconds']} s; busy {busy():.0%}"
    )
    return 1 if missed or failed else 0


if __name__ == "__main__":
    sys.exit(main())
