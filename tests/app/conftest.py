"""Two storages on one store in memory: the owner's, which listens for what is handed in, and a looker's."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

import perdure
from perdure.backends.memory import MemoryStorage
from perdure.testing.clock import ManualClock


class Listening(MemoryStorage):
    """A memory storage whose sessions look for inbound items, as those of stores in files do."""

    supports_processes = True


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=1_000.0)


@pytest.fixture
def storage(clock: ManualClock) -> Listening:
    return Listening(clock)


@pytest.fixture
async def owner(storage: Listening, clock: ManualClock) -> AsyncGenerator[perdure.Session]:
    async with perdure.open(storage, clock=clock) as session:
        await session.resume()
        yield session


@pytest.fixture
def beside(storage: Listening) -> MemoryStorage:
    """Another process's storage on the same store."""
    return storage.reopened()
