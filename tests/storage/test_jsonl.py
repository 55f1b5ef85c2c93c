"""The JSONL storage: the contract, plain, reopened and by two processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from perdure.backends.jsonl import JsonlStorage, open_jsonl
from perdure.storage import Storage
from perdure.testing.storage_contract import StorageContract, reopening
from perdure.testing.storage_process_contract import ProcessContract


class JsonlContract(StorageContract):
    supports_processes = True
    durability: Literal["process", "power"] = "power"

    @pytest.fixture(autouse=True)
    def path(self, tmp_path: Path) -> Path:
        self.store = tmp_path / "store"
        return self.store

    async def open_beside(self, storage: Storage) -> Storage:
        return await open_jsonl(self.store, durability=self.durability)


@pytest.mark.slow
class TestJsonl(JsonlContract):
    @pytest.fixture
    async def storage(self, path: Path) -> AsyncIterator[Storage]:
        storage = await open_jsonl(path)
        yield storage
        await storage.close()


@pytest.mark.slow
class TestJsonlReopened(JsonlContract):
    reopens = True
    durability = "process"

    @pytest.fixture
    async def storage(self, path: Path) -> AsyncIterator[Storage]:
        async def open_again() -> JsonlStorage:
            return await open_jsonl(path, durability=self.durability)

        async with reopening(open_again) as storage:
            yield storage


@pytest.mark.slow
class TestJsonlProcesses(ProcessContract):
    opener = "perdure.backends.jsonl:open_jsonl"

    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Storage]:
        self.store = tmp_path / "store"
        self.opener_arguments = (str(self.store),)
        storage = await open_jsonl(self.store)
        yield storage
        await storage.close()

    async def open_beside(self, storage: Storage) -> Storage:
        return await open_jsonl(self.store)
