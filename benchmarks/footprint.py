"""What waiting costs: memory of blocked conversations, opening a store of 10,000, and importing perdure."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
from measure import Bar, at_most, middle, resident, scratch

import perdure
from perdure.model import ModelEvent, Request, TextDelta

BLOCKED = 5000
WARM = 1000
STORED = 10_000


TIMED = "import time; t = time.perf_counter(); import asyncio, msgspec{more}; print(time.perf_counter() - t)"


class Silent:
    """A model that never answers."""

    name = "silent"
    context_window = None

    def __init__(self) -> None:
        self.waiting = 0
        self.release = asyncio.Event()
        self._reached: tuple[int, asyncio.Event] = (0, asyncio.Event())

    async def reach(self, count: int) -> None:
        """Wait until so many requests wait."""
        self._reached = (count, asyncio.Event())
        if self.waiting < count:
            await self._reached[1].wait()

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        self.waiting += 1
        if self.waiting >= self._reached[0]:
            self._reached[1].set()
        await self.release.wait()
        yield TextDelta("")


async def blocked() -> list[Bar]:
    """Resident memory of conversations that wait for a model, without anyone waiting for them; and of idle ones."""
    with scratch() as folder:
        model = Silent()
        async with perdure.open(str(folder / "many.db"), model=model, durability="process") as session:
            for index in range(WARM):  # the page caches of SQLite fill first: they are no conversation's
                await (await session.conversation(f"w{index}")).submit("hello")
            await model.reach(WARM)
            before = resident()
            for index in range(BLOCKED):
                chat = await session.conversation(f"c{index}")
                await chat.submit(f"hello {index}")
            await model.reach(WARM + BLOCKED)
            each = (resident() - before) / BLOCKED / 1000
        async with perdure.open(str(folder / "idle.db"), model=None, durability="process") as session:
            for index in range(STORED):
                await session.conversation(f"i{index}")
        async with perdure.open(str(folder / "one.db"), model=None, durability="process") as session:
            await session.conversation("i0")
        idle = (_open_in_a_process(folder / "idle.db") - _open_in_a_process(folder / "one.db")) / STORED / 1000
        opening = await _opening(folder)
    return [
        at_most("memory of a conversation blocked in the model", each, 12.0, "kB"),
        at_most("memory of an idle conversation", idle, 0.1, "kB"),
        *opening,
    ]


OPENED = """
import sys; sys.path.insert(0, sys.argv[1])
import perdure
from measure import resident

async def main():
    async with perdure.open(sys.argv[2], model=None) as session:
        await session.conversation("i0")
        print(resident())

perdure.run(main)
"""


def _open_in_a_process(path: Path) -> int:
    """Resident memory of a process that has this store open, in bytes: the least of three."""
    command = [sys.executable, "-c", OPENED, str(Path(__file__).parent), str(path)]
    return min(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3))


async def _opening(folder: Path) -> list[Bar]:
    path = folder / "idle.db"
    floors, ours, lists = [], [], []
    for round in range(7):
        floors.append(_floor_open(path, round))
        began = time.perf_counter()
        async with perdure.open(str(path), model=None) as session:
            ours.append(time.perf_counter() - began)
            began = time.perf_counter()
            newest = await session.conversations(limit=20)
            lists.append(time.perf_counter() - began)
            assert len(newest) == 20
    ratio = middle([mine / floor for mine, floor in zip(ours, floors, strict=True)])
    note = (
        f"{middle(ours) * 1e3:.1f} ms, floor {middle(floors) * 1e3:.1f} ms; newest 20 in {middle(lists) * 1e3:.2f} ms"
    )
    return [at_most(f"opening a store of {STORED:,} conversations", ratio, 10.0, "times the floor", note), *_plan(path)]


def _floor_open(path: Path, round: int) -> float:
    began = time.perf_counter()
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("SELECT head FROM session").fetchall()
    connection.execute("CREATE TABLE IF NOT EXISTS bench_floor (n INTEGER)")
    connection.execute("INSERT INTO bench_floor VALUES (?)", (round,))
    taken = time.perf_counter() - began
    connection.close()
    return taken


def _plan(path: Path) -> list[Bar]:
    """The listing reads an index: SQLite's own plan says so."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    sql = "SELECT body FROM conversation WHERE session = 1 AND listed = 1 ORDER BY id DESC LIMIT 20"
    plan = " ".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}"))
    connection.close()
    return [
        at_most(
            "listing scans without an index",
            0.0 if "USING INDEX" in plan and "TEMP B-TREE" not in plan else 1.0,
            0.0,
            "",
            plan,
        )
    ]


def imports() -> list[Bar]:
    """`import perdure` over `import asyncio, msgspec`, in fresh interpreters, interleaved."""
    with scratch() as folder:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = str(folder)  # compiled once, as an installed package is

        def run(code: str) -> str:
            return subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
            ).stdout

        loaded = run("import perdure, sys; print(' '.join(sys.modules))").split()
        costs: list[float] = []
        for _ in range(11):
            base, ours = (float(run(TIMED.format(more=more))) for more in ("", ", perdure"))
            costs.append((ours - base) * 1e3)
        cost = middle(costs)
    heavy = {
        "pydantic",
        "pydantic_ai",
        "openai",
        "anthropic",
        "textual",
        "rich",
        "click",
        "starlette",
        "griffe",
        "apsw",
    }
    found = sorted(heavy & {name.partition(".")[0] for name in loaded})
    return [
        at_most("import perdure", cost, 80.0, "ms over asyncio and msgspec"),
        at_most("heavy libraries that import perdure loads", len(found), 0, "", ", ".join(found)),
    ]
