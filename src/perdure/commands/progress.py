"""Progress of long work, on standard error of a terminal: after a second, and not more often than it can be read."""

from __future__ import annotations

import sys

from perdure.clock import Clock, SystemClock

FIRST, EVERY = 1.0, 0.2


class Progress:
    """`with Progress("checking", total=n) as progress: progress.to(i)`. Nothing is shown where nobody looks."""

    def __init__(self, what: str, total: int = 0, clock: Clock | None = None) -> None:
        self._what = what
        self._clock = clock or SystemClock()
        self._next = self._clock.monotonic() + FIRST
        self._shown = False
        self._looked_at = sys.stderr.isatty()
        self.total = total

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def to(self, done: int, what: str | None = None) -> None:
        """So much is done."""
        if not self._looked_at or self._clock.monotonic() < self._next:
            return
        self._next = self._clock.monotonic() + EVERY
        self._shown = True
        part = f" {min(100, 100 * done // self.total)} %" if self.total else f" {done}"
        sys.stderr.write(f"\rperdure: {what or self._what}{part}\x1b[K")
        sys.stderr.flush()
