"""The bars of the core, in under a minute: `make bench-quick`. Ratios within one run; exits 1 when a bar is missed."""

from __future__ import annotations

import asyncio
import sys
import time

from commits import commits
from footprint import blocked, imports
from measure import Bar
from rounds import rounds


def main() -> int:
    began = time.perf_counter()
    missed: list[Bar] = []
    for case in (imports, commits, rounds, blocked):
        found = case()
        bars = found if isinstance(found, list) else asyncio.run(found)
        for bar in bars:
            print(bar, flush=True)
        missed += [bar for bar in bars if not bar.kept]
    print(f"{len(missed)} of the bars missed, in {time.perf_counter() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
