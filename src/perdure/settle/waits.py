"""Waits (K28): when a waiting task resumes, and whom its policy stops."""

from __future__ import annotations

from perdure.records import FailFast, First, Outside, Pending, Task, Waiting
from perdure.settle.aborts import mark
from perdure.settle.state import Candidate, evolve


def resume(candidate: Candidate, task: Task) -> None:
    """Apply the policy of a waiting task; resume it when all that it waits on has ended."""
    waiting = task.state
    if not isinstance(waiting, Waiting) or isinstance(waiting.policy, Outside):
        return
    before, now = candidate.tallies(task)
    left, good, bad = now
    match waiting.policy:
        case FailFast() if bad and not before[2]:
            _stop_rest(candidate, waiting, "a sibling failed")
        case First(n=n) if good >= n > before[1]:
            _stop_rest(candidate, waiting, "enough siblings succeeded")
        case _:
            pass
    if not left:
        state = Pending(checkpoint=waiting.checkpoint, begun=waiting.begun)
        candidate.put(evolve(task, state=state, attempt=0, first=False))


def _stop_rest(candidate: Candidate, waiting: Waiting, reason: str) -> None:
    for id in waiting.on:
        task = candidate.task(id)
        if task is not None:
            mark(candidate, task, reason)
