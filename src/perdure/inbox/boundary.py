"""Which queued submissions are placed where (H4 to H6, H41): a pure decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from perdure.records import Submission

#: `round`: after a tool round. `final`: at the final answer, and where an aborted run ends. `idle`: there is no run.
Point = Literal["round", "final", "idle"]
Mode = Literal["one", "all"]


def due(
    queued: Sequence[Submission], point: Point, *, steering: Mode = "one", follow_up: Mode = "one"
) -> list[Submission]:
    """The queued submissions to place now, in the order of placing: writes first, then inputs.

    `queued` is in id order. Steers go before follow-ups; when some are due, follow-ups wait for the next boundary.
    An idle conversation with queued inputs (a failed run left them) places the oldest, whatever its mode.
    """
    writes = [item for item in queued if item.type != "input"]
    inputs = [item for item in queued if item.type == "input"]
    steers = [item for item in inputs if item.mode == "steer"]
    if point == "idle":
        return [*writes, *_take(inputs, follow_up)]
    if point == "round" or steers:
        return [*writes, *_take(steers, steering)]
    return [*writes, *_take(inputs, follow_up)]


def _take(items: Sequence[Submission], mode: Mode) -> Sequence[Submission]:
    return items if mode == "all" else items[:1]
