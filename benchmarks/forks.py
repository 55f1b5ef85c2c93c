"""Forks of short and long conversations: what one costs must not depend on what was said before it.

`python benchmarks/forks.py` prints the figures. Each conversation ends in a head that keeps its last entries, as after
a compaction, so every fork sees the same number of entries for its first request.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

from measure import Bar, at_most, middle, scratch, text

import perdure
from perdure.model import Finished, ModelEvent, Request, TextDelta, Usage
from perdure.session.transaction import EntryKind

LENGTHS = (10, 1_000, 10_000)
FORKS = 40
KEPT = 8
NOTE, SUMMARY = EntryKind("bench.note"), EntryKind("bench.summary")
KB = text(1000)
PLAN = perdure.document("bench.plan", history="rewindable", fork="as_of")
CART = perdure.document("bench.cart", fork="current")


class Short:
    """A model that says one word."""

    name = "bench"
    context_window = None
    asked = 0

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        self.asked = len(request.messages)
        yield TextDelta("well")
        yield Finished("stop", Usage(input=1, output=1))


async def fill(session: perdure.Session, length: int) -> perdure.Conversation:
    """A conversation of that many entries of 1 kB, with documents that were changed all along."""
    chat = await session.conversation(f"of {length}")
    at, entry = 0, None
    while at < length:
        async with chat.commit() as tx:
            for _ in range(min(50, length - at)):
                entry = tx.append(chat.id, NOTE, data=KB)
                at += 1
            (await tx.doc(PLAN))["at"] = at
            (await tx.doc(CART))["at"] = at
    kept = (await chat.entries(limit=KEPT))[-1]
    async with chat.commit() as tx:
        tx.append(chat.id, SUMMARY, data="in short", head=kept.id)
    assert entry is not None
    return chat


async def forks() -> list[Bar]:
    """Time and bytes of a fork, and of its first request, by the length of what it was forked from."""
    costs: dict[int, tuple[float, float, float]] = {}
    model = Short()
    with scratch() as folder:
        path = folder / "store.db"
        async with perdure.open(str(path), model=model, durability="process") as session:
            for length in LENGTHS:
                await fill(session, length)
        for length in LENGTHS:
            costs[length] = await _measured(path, model, length)
    for length, (each, first, grown) in costs.items():
        print(f"     {length:>6,} entries: a fork {each:.3f} ms, {grown:,.0f} bytes; its first request {first:.2f} ms")
    short, long = costs[LENGTHS[0]], costs[LENGTHS[-1]]
    note = f"{LENGTHS[0]} entries against {LENGTHS[-1]:,}"
    return [
        at_most("a fork of 10,000 entries against one of 10", long[0] / short[0], 1.5, "times the time", note),
        at_most("the same, in bytes", long[2] / short[2], 1.1, "times the bytes", note),
        at_most("first request in such a fork", long[1] / short[1], 1.5, "times the time", note),
    ]


async def _measured(path: Path, model: Short, length: int) -> tuple[float, float, float]:
    """In a session that was just opened: milliseconds of a fork, of a first request, and the bytes of a fork."""
    before = _size(path)  # with the store closed: a second SQLite in this process would drop its locks
    async with perdure.open(str(path), model=model, durability="process") as session:
        chat = await session.conversation(f"of {length}")
        newest = (await chat.entries(limit=1))[0].id
        took, made = [], []
        for _ in range(FORKS):
            began = time.perf_counter()
            made.append(await chat.fork(newest))
            took.append(time.perf_counter() - began)
    grown = (_size(path) - before) / FORKS
    asked: list[float] = []
    async with perdure.open(str(path), model=model, durability="process") as session:
        for fork in made:
            began = time.perf_counter()
            await (await (await session.find(fork.id)).submit("go on")).wait()
            asked.append(time.perf_counter() - began)
    return middle(took) * 1000, middle(asked) * 1000, grown


def _size(path: Path) -> int:
    """Bytes of the bodies in the store: pages are too coarse to see a fork."""
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        tables = ("conversation", "entry", "document", "base", "delta")
        return sum(connection.execute(f"SELECT total(length(body)) FROM {name}").fetchone()[0] for name in tables)


def main() -> int:
    bars = asyncio.run(forks())
    for bar in bars:
        print(bar, flush=True)
    return 0 if all(bar.kept for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
