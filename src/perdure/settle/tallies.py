"""How the tasks that a wait names stand, as numbers: so that a wide wait is not looked through for each of them."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.records import Completed, Outcome

#: Targets of a wait that have not ended, ended well, ended badly.
Tally = tuple[int, int, int]


def tally_of(outcomes: Iterable[Outcome | None]) -> Tally:
    """The tally of these targets; None has not ended."""
    left = good = bad = 0
    for outcome in outcomes:
        if outcome is None:
            left += 1
        elif isinstance(outcome, Completed):
            good += 1
        else:
            bad += 1
    return left, good, bad


def counted(tally: Tally, outcome: Outcome) -> Tally:
    """The tally after one more target ended."""
    left, good, bad = tally
    return (left - 1, good + 1, bad) if isinstance(outcome, Completed) else (left - 1, good, bad + 1)
