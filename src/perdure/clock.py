"""The clock port: time, sleeping, ids and randomness, all injected.

Durable order never comes from here (K4): times are for people, deadlines and back-off.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Protocol


class Clock(Protocol):
    """Time and chance. `now` is for records and durable deadlines, `monotonic` for durations."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def random(self) -> float:
        """In [0, 1): for jitter."""
        ...

    def token(self) -> bytes:
        """16 bytes that never repeat: the id of a commit."""
        ...

    def uuid7(self) -> str:
        """A UUID of version 7 (RFC 9562): ordered by time, for items that are handed in from outside."""
        ...


def uuid7_of(milliseconds: int, chance: bytes) -> str:
    """RFC 9562, 5.7: 48 bits of Unix milliseconds, version 7, variant 0b10, 74 bits of chance (of the 10 bytes
    given)."""
    value = (milliseconds & (2**48 - 1)) << 80 | int.from_bytes(chance[:10], "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class _Tokens:
    """Random tokens, drawn many at a time: asking the kernel gives the interpreter away, which costs a commit more
    than the rest.

    A forked child starts with none, so that it never repeats its parent's. `pop` is atomic: threads may share one.
    """

    def __init__(self) -> None:
        self._drawn: list[bytes] = []
        os.register_at_fork(after_in_child=self._drawn.clear)

    def take(self) -> bytes:
        while True:
            try:
                return self._drawn.pop()
            except IndexError:
                chance = os.urandom(16 * 256)
                self._drawn.extend(chance[start : start + 16] for start in range(0, len(chance), 16))


_tokens = _Tokens()


class SystemClock:
    """The machine's clock and its entropy."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    random = staticmethod(random.random)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def token(self) -> bytes:
        return _tokens.take()

    def uuid7(self) -> str:
        return uuid7_of(time.time_ns() // 1_000_000, os.urandom(10))
