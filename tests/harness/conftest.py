"""A small world: a store that outlives its sessions, a clock that a test moves, and the strictest model."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.app.opening import open_session, open_storage
from perdure.app.session import Session
from perdure.backends.memory import MemoryStorage
from perdure.harness.registry import Extension, Registry, Tool
from perdure.messages import Message, ToolMessage, calls_of
from perdure.records import Entry
from perdure.telemetry import Telemetry
from perdure.testing.clock import ManualClock, settle
from perdure.testing.scripted import ScriptedModel
from perdure.testing.strict import StrictModel, broken_pairs

#: How long a test waits for a condition, and for a thread before it lets time pass, in the machine's seconds.
PATIENCE = 30.0
BREATH = 0.02


class World:
    """Opens sessions on one store. `crash` ends the process, as far as a store can tell; `reopen` is the next start."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock(start=1000.0)
        self.telemetry = Telemetry()
        self.memory: MemoryStorage | None = MemoryStorage(clock=self.clock) if url == "memory:" else None
        self.wrap: Callable[[Any], Any] = lambda storage: storage
        self.storage: Any = None
        self.session: Session | None = None
        self.options: dict[str, Any] = {}
        self.effects: list[Any] = []
        self.strict: list[StrictModel] = []
        self._before = asyncio.all_tasks()

    async def open(self, script: Any = None, *tools: Tool, registry: Registry | None = None, **options: Any) -> Session:
        """A session with a scripted model behind a strict one."""
        model = (
            script if hasattr(script, "stream") else ScriptedModel([] if script is None else script, clock=self.clock)
        )
        self.strict.append(StrictModel(model))
        registry = registry or Registry([Extension(name="test", tools=tools)])
        self.options = {"model": self.strict[-1], "registry": registry, **options}
        return await self.reopen()

    async def reopen(self, **changed: Any) -> Session:
        """As before, but for what is named."""
        assert self.session is None, "close or crash it first"
        self.options |= changed
        if self.memory is not None:
            self.memory = self.memory.reopened()
            storage: Any = self.memory
        else:
            storage = await open_storage(self.url, self.clock, self.telemetry, durability="process")
        self.storage = self.wrap(storage)
        self.session = await open_session(
            self.storage, "main", clock=self.clock, telemetry=self.telemetry, **self.options
        )
        return self.session

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()
            await self.storage.close()
            self.session = None

    async def crash(self) -> None:
        """The storage goes first, so that nothing which still runs can write; then everything that runs is gone."""
        await self.storage.close()
        while left := self._mine():
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0)
        self.session = None

    def _mine(self) -> list[asyncio.Task[Any]]:
        found = [task for task in asyncio.all_tasks() - self._before if task is not asyncio.current_task()]
        return [task for task in found if "runner" not in getattr(task.get_coro(), "__qualname__", "")]

    async def restart(self, **changed: Any) -> Session:
        await self.crash()
        return await self.reopen(**changed)

    async def until(self, condition: Callable[[], object]) -> None:
        """Let things go on, without time passing, until the condition holds."""
        given_up = asyncio.get_running_loop().time() + PATIENCE
        while asyncio.get_running_loop().time() < given_up:
            met = condition()
            if await met if inspect.isawaitable(met) else met:
                return
            await asyncio.sleep(0)
        raise AssertionError("it never came to that")

    async def running(self, what: Any, step: float = 0.05, most: float = 10_000.0) -> Any:
        """Await something while time passes."""
        task = asyncio.ensure_future(what)
        given_up = asyncio.get_running_loop().time() + PATIENCE
        passed = 0.0
        try:
            while not task.done() and passed < most and asyncio.get_running_loop().time() < given_up:
                await self._breathe(task)
                if not task.done():
                    await self.clock.advance(step)
                    passed += step
                    step = min(step * 1.5, 5.0)
            assert task.done(), f"not done after {passed} s"
            return task.result()
        finally:
            task.cancel()

    async def _breathe(self, task: asyncio.Future[Any]) -> None:
        """Let everything go on that needs no time; threads need some of the machine's."""
        await settle()
        threads = self.memory is None or any(thread.name.startswith("perdure ") for thread in threading.enumerate())
        enough = asyncio.get_running_loop().time() + (BREATH if threads else 0.0)
        while not task.done() and asyncio.get_running_loop().time() < enough:  # noqa: ASYNC110 - a thread sets no event
            await asyncio.sleep(0)

    async def verify(self) -> None:
        """At rest: every conversation is valid as it is stored; the model was sent nothing that a provider refuses."""
        for strict in self.strict:
            assert strict.violations == []
        if self.session is not None:
            for conversation in await self.session.conversations():
                chat = await self.session.find(conversation.id)
                if not chat.busy:
                    assert broken_pairs(await entries(chat)) == []


async def entries(chat: Any) -> list[Entry]:
    return [entry async for entry in chat.history()][::-1]


async def messages(chat: Any) -> list[Message]:
    return [message for entry in await entries(chat) for message in entry.messages]


async def results(chat: Any) -> list[ToolMessage]:
    """Tool results, in call order."""
    found = [message for message in await messages(chat) if isinstance(message, ToolMessage)]
    return sorted(found, key=lambda message: [int(part) for part in message.call.split(".")])


def shapes(found: list[Message]) -> list[str]:
    """What kinds of messages they are: `user`, `assistant(2)` with two calls, `tool(error)`."""
    named: list[str] = []
    for message in found:
        name = type(message).__name__.removesuffix("Message").lower()
        count = len(calls_of(message))
        error = message.error if isinstance(message, ToolMessage) else None
        named.append(f"{name}({error or count})" if error or count else name)
    return named


async def _world(url: str) -> AsyncIterator[World]:
    world = World(url)
    yield world
    await world.verify()
    if world.session is not None:
        closing = asyncio.ensure_future(world.close())
        await world.running(closing, step=1.0)


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """On every backend. Threads write to SQLite: wait with `until`, not with `settle`."""
    async for one in _world("memory:" if request.param == "memory" else str(tmp_path / "store.db")):
        yield one


@pytest.fixture
async def memory_world() -> AsyncIterator[World]:
    """On the memory backend, where all timing is the clock's."""
    async for one in _world("memory:"):
        yield one
