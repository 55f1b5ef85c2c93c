"""What tests of views share: reading what a watch has to tell by now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.testing.clock import settle

Told = Callable[[Any], Awaitable[list[Any]]]


async def _told(watch: Any) -> list[Any]:
    found: list[Any] = []
    while True:
        reading = asyncio.ensure_future(anext(watch))
        await settle()
        if not reading.done():
            reading.cancel()
            await asyncio.wait([reading])
            return found
        try:
            found.append(reading.result())
        except StopAsyncIteration:
            return found


@pytest.fixture
def told() -> Told:
    """Everything that a watch tells without another commit."""
    return _told
