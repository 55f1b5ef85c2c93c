"""The job: what every peer is asked to do, and how it is measured. Standard library only, it runs beside each of them.

A module `peer_<name>.py` has one function a case, all with the same names and meanings:

    agent    an input, 10 rounds of a model that asks for one tool, an answer; alone, or 100 conversations at once
    durable  steps that change a counter in a state of some size, one after another
    growth   turns of two messages in one conversation, which gets longer and longer
    fanout   one step, many at once, one that has all results
    stream   10,000 pieces of an answer to one consumer
    build, resume   a conversation of 1,000 messages, killed inside a model request; the next process
    begin, follow   the same conversation at rest; the next process asks something new
    fill, many      a store with 10,000 conversations; the next process opens one and lists the newest 20
    memory   conversations that wait for a model
    cold     one short run in a fresh process
    crash, look     killed inside the fifth tool call; what the next process finds and does

Models and tools call the hooks here, so that every case counts the work that was really done.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import inspect
import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROUNDS = 10
ALONE = 20  #: runs of the agent, one after another, when there is one conversation
SEEDED = 998  #: messages of the long conversation before its last input
PIECES = 10_000
MARKS = (10, 100, 500)  #: turns at which growth is read
TURNS = MARKS[-1]
STORED = 10_000  #: conversations of the full store
KILLED_AT = 4  #: the tool call, counted from 0, in which the crash comes

now = time.perf_counter


def noise(size: int) -> str:
    """So many characters that no compression makes small; the same in every process."""
    return base64.b64encode(random.Random(size).randbytes(size)).decode()[:size]


BODY = noise(193)
SAID = noise(200)
RESULT = "result " * 10
ANSWER = "done"


def question(run: int) -> str:
    """The input of a run: 200 characters that name the run, so that a model's function knows whose request it is."""
    return f"{run:06d} {BODY}"


def run_of(text: str) -> int:
    """The run that an input names."""
    return int(text[:6])


# -- hooks ------------------------------------------------------------------------------------


class Seen:
    """What models and tools were asked in this process."""

    def __init__(self) -> None:
        self.kill_request: int | None = None  #: die in the request that has so many tool results
        self.kill_tool: int | None = None  #: die in the call with this number, after its effect
        self.effects: Path | None = None
        self.clear()

    def clear(self) -> None:
        self.ticks: dict[int, list[float]] = defaultdict(list)
        self.first: float | None = None
        self.longest = 0
        self.requests = 0


SEEN = Seen()


def asked(messages: int, results: int) -> None:
    """A model got a request with so many messages, of which so many are tool results."""
    SEEN.requests += 1
    if SEEN.first is None:
        SEEN.first = now()
    SEEN.longest = max(SEEN.longest, messages)
    if SEEN.kill_request is not None and results >= SEEN.kill_request:
        os.kill(os.getpid(), signal.SIGKILL)


def worked(run: int, number: int) -> str:
    """The tool: its result is ten words, its effect a line in a file where the case wants one."""
    SEEN.ticks[run].append(now())
    if SEEN.effects is not None:
        with SEEN.effects.open("a") as file:
            file.write(f"{number}\n")
    if SEEN.kill_tool == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return RESULT


# -- measuring --------------------------------------------------------------------------------


class Measured:
    seconds = 0.0
    cpu = 0.0  #: of all threads


@contextmanager
def measured() -> Iterator[Measured]:
    """Wall and processor time of a block."""
    found = Measured()
    gc.collect()
    wall, cpu = now(), time.process_time()
    yield found
    found.seconds, found.cpu = now() - wall, time.process_time() - cpu


