"""Permits: the right to one model request at a time (I70).

A permit is held while a request streams, and never while its run waits for tools or sub-agents. Whatever is nested how
deep, who holds one waits for nothing but a model: so work goes on with any number of permits from one up.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Permits:
    """`async with permits:` waits for one, and gives it back. First come, first served; cancelling a wait takes none.

    Invariant: while somebody waits, all permits are held or about to be taken by whoever was woken.
    """

    def __init__(self, most: int | None) -> None:
        #: None: there is no limit, and nothing is counted.
        self._most = most
        self._free = most or 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many requests wait for a permit."""
        return sum(not each.done() for each in self._waiting)

    async def __aenter__(self) -> None:
        if self._most is None:
            return
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if turn in self._waiting:  # else it was passed over already
                    self._waiting.remove(turn)
            else:  # it was this one's turn: the next one's now
                self._give()
            raise

    async def __aexit__(self, *error: object) -> None:
        if self._most is not None:
            self._give()

    def _give(self) -> None:
        """To whoever waits longest, or back."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
