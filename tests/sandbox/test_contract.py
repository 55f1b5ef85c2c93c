"""The local sandbox keeps the contract of sandboxes, whichever strategy keeps its commands together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.probing import try_out
from perdure.sandboxes.strategies import named
from perdure.testing.sandbox_contract import SandboxContract


class Forced(SandboxContract):
    """With one strategy."""

    strategy: str

    @pytest.fixture
    async def sandbox(self, tmp_path: Path, processes: Any) -> AsyncIterator[LocalSandbox]:
        strategy = named(self.strategy)
        assert strategy is not None
        found = try_out(strategy)
        if not found.works:
            pytest.skip(f"{self.strategy} does not work here: {found.reason}")
        made = LocalSandbox(tmp_path, isolation=self.strategy, grace=0.5)
        yield made
        await made.close()
        assert processes.wait_gone(0) == set()


@pytest.mark.slow
class TestPidNamespace(Forced):
    strategy = "pidns+proc"


@pytest.mark.slow
class TestUserNamespace(Forced):
    strategy = "userns+proc"


@pytest.mark.slow
class TestPidNamespaceWithoutProc(Forced):
    strategy = "pidns"


@pytest.mark.slow
class TestUserNamespaceWithoutProc(Forced):
    strategy = "userns"


@pytest.mark.slow
class TestBubblewrap(Forced):
    strategy = "bwrap"


@pytest.mark.slow
class TestSubreaper(Forced):
    strategy = "subreaper"
    sees_machine = True


@pytest.mark.slow
class TestProcessGroup(Forced):
    strategy = "pgroup"
    sees_machine = True
    finds_all = False
