"""A process that works through inputs under a limit on spend, with a provider that keeps a bill of its own.

spender.py DIRECTORY [WHERE N]

With WHERE ("asked" or "billed") it kills itself at the N-th line of that kind on the bill.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from perdure.app.opening import open_session
from perdure.backends.sqlite import open_sqlite
from perdure.clock import SystemClock
from perdure.harness.harness import Settings
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import ToolMessage
from perdure.model import CallDelta, CallStart, Finished, ModelEvent, Request, TextDelta, Usage
from perdure.telemetry import Telemetry
from perdure.testing.crash import install_from_environment
from perdure.testing.vfs import kill_self

INPUTS, PRICE, LIMIT = 5, 0.25, 1_000.0


class Provider:
    """Calls a tool after each input, then answers. Every answer is billed when it is whole."""

    name: str
    context_window: int | None = None

    def __init__(self, bill: Path, where: str, at: int) -> None:
        self.name = "provider"
        self._bill = bill
        self._where = where
        self._at = at

    def _note(self, what: str) -> None:
        with self._bill.open("a") as file:
            file.write(f"{what}\n")
        if what == self._where:
            self._at -= 1
            if self._at == 0:
                kill_self()

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        self._note("asked")
        yield TextDelta("well")
        if not isinstance(request.messages[-1], ToolMessage):
            yield CallStart(0, "look")
            yield CallDelta(0, "{}")
        self._note("billed")
        stop = "stop" if isinstance(request.messages[-1], ToolMessage) else "tool_calls"
        yield Finished(stop, Usage(input=10, output=1, cost=PRICE))


@tool(replay="safe")
async def look() -> str:
    """Look."""
    return "seen"


async def main(directory: Path, where: str, at: int) -> None:
    clock, telemetry = SystemClock(), Telemetry()
    vfs = install_from_environment(telemetry)
    storage = await open_sqlite(directory / "store.db", clock=clock, telemetry=telemetry, vfs=vfs)
    session = await open_session(
        storage,
        "main",
        clock=clock,
        telemetry=telemetry,
        registry=Registry([Extension(name="x", tools=[look])]),
        model=Provider(directory / "bill", where, at),
        settings=Settings(max_session_spend=LIMIT),
    )
    chat = await session.conversation("till")
    for number in range(INPUTS):
        sent = await chat.submit(f"input {number}", request_id=str(number))
        await sent.wait()
    await session.close()
    await storage.close()


if __name__ == "__main__":
    folder, *rest = sys.argv[1:]
    os.umask(0o077)
    asyncio.run(main(Path(folder), *((rest[0], int(rest[1])) if rest else ("", 0))))
