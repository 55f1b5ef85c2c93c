"""One commit of an entry and a document delta, against the floor: one caller, and 32 on one session and on 32."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from floor import Floor, commit_statements
from measure import Bar, at_least, middle, scratch, text

import perdure
from perdure.records import Base, Entry, encode

NOTE = perdure.entry_kind("bench.note")
COUNT = perdure.document("bench.count", scope="conversation", initial=lambda: {"n": 0})
BODY = text(200)

Step = Callable[[], Awaitable[None]]


def _bodies() -> tuple[bytes, bytes, bytes]:
    entry = encode(Entry(id=100, conversation=1, kind=NOTE.name, seq=100, at=time.time(), data={"text": BODY}))  # type: ignore[arg-type]
    delta = encode([{"op": "replace", "path": "/n", "value": 100}])
    return entry, delta, encode(Base(version=1, value={"n": 100}))


async def _rate(steps: list[Step], count: int) -> tuple[float, float]:
    """(commits a second, CPU microseconds a commit) of callers that each commit one after another."""

    async def caller(step: Step) -> None:
        for _ in range(count):
            await step()

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller(step) for step in steps))
    total = count * len(steps)
    return total / (time.perf_counter() - wall), (time.process_time() - cpu) / total * 1e6


def _floor_steps(floor: Floor, callers: int, sessions: int) -> list[Step]:
    bodies = _bodies()
    heads = dict.fromkeys(range(1, sessions + 1), 0)

    def step_of(session: int) -> Step:
        async def step() -> None:
            heads[session] += 1
            await floor.commit(commit_statements(session, heads[session], *bodies))

        return step

    return [step_of(index % sessions + 1) for index in range(callers)]


async def _our_steps(stack: AsyncExitStack, path: Path, durability: str, callers: int, sessions: int) -> list[Step]:
    store = await stack.enter_async_context(perdure.store(str(path), durability=durability, model=None))
    chats: list[Any] = []
    for index in range(sessions):
        session = await stack.enter_async_context(store.session(f"s{index}"))
        chats.append(await session.conversation("bench"))

    def step_of(chat: Any) -> Step:
        async def step() -> None:
            async with chat.commit() as tx:
                tx.append(chat.id, NOTE, data={"text": BODY})
                count = await tx.doc(COUNT)
                count["n"] = count["n"] + 1

        return step

    return [step_of(chats[index % sessions]) for index in range(callers)]


async def _compare(synchronous: str, callers: int, sessions: int, count: int, rounds: int) -> dict[str, float]:
    durability = "power" if synchronous == "FULL" else "process"
    ratios, cpus, floor_cpus, rates = [], [], [], []
    with scratch() as folder:
        async with AsyncExitStack() as stack:
            floor = Floor(folder / "floor.db", synchronous, sessions)
            stack.callback(floor.close)
            theirs = _floor_steps(floor, callers, sessions)
            ours = await _our_steps(stack, folder / "ours.db", durability, callers, sessions)
            await _rate(theirs, 20)
            await _rate(ours, 20)
            for _ in range(rounds):
                floor_rate, floor_cpu = await _rate(theirs, count)
                rate, cpu = await _rate(ours, count)
                ratios.append(rate / floor_rate)
                cpus.append(cpu)
                floor_cpus.append(floor_cpu)
                rates.append(rate)
    return {"ratio": middle(ratios), "cpu": middle(cpus), "floor_cpu": middle(floor_cpus), "rate": middle(rates)}


async def commits() -> list[Bar]:
    """The four bars of a commit."""
    bars: list[Bar] = []
    for name, synchronous, callers, sessions, count, limit in (
        ("one caller, NORMAL", "NORMAL", 1, 1, 300, 0.5),
        ("one caller, FULL", "FULL", 1, 1, 200, 0.5),
        ("32 callers, FULL, one session", "FULL", 32, 1, 40, 0.25),
        ("32 callers, FULL, 32 sessions", "FULL", 32, 32, 40, 0.25),
    ):
        found = await _compare(synchronous, callers, sessions, count, 9)
        note = f"{found['rate']:,.0f} commits/s; CPU {found['cpu']:.0f} us a commit, floor {found['floor_cpu']:.0f}"
        bars.append(at_least(f"commit, {name}", found["ratio"], limit, note=note))
    return bars
