"""`python -m perdure.testing.simulation --seeds 200 [--start 0] [--jobs 2]`, or `--seed 7` to replay one."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from perdure.testing.loop import fixed_hash_seed
from perdure.testing.simulation.world import Result, simulate


def attempt(seed: int) -> Result | str:
    """The result of a seed, or how it failed."""
    try:
        return simulate(seed)
    except Exception:
        return traceback.format_exc()


def report(results: Iterable[tuple[int, Result | str]]) -> int:
    """Print failures as they come and totals at the end; returns how many failed."""
    failed, passed, steps = 0, 0, 0
    totals: dict[str, int] = {}
    for seed, result in results:
        if isinstance(result, str):
            failed += 1
            print(
                f"seed {seed} failed; replay: python -m perdure.testing.simulation --seed {seed}\n{result}", flush=True
            )
            continue
        passed += 1
        steps += result.steps
        for name, count in result.counts.items():
            totals[name] = totals.get(name, 0) + count
    for name in sorted(totals):
        print(f"  {totals[name]:>9,} {name}")
    print(f"{steps:,} steps, every invariant checked after each")
    print(f"simulation: {passed} passed, {failed} failed")
    return failed


def main() -> int:
    fixed_hash_seed()
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, help="replay one seed and print its digest")
    options = parser.parse_args()
    if options.seed is not None:
        result = simulate(options.seed)
        print(f"seed {result.seed}: digest {result.digest}")
        print(f"{result.steps:,} steps, {result.seconds:.1f} s of virtual time")
        return 0
    seeds = range(options.start, options.start + options.seeds)
    with ProcessPoolExecutor(options.jobs) as pool:
        return 1 if report(zip(seeds, pool.map(attempt, seeds, chunksize=5), strict=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
