"""A command that runs in the background, as its sandbox hands it out."""

from __future__ import annotations

import asyncio

from perdure.sandbox import Exit
from perdure.sandboxes.command import settle
from perdure.sandboxes.pump import Pump
from perdure.sandboxes.spool import Spool


class Running:
    """`perdure.sandbox.Background` of the local sandbox."""

    def __init__(
        self,
        id: str,
        command: str,
        pump: Pump,
        spool: Spool,
        stop: asyncio.Future[None],
        seeing: asyncio.Future[Exit],
    ) -> None:
        self.id = id
        self.command = command
        self.path = spool.path
        self._pump = pump
        self._spool = spool
        self._stop = stop
        self._seeing = seeing

    @property
    def exit(self) -> Exit | None:
        """Raises what its `output` raised."""
        return self._seeing.result() if self._seeing.done() else None

    @property
    def total_bytes(self) -> int:
        return self._pump.total

    async def read(self, offset: int = 0, limit: int = 65536) -> tuple[int, bytes]:
        return await self._spool.read(offset, limit)

    async def wait(self) -> Exit:
        return await asyncio.shield(self._seeing)

    async def stop(self) -> Exit:
        settle(self._stop)
        return await asyncio.shield(self._seeing)
