"""Abort marks (K31): a durable wish first, then what can end without running code ends at once."""

from __future__ import annotations

from collections.abc import Callable

from perdure.records import (
    Aborted,
    AbortMark,
    Held,
    Orphaned,
    Outside,
    Pending,
    Task,
    Terminal,
    Waiting,
)
from perdure.settle.state import Candidate, evolve


def mark(candidate: Candidate, task: Task, reason: str) -> bool:
    """Mark a live task for abort. False if it was marked or had ended."""
    if task.abort is not None or isinstance(task.state, Terminal):
        return False
    candidate.put(evolve(task, abort=AbortMark(reason=reason)))
    return True


def untouched(task: Task) -> bool:
    """No invocation ever took it, so there is nothing to undo (K28)."""
    state = task.state
    return isinstance(state, Pending) and task.attempt == 0 and task.first and state.begun is None


def stop(candidate: Candidate, task: Task, now: float, drained: Callable[[], bool], available: bool) -> None:
    """What a mark does to a task that is not running: it ends where no code has to run, else its abort handler may."""
    assert task.abort is not None
    reason = task.abort.reason
    state = task.state
    match state:
        case Waiting(policy=Outside()):
            candidate.put(evolve(task, state=Terminal(outcome=Aborted(reason=reason)), ended=now))
        case Waiting():
            candidate.put(evolve(task, state=Pending(checkpoint=state.checkpoint)))
        case Held() if available:
            candidate.put(evolve(task, state=Pending(checkpoint=state.checkpoint, begun=state.begun)))
        case Pending() if untouched(task) and drained():
            candidate.put(evolve(task, state=Terminal(outcome=Aborted(reason=reason)), ended=now))
        case Held() | Pending() if not available and drained():
            candidate.put(evolve(task, state=Terminal(outcome=Orphaned(reason=reason)), ended=now))
        case _:
            pass
