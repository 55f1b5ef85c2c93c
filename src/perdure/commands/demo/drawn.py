"""The timeline as it is drawn on a terminal."""

from __future__ import annotations

import textwrap
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from perdure.clock import Clock
from perdure.commands.demo.timeline import Counts, What
from perdure.commands.text import one_line
from perdure.commands.visible import visible

#: A sign and a style for each kind of event.
_SIGNS: dict[What, tuple[str, str]] = {
    "start": ("▶", "bold cyan"),
    "accepted": ("+", "blue"),
    "again": ("↻", "blue"),
    "entry": ("·", "bright_black"),
    "unknown": ("?", "yellow"),
    "effect": ("◆", "magenta"),
    "answer": ("✓", "green"),
    "KILL": ("✗", "bold red"),
    "left": ("!", "bold red"),
    "stderr": ("!", "red"),
    "close": ("■", "bold cyan"),
}
_WIDTH = 30


class DrawnTimeline:
    """Events scroll by, and a line at the bottom shows how far it is. It draws when it is told something."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._console = Console(file=stream, highlight=False)
        self._live = Live(Text(), console=self._console, auto_refresh=False, transient=True)
        self._clock = clock
        self._began = clock.monotonic()
        self._counts: Counts | None = None

    def show(self, life: int, what: What, text: str) -> None:
        sign, style = _SIGNS[what]
        line = Text()
        line.append(f"{self._clock.monotonic() - self._began:6.2f} ", "bright_black")
        line.append(f"{life:>3} ", "bright_black")
        line.append(f"{sign} {what:<8} ", style)
        line.append(one_line(text, 300), style if what in ("KILL", "left", "stderr", "entry") else "")
        self._live.console.print(line, no_wrap=True, overflow="ellipsis")

    def count(self, counts: Counts) -> None:
        if counts == self._counts:
            return
        self._counts = counts
        done = _WIDTH * counts.kills // max(counts.planned, 1)
        line = Text("  ")
        line.append("━" * done, "red")
        line.append("━" * (_WIDTH - done), "bright_black")
        line.append(f"  {counts.kills} of {counts.planned} kills", "bold")
        line.append(f"   {counts.accepted} tasks accepted, {counts.answered} answered")
        self._live.update(line, refresh=True)

    def say(self, text: str, style: str = "") -> None:
        width = self._console.width - 1
        lines = (textwrap.fill(line, width, subsequent_indent="    ") for line in visible(text).split("\n"))
        self._live.console.print(Text("\n".join(lines), style))

    def __enter__(self) -> DrawnTimeline:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()
