"""The timeline of a demo, while it happens: coloured with a status line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import importlib
from types import TracebackType
from typing import Any, Literal, Protocol, TextIO

import msgspec

from perdure.clock import Clock
from perdure.commands.text import one_line
from perdure.commands.visible import visible

What = Literal["start", "accepted", "again", "entry", "unknown", "effect", "answer", "KILL", "left", "stderr", "close"]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is."""

    kills: int
    planned: int
    accepted: int
    answered: int


class Timeline(Protocol):
    """Shows what happens, in order."""

    def show(self, life: int, what: What, text: str) -> None: ...

    def count(self, counts: Counts) -> None:
        """How far it is by now."""
        ...

    def say(self, text: str, style: str = "") -> None:
        """A line that is no event."""
        ...

    def __enter__(self) -> Timeline: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class PlainTimeline:
    """A line for each event: seconds since the beginning, the agent's life, what, and of what."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._began = clock.monotonic()

    def show(self, life: int, what: What, text: str) -> None:
        self._put(f"{self._clock.monotonic() - self._began:7.2f}  #{life:<3} {what:<9} {one_line(text, 150)}")

    def count(self, counts: Counts) -> None:
        pass

    def say(self, text: str, style: str = "") -> None:
        self._put(visible(text))

    def _put(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def __enter__(self) -> PlainTimeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


def timeline(stream: TextIO, clock: Clock) -> Timeline:
    """The timeline that suits a stream. The library that draws it is loaded only where it is wanted."""
    if not stream.isatty():
        return PlainTimeline(stream, clock)
    made: Any = importlib.import_module("perdure.commands.demo.drawn").DrawnTimeline
    return made(stream, clock)
