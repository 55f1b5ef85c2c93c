"""What every test shares. Fixtures of one layer live in that layer's folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from perdure.app.opening import open_session, open_storage
from perdure.app.session import Session
from perdure.backends.memory import MemoryStorage
from perdure.harness.registry import Extension, Registry
from perdure.telemetry import Telemetry
from perdure.testing.clock import ManualClock, settle

_CRASH = Path(__file__).parent / "crash"

# No deadline: two cores run several suites at a time.
# In CI the examples are the same each time: a failure there is the change's own.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash",
        choices=("short", "full"),
        default="short",
        help="how many of the places the crash suite kills at: a sample, or all of them",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_CRASH):
            item.add_marker(pytest.mark.crash)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The runner of async tests is asyncio, the only loop that perdure knows."""
    return "asyncio"


@pytest.fixture(scope="session")
def crash_form(request: pytest.FixtureRequest) -> str:
    """`short` or `full`: what `--crash` asked for."""
    return str(request.config.getoption("--crash"))


class Kernel:
    """Opens sessions with task definitions on one store. `crash` ends the process, as far as the store can tell."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock(start=1000.0)
        self.telemetry = Telemetry()
        #: What stands between session and storage, such as faults.
        self.wrap: Callable[[Any], Any] = lambda storage: storage
        self.storage: Any = None
        self.session: Session | None = None
        self._memory: MemoryStorage | None = MemoryStorage(clock=self.clock) if url == "memory:" else None
        self._tasks: tuple[Any, ...] = ()
        self._before = asyncio.all_tasks()

    async def open(self, *tasks: Any, **options: Any) -> Session:
        """A session with these task definitions; without any, those of the session before."""
        assert self.session is None, "close or crash the session before first"
        self._tasks = tasks or self._tasks
        if self._memory is not None:
            self._memory = self._memory.reopened()
        storage = self._memory or await open_storage(self.url, self.clock, self.telemetry, durability="process")
        self.storage = self.wrap(storage)
        self.session = await open_session(
            self.storage, "main", clock=self.clock, telemetry=self.telemetry, registry=self.registry(), **options
        )
        return self.session

    def registry(self, *tasks: Any) -> Registry:
        return Registry([Extension(name="test", tasks=tasks or self._tasks)])

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()
            await self.storage.close()
            self.session = None

    async def crash(self) -> None:
        """The storage goes first, so that nothing which still runs can write; then everything that runs is gone."""
        await self.storage.close()
        for _ in range(100):
            left = [task for task in asyncio.all_tasks() - self._before if task is not asyncio.current_task()]
            left = [task for task in left if "runner" not in getattr(task.get_coro(), "__qualname__", "")]
            if not left:
                break
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.001)
        self.session = None

    async def reopen(self, *tasks: Any) -> Session:
        """After a close in order."""
        await self.close()
        return await self.open(*tasks)

    async def restart(self, *tasks: Any) -> Session:
        """After a crash."""
        await self.crash()
        return await self.open(*tasks)

    async def until(self, condition: Callable[[], object]) -> None:
        """Let things go on, without time passing, until the condition holds."""
        for _ in range(200_000):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it never came to that")

    async def pass_time(self, seconds: float, condition: Callable[[], object] = lambda: True) -> None:
        """Let time pass, and then things go on until the condition holds."""
        await settle()
        await self.clock.advance(seconds)
        await self.until(condition)


@pytest.fixture(params=["memory", *(pytest.param(each, marks=pytest.mark.slow) for each in ("sqlite", "jsonl"))])
async def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kernel]:
    """On every backend."""
    urls = {"memory": "memory:", "sqlite": str(tmp_path / "store.db"), "jsonl": f"jsonl:{tmp_path / 'store'}"}
    one = Kernel(urls[request.param])
    yield one
    await one.close()


@pytest.fixture
async def memory_kernel() -> AsyncIterator[Kernel]:
    """On the memory backend, where all timing is the clock's."""
    one = Kernel("memory:")
    yield one
    await one.close()
