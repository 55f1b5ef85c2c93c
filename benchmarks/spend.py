"""What a session used, asked among few and among thousands of conversations: `python benchmarks/spend.py`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from measure import Bar, at_most, middle, scratch

import perdure
from perdure.model import Finished, ModelEvent, Request, TextDelta, Usage

COUNTS = (10, 1_000, 3_000)
ASKED = 60
LIMITED = {"settings": perdure.Settings(max_session_spend=1_000_000.0)}


class Paid:
    """A model whose every answer costs a cent."""

    name = "bench"
    context_window = None

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        yield TextDelta("well")
        yield Finished("stop", Usage(input=10, output=1, cost=0.01))


async def spend() -> list[Bar]:
    """Asking for the total, and a request under a limit of the session: by turns in sessions of different sizes."""
    asks: dict[int, list[float]] = {count: [] for count in COUNTS}
    requests: dict[int, list[float]] = {count: [] for count in COUNTS}
    with scratch() as folder:
        async with perdure.store(str(folder / "store.db"), model=Paid(), durability="process") as store:
            for count in COUNTS:
                await _fill(store, count)
            async with AsyncExitStack() as stack:
                sessions = {n: await stack.enter_async_context(store.session(f"of {n}", **LIMITED)) for n in COUNTS}
                for _ in range(ASKED):
                    for count, session in sessions.items():
                        asks[count].append(await _asked(session, count))
                        requests[count].append(await _requested(session))
    found = {count: (middle(asks[count]) * 1000, middle(requests[count]) * 1000) for count in COUNTS}
    for count, (ask, request) in found.items():
        print(f"     {count:>6,} conversations: the total in {ask:.3f} ms, a request under a limit in {request:.2f} ms")
    few, many = found[COUNTS[0]], found[COUNTS[-1]]
    note = f"{COUNTS[0]} conversations against {COUNTS[-1]:,}"
    return [
        at_most("the total of a session of thousands of conversations", many[0] / few[0], 1.5, "times the time", note),
        at_most("a request under its limit", many[1] / few[1], 1.5, "times the time", note),
    ]


async def _fill(store: perdure.Store, count: int) -> None:
    async with store.session(f"of {count}", **LIMITED) as session:
        for start in range(0, count, 100):
            chats = [await session.conversation(f"c-{start + number}") for number in range(min(100, count - start))]
            sent = [await chat.submit("hello") for chat in chats]
            await asyncio.gather(*(each.wait() for each in sent))


async def _asked(session: perdure.Session, count: int) -> float:
    began = time.perf_counter()
    total = await session.usage()
    took = time.perf_counter() - began
    assert total["models"]["bench"]["requests"] >= count
    return took


async def _requested(session: perdure.Session) -> float:
    chat = await session.conversation("c-0")
    began = time.perf_counter()
    await (await chat.submit("again")).wait()
    return time.perf_counter() - began


def main() -> int:
    bars = asyncio.run(spend())
    for bar in bars:
        print(bar, flush=True)
    return 0 if all(bar.kept for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
