"""Progress of long work is shown where somebody looks, after a while, and leaves nothing behind."""

from __future__ import annotations

import io

import pytest

from perdure.commands.progress import Progress
from perdure.testing.clock import ManualClock


class Ticking(ManualClock):
    """Moves by hand, without a loop."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at


class Screen(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, step: float) -> str:
    screen, clock = Screen(terminal=terminal), Ticking()
    monkeypatch.setattr("sys.stderr", screen)
    with Progress("checking", total=10, clock=clock) as progress:
        for done in range(10):
            clock.at += step
            progress.to(done)
    return screen.getvalue()


def test_long_work_shows_how_far_it_is_and_clears_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True, step=0.5)
    assert "perdure: checking 10 %" in text
    assert text.endswith("\r\x1b[K")


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=True, step=0.05) == ""


def test_nothing_is_shown_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=False, step=0.5) == ""