def share(values: list[float], part: float) -> float:
    """The value below which this part of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


async def drive(run: Callable[[int], Awaitable[str]], conversations: int) -> dict[str, float]:
    """Runs of the agent, so many at once: `run(n)` does the nth and returns its answer."""
    runs = max(conversations, ALONE)
    assert await run(999_999) == ANSWER
    SEEN.clear()
    gate = asyncio.Semaphore(conversations)

    async def one(number: int) -> None:
        async with gate:
            assert await run(number) == ANSWER

    with measured() as found:
        await asyncio.gather(*(one(number) for number in range(runs)))
    for number in range(runs):
        assert len(SEEN.ticks[number]) == ROUNDS, f"run {number} used its tool {len(SEEN.ticks[number])} times"
    assert SEEN.requests == runs * (ROUNDS + 1), SEEN.requests
    gaps = [late - early for ticks in SEEN.ticks.values() for early, late in itertools.pairwise(ticks)]
    return {
        "runs_s": runs / found.seconds,
        "round_ms": share(gaps, 0.5) * 1e3,
        "round_p99_ms": share(gaps, 0.99) * 1e3,
        "cpu_ms_run": found.cpu / runs * 1e3,
        "runs": runs,
    }


async def grow(turn: Callable[[int], Awaitable[None]], limit: float = 60.0) -> dict[str, float]:
    """Turns of one conversation until `TURNS`, or until `limit` seconds are over: what one costs at each mark."""
    times: list[float] = []
    began = now()
    for number in range(TURNS):
        start = now()
        await turn(number)
        times.append(now() - start)
        if now() - began > limit:
            break
    figures = {"turns": float(len(times))}
    for mark in MARKS:
        if len(times) >= mark:
            figures[f"ms_at_{mark}"] = share(times[max(0, mark - max(10, mark // 20)) : mark], 0.5) * 1e3
    return figures


def resident() -> int:
    """Resident memory in bytes, after a collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def until(condition: Callable[[], bool], limit: float = 120.0) -> None:
    """Wait until something holds that nobody tells."""
    began = now()
    while not condition():
        assert now() - began < limit, "it did not come to hold"
        await asyncio.sleep(0.02)


# -- stores -----------------------------------------------------------------------------------


def modes(connection: sqlite3.Connection) -> dict[str, Any]:
    """How a connection of Python's own sqlite3 makes writes safe."""
    return {
        "journal": connection.execute("PRAGMA journal_mode").fetchone()[0],
        "synchronous": connection.execute("PRAGMA synchronous").fetchone()[0],
    }


def count(path: Path, sql: str) -> int:
    """A number out of a database file, read by another connection."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        return int(connection.execute(sql).fetchone()[0])
    finally:
        connection.close()


def size(path: Path) -> int:
    """Bytes of a database once its log is folded into it."""
    connection = sqlite3.connect(path, timeout=30)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path.stat().st_size


# -- crashes ----------------------------------------------------------------------------------


def crashing(folder: Path) -> None:
    """From now on the tool's effects are written down, and the fifth call kills this process."""
    SEEN.effects, SEEN.kill_tool = folder / "effects", KILLED_AT


def effects(folder: Path) -> Counter[int]:
    """How often each call had its effect."""
    return Counter(int(line) for line in (folder / "effects").read_text().split())


def crashed(folder: Path, *, kept: int, answered: bool, alone: str) -> dict[str, Any]:
    """What a crash left. `kept`: results found before anything went on; `alone`: what it took to go on."""
    times = effects(folder)
    return {
        "results_kept": kept,
        "answered": answered,
        "goes_on": alone,
        "killed_call_ran": times[KILLED_AT],
        "finished_calls_ran_again": sum(times[number] > 1 for number in range(KILLED_AT)),
        "requests_after": SEEN.requests,
    }


# -- the door ---------------------------------------------------------------------------------


def report(variant: str, figures: dict[str, Any], **checked: Any) -> None:
    """One row. `checked` is what was asserted or read back, for whoever wonders."""
    rounded = {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps({"variant": variant, "figures": rounded, "checked": checked}), flush=True)


def report_first(variant: str, began: float, opened: float, warm: bool, **checked: Any) -> None:
    """A row for the first request after opening: from the opening, or (in a cold process) from the process's start."""
    assert SEEN.first is not None, "the model was asked nothing"
    assert SEEN.longest >= SEEDED + 3, f"the model was sent {SEEN.longest} messages"
    figures = {"first_ms": (SEEN.first - began) * 1e3, "open_ms": (opened - began) * 1e3}
    if not warm:
        started = float(os.environ["BENCH_STARTED"])
        figures = {"first_ms": (time.time() - now() + SEEN.first - started) * 1e3}
        variant += ", with imports"
    report(variant, figures, messages=SEEN.longest, **checked)


def main(cases: Iterable[Callable[..., Any]]) -> None:
    """`python peer_x.py CASE FOLDER '{"argument": value}'`"""
    known = {case.__name__: case for case in cases}
    case = known[sys.argv[1]]
    arguments = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    found = case(Path(sys.argv[2]), **arguments)
    if inspect.iscoroutine(found):
        asyncio.run(found)
