"""When a conversation is summarised, by its size (H26, H33, H34): pure decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from perdure.harness.cutting import Cut

if TYPE_CHECKING:
    from perdure.harness.harness import Settings

#: Compactions that a run waits for before it gives up to come below the threshold (I43).
MOST_TRIES = 2
#: What a new background compaction waits for after the last one began: so much of the band between the thresholds.
BAND_PARTS = 4


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in tokens. `blocking`: from here on a request waits for a compaction. `background`: one is started beside.

    `keep` is how much of the newest a cut keeps.
    """

    window: int
    blocking: int
    background: int | None
    keep: int
    step: int


def thresholds(settings: Settings, window: int) -> Thresholds:
    """The thresholds of a context window. Where that is small for the settings, shares of it count instead.

    At most half of it is reserved, and at most half of what is left is kept.
    """
    blocking = window - min(settings.compaction_reserve, window // 2)
    ahead = settings.compaction_background
    background = max(blocking - ahead, blocking // 2) if ahead else None
    return Thresholds(
        window=window,
        blocking=blocking,
        background=background,
        keep=min(settings.compaction_keep_recent, blocking // 2),
        step=max((blocking - (background or blocking)) // BAND_PARTS, 1),
    )


class Send(msgspec.Struct, frozen=True):
    """The request is sent."""


class Beside(msgspec.Struct, frozen=True):
    """The request is sent, and a compaction runs beside it."""

    keep: int


class First(msgspec.Struct, frozen=True):
    """A compaction comes first."""

    keep: int


class Full(msgspec.Struct, frozen=True):
    """It does not fit, and no compaction can change that."""


Verdict = Send | Beside | First | Full


def judge(
    size: int, limits: Thresholds, cut: Callable[[int], Cut | None], *, tries: int, running: bool, begun_at: int | None
) -> Verdict:
    """What becomes of a request whose context is `size` tokens.

    `cut` finds the cut that keeps so many tokens; `tries` were waited for since it was last below the threshold;
    `running`: a compaction is in flight; `begun_at`: the size at which this run began one beside it.
    A compaction is begun only where it can bring the size below what asked for it, by what is known.
    """
    if limits.background is None or size < limits.background:
        if size < limits.blocking:
            return Send()
    elif size < limits.blocking:
        waits = running or (begun_at is not None and size < begun_at + limits.step)
        found = None if waits else cut(limits.keep)
        return Send() if found is None or size - found.older >= limits.background else Beside(limits.keep)
    if tries < MOST_TRIES:
        recent = cut(limits.keep)
        if tries == 0 and recent is not None and size - recent.older < limits.blocking:
            return First(limits.keep)
        most = cut(0)
        goal = limits.blocking if size <= limits.window else limits.window + 1
        if most is not None and size - most.older < goal:
            return First(0)
    return Full() if size > limits.window else Send()
