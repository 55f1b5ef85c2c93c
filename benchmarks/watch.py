"""What watching costs: the run that is watched, and the memory of readers that stop reading."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from measure import Bar, at_most, middle, scratch, text

import perdure
from perdure.messages import ToolMessage
from perdure.model import CallDelta, CallStart, Finished, ModelEvent, Request, TextDelta, Usage

KB = text(1000)
TURNS = 40
RUNS = 10
TOKENS = 200_000


class Caller:
    """A model that streams a little, calls one tool, and answers."""

    name = "bench"
    context_window = None

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        for start in range(0, len(KB), 100):
            yield TextDelta(KB[start : start + 100])
        if isinstance(request.messages[-1], ToolMessage):
            yield Finished("stop", Usage(input=1, output=1))
        else:
            yield CallStart(0, "echo")
            yield CallDelta(0, '{"n": 1}')
            yield Finished("tool_calls", Usage(input=1, output=1))


class Talker:
    """A model that streams for long."""

    name = "talker"
    context_window = None

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        for number in range(self.tokens):
            yield TextDelta(f"w{number % 10} ")
            if number % 20 == 0:
                await asyncio.sleep(0)
        yield Finished("stop", Usage(input=1, output=1))


@perdure.tool(replay="safe")
async def echo(n: int) -> str:
    """Answer with 1 kB."""
    return KB


async def _read(watch: Any) -> None:
    async for _ in watch:
        pass


async def _runs(chat: Any, watch: Any) -> list[float]:
    """Processor time of the whole process for each of some runs, which one reader follows, or nobody."""
    spent: list[float] = []
    async with AsyncExitStack() as stack:
        reading = None
        if watch is not None:
            reading = asyncio.ensure_future(_read(await stack.enter_async_context(watch)))
        for _ in range(RUNS):
            began = time.process_time()
            await (await chat.submit("go")).wait()
            spent.append(time.process_time() - began)
        if reading is not None:
            reading.cancel()
    return spent


async def cost() -> list[Bar]:
    """Runs of two rounds, followed and not followed in turn."""
    registry = perdure.Registry([perdure.Extension(name="bench", tools=[echo])])
    spent: dict[str, list[float]] = {"nobody": [], "frames": [], "events": []}  # a block of runs each turn
    with scratch() as folder:
        path = str(folder / "watched.db")
        async with perdure.open(path, model=Caller(), registry=registry, durability="process") as session:
            for turn in range(TURNS + 1):
                for who in spent:
                    chat = await session.conversation(f"{who} {turn}")
                    watch = {"frames": chat.watch, "events": chat.events}.get(who, lambda: None)()
                    took = await _runs(chat, watch)
                    if turn:  # the first warms up
                        spent[who].append(middle(took[2:]))
    note = f"{middle(spent['nobody']) * 1e3:.2f} ms a run of two rounds; median of {TURNS} pairs of blocks side by side"

    def more(who: str) -> float:
        return (middle([mine / alone for mine, alone in zip(spent[who], spent["nobody"], strict=True)]) - 1) * 100

    return [
        at_most("a run whose frames are read, processor time", more("frames"), 5.0, "% more", note),
        at_most("a run whose agent events are read, processor time", more("events"), 10.0, "% more"),
    ]


async def _talk(readers: int) -> tuple[int, int]:
    """Peak of what is allocated while an answer streams past readers that read once and stop; bytes, and commits."""
    async with perdure.open("memory:", model=Talker(TOKENS), progress_interval=0.005) as session:
        chat = await session.conversation("long")
        async with AsyncExitStack() as stack:
            watches = [await stack.enter_async_context(chat.watch()) for _ in range(readers)]
            for watch in watches:
                await anext(watch)
            gc.collect()
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            frames = 0

            def count(_: object) -> None:
                nonlocal frames
                frames += 1

            stop = session.observe(count)
            await (await chat.submit("go")).wait()
            stop()
            gc.collect()
            peak = tracemalloc.get_traced_memory()[1]
    return peak - before, frames


async def memory() -> list[Bar]:
    """200,000 token events past nobody, and past 100 readers that stopped reading."""
    tracemalloc.start()
    try:
        alone, _ = await _talk(0)
        watched, commits = await _talk(100)
    finally:
        tracemalloc.stop()
    note = f"peak {alone / 1e6:.1f} MB without, {watched / 1e6:.1f} MB with them; {commits} commits"
    return [
        at_most("100 readers that stopped before 200,000 token events", (watched - alone) / 1e6, 16.0, "MB more", note)
    ]


def main() -> int:
    cases = [cost, memory] if len(sys.argv) == 1 else [{"cost": cost, "memory": memory}[each] for each in sys.argv[1:]]
    bars = [bar for case in cases for bar in asyncio.run(case())]
    for bar in bars:
        print(bar, flush=True)
    return 1 if any(not bar.kept for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
