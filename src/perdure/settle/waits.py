"""Waits (K28): when a waiting task resumes, and whom its policy stops."""

from __future__ import annotations

from perdure.records import Completed, FailFast, First, Outside, Pending, Task, TaskId, Waiting
from perdure.settle.aborts import mark
from perdure.settle.state import Candidate, evolve


def resume(candidate: Candidate, task: Task) -> None:
    """Apply the policy of a waiting task; resume it when all that it waits on has ended."""
    waiting = task.state
    if not isinstance(waiting, Waiting) or isinstance(waiting.policy, Outside):
        return
    match waiting.policy:
        case FailFast():
            if any(_bad(candidate, id) for id in waiting.on):
                _stop_rest(candidate, waiting, "a sibling failed")
        case First(n=n):
            if sum(_good(candidate, id) for id in waiting.on) >= n:
                _stop_rest(candidate, waiting, "enough siblings succeeded")
        case _:
            pass
    if all(candidate.outcome(id) is not None for id in waiting.on):
        state = Pending(checkpoint=waiting.checkpoint, begun=waiting.begun)
        candidate.put(evolve(task, state=state, attempt=0, first=False))


def _good(candidate: Candidate, id: TaskId) -> bool:
    return isinstance(candidate.outcome(id), Completed)


def _bad(candidate: Candidate, id: TaskId) -> bool:
    outcome = candidate.outcome(id)
    return outcome is not None and not isinstance(outcome, Completed)


def _stop_rest(candidate: Candidate, waiting: Waiting, reason: str) -> None:
    for id in waiting.on:
        task = candidate.task(id)
        if task is not None:
            mark(candidate, task, reason)
