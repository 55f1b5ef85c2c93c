"""A call as tools see it, on a local sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.sandbox import Sandbox
from perdure.sandboxes.local import LocalSandbox
from perdure.tools.context import ToolContext


class RecordedCall:
    """Keeps what a tool tells its call."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.conversation = 1
        self.jobs: Any = None
        self.shown = b""
        self.spoke = asyncio.Event()
        self.noted: Any = None
        self.seconds: float | None = None

    def output(self, chunk: str | bytes) -> None:
        self.shown += chunk if isinstance(chunk, bytes) else chunk.encode()
        self.spoke.set()

    def details(self, value: Any) -> None:
        self.noted = value

    def extend(self, seconds: float) -> None:
        self.seconds = seconds


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
async def call(root: Path) -> AsyncIterator[RecordedCall]:
    sandbox = LocalSandbox(root, grace=0.2)
    made = RecordedCall(sandbox)
    fits: ToolContext = made
    assert fits
    yield made
    await sandbox.close()
