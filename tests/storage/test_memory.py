"""The memory storage: the contract, plain and with a new handle for every commit."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.backends.memory import MemoryStorage
from perdure.errors import SessionOwned, StorageFailed
from perdure.storage import Storage
from perdure.testing.clock import ManualClock
from perdure.testing.storage_contract import StorageContract, reopening
from perdure.testing.storage_fixtures_contract import claimed, entry


class TestMemory(StorageContract):
    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        storage = MemoryStorage()
        yield storage
        await storage.close()

    async def open_beside(self, storage: Storage) -> Storage:
        assert isinstance(storage, MemoryStorage)
        return storage.reopened()


class TestMemoryReopened(StorageContract):
    reopens = True

    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        self.data = MemoryStorage()

        async def open_again() -> Storage:
            return self.data.reopened()

        async with reopening(open_again) as storage:
            yield storage

    async def open_beside(self, storage: Storage) -> Storage:
        return self.data.reopened()


@pytest.mark.anyio
async def test_a_commit_has_settled_when_the_call_returns() -> None:
    """The simulator owns all timing: the storage adds no turn of the loop."""
    line = await claimed(MemoryStorage())

    assert line.commit(entry(10)).done()
    assert line.at(9).exception() is not None


@pytest.mark.anyio
async def test_an_abandoned_handle_is_dead_and_its_sessions_are_free() -> None:
    first = MemoryStorage()
    line = await claimed(first)
    second = first.reopened()
    with pytest.raises(SessionOwned):
        await second.claim("main")

    first.abandon()

    assert not (await second.claim("main")).clean
    with pytest.raises(StorageFailed):
        await line.commit(entry(10))


@pytest.mark.anyio
async def test_workers_are_the_same_in_every_run() -> None:
    first, again = (MemoryStorage(ManualClock()).worker for _ in range(2))

    assert first == again
