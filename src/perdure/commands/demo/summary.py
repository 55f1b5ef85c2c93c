"""What was proven, in plain words; and the one line for programs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perdure.commands.demo.campaign import Toll
from perdure.commands.demo.schedule import DESCRIBED, Point
from perdure.commands.demo.verdict import Verdict


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The line that `--json` ends with."""

    kills: int
    accepted: int
    answered: int
    lost: int
    repeated_unsafe: int
    transcript_valid: bool
    by_point: dict[Point, int]


def result(toll: Toll, verdict: Verdict) -> Result:
    """The result of a run, in numbers."""
    return Result(
        kills=toll.kills,
        accepted=verdict.accepted,
        answered=verdict.answered,
        lost=verdict.lost,
        repeated_unsafe=verdict.repeated_unsafe,
        transcript_valid=verdict.transcript_valid,
        by_point=toll.by_point,
    )


def summary(toll: Toll, verdict: Verdict) -> Iterator[tuple[bool, str]]:
    """The result of a run, in words: sentences, each with whether it is good news."""
    points = ", ".join(f"{count} {DESCRIBED[point]}" for point, count in toll.by_point.items() if count)
    yield True, f"The agent was killed {toll.kills} times with SIGKILL (kill -9): {points}."
    yield _kept(verdict)
    yield _repeated(verdict)
    unknown = _times(verdict.unknown, "call", "calls")
    told = "the agent was told so, and did not try again by itself."
    yield True, f"Nothing was guessed: kills left {unknown} with an outcome that nobody knows; {told}"
    yield _told(verdict)
    if toll.left:
        yield False, f"{_times(len(toll.left), 'process', 'processes')} WENT ON after the agent was gone."
    else:
        yield True, "Nothing was left behind: every command that the agent had started ended with it."


def _kept(verdict: Verdict) -> tuple[bool, str]:
    if verdict.lost or verdict.answered != verdict.accepted:
        return False, f"Of {verdict.accepted} tasks that it had accepted, {verdict.lost} ARE LOST."
    return True, f"Nothing was lost: each of the {verdict.accepted} tasks that it had accepted is answered."


def _repeated(verdict: Verdict) -> tuple[bool, str]:
    if verdict.repeated_unsafe:
        return False, f"{_times(verdict.repeated_unsafe, 'effect', 'effects')} that must not be repeated WERE REPEATED."
    made = _times(verdict.payments, "payment was", "payments were")
    return True, f"Nothing was repeated: {made} made, none of them twice, and the store has an intent for each."


def _told(verdict: Verdict) -> tuple[bool, str]:
    if not verdict.transcript_valid:
        return False, "The transcripts are NOT VALID, or do not say what happened."
    size = f"{verdict.entries} entries in {verdict.conversations} conversations"
    calls = f"each of {verdict.calls} calls has one result, which says what happened."
    return True, f"The transcripts are whole: {size}, where {calls}"


def _times(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
