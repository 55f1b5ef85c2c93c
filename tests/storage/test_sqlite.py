"""The SQLite storage: the contract, plain, reopened and by two processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from perdure.backends.sqlite import SqliteStorage, open_sqlite
from perdure.storage import Storage
from perdure.testing.storage_contract import StorageContract, reopening
from perdure.testing.storage_process_contract import ProcessContract


class SqliteContract(StorageContract):
    supports_processes = True
    durability: Literal["process", "power"] = "power"

    @pytest.fixture(autouse=True)
    def path(self, tmp_path: Path) -> Path:
        self.store = tmp_path / "s.db"
        return self.store

    async def open_beside(self, storage: Storage) -> Storage:
        return await open_sqlite(self.store, durability=self.durability)


class TestSqlite(SqliteContract):
    @pytest.fixture
    async def storage(self, path: Path) -> AsyncIterator[Storage]:
        storage = await open_sqlite(path)
        yield storage
        await storage.close()


@pytest.mark.slow
class TestSqliteReopened(SqliteContract):
    reopens = True
    durability = "process"

    @pytest.fixture
    async def storage(self, path: Path) -> AsyncIterator[Storage]:
        async def open_again() -> SqliteStorage:
            return await open_sqlite(path, durability=self.durability)

        async with reopening(open_again) as storage:
            yield storage


@pytest.mark.slow
class TestSqliteProcesses(ProcessContract):
    opener = "perdure.backends.sqlite:open_sqlite"

    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Storage]:
        self.store = tmp_path / "s.db"
        self.opener_arguments = (str(self.store),)
        storage = await open_sqlite(self.store)
        yield storage
        await storage.close()

    async def open_beside(self, storage: Storage) -> Storage:
        return await open_sqlite(self.store)
