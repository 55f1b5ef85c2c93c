"""A long conversation with 1 kB messages: what a round costs as it grows, and what it leaves on disk."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

from measure import Bar, at_most, middle, scratch, text

import perdure
from perdure.harness.context import render
from perdure.messages import ToolMessage, user
from perdure.model import CallDelta, CallStart, Finished, ModelEvent, Request, TextDelta, Usage
from perdure.records import ConversationId, Entry, EntryId, Seq
from perdure.session.transaction import EntryKind

KB = text(1000)
SUMMARY = EntryKind("bench.summary")


class Caller:
    """A model that calls one tool after each input, and then answers; every message has 1 kB."""

    name = "bench"
    context_window = None

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        if isinstance(request.messages[-1], ToolMessage):
            yield TextDelta(KB)
            yield Finished("stop", Usage(input=1, output=1))
        else:
            yield TextDelta(KB)
            yield CallStart(0, "echo")
            yield CallDelta(0, '{"n": 1}')
            yield Finished("tool_calls", Usage(input=1, output=1))


@perdure.tool(replay="safe")
async def echo(n: int) -> str:
    """Answer with 1 kB."""
    return KB


def _file_size(path: Path) -> int:
    """Bytes of the database once the log is folded into it, in use (without free pages)."""
    with sqlite3.connect(path, timeout=30) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    return int(pages * size)


async def rounds() -> list[Bar]:
    """Rounds 1 to 1,000: flat in time and in bytes."""
    times: list[float] = []
    sizes: dict[int, int] = {}
    messages: dict[int, int] = {}
    written = 0
    with scratch() as folder:
        path = folder / "long.db"
        registry = perdure.Registry([perdure.Extension(name="bench", tools=[echo])])
        for start, stop in ((0, 100), (100, 1000)):
            async with perdure.open(str(path), model=Caller(), registry=registry, durability="process") as session:
                chat = await session.conversation("long")
                for number in range(start, stop):
                    began = time.perf_counter()
                    done = await (await chat.submit(KB)).wait()
                    times.append(time.perf_counter() - began)
                    assert isinstance(done, perdure.Answered), done
                    written += 4 * len(KB)  # input, answer with a call, result, final answer
                    if number % 50 == 49:
                        async with chat.commit() as tx:
                            tx.append(chat.id, SUMMARY, messages=(user("Summary."),), heads_itself=True)
            sizes[stop], messages[stop] = _file_size(path), written
    early, late = middle(times[5:45]), middle(times[955:995])
    growth = (sizes[1000] - sizes[100]) / (messages[1000] - messages[100])
    first = sizes[100] / messages[100]
    return [
        at_most(
            "round 1,000 against round 10",
            late / early,
            1.3,
            "times",
            f"{early * 1e3:.2f} ms, then {late * 1e3:.2f} ms",
        ),
        at_most("file growth, rounds 100 to 1,000", growth, 3.0, "times the messages", f"first 100 rounds {first:.2f}"),
        at_most("growth rate late against early", growth / first, 1.1, "times"),
        _rendering(),
    ]


def _rendering() -> Bar:
    """Rendering a 200-entry transcript, apart: microseconds an entry."""
    from_entries = _entries(200)
    began = time.perf_counter()
    for _ in range(50):
        render(from_entries, model="bench")
    cost = (time.perf_counter() - began) / 50 / 200 * 1e6
    return at_most("rendering a transcript of 200 entries", cost, 50.0, "us an entry")


def _entries(count: int) -> list[Entry]:
    return [
        Entry(
            id=EntryId(index + 1),
            conversation=ConversationId(1),
            kind="perdure.user",
            seq=Seq(index + 1),
            at=0.0,
            messages=(user(KB),),
        )
        for index in range(count)
    ]
