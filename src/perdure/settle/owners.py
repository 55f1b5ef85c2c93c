"""Owners and what they own (K29, K30): a task ends only when the ordinary work below it has."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.records import Completed, Completing, Task, TaskId, Terminal
from perdure.settle.aborts import mark
from perdure.settle.state import Candidate, evolve


def ordinary_below(candidate: Candidate, id: TaskId) -> Iterator[Task]:
    """Live tasks one level below: those the task owns, and the non-background ones of conversations it owns."""
    yield from candidate.children(id)
    for conversation in candidate.owned(id):
        for task in candidate.scope(conversation):
            if not task.background:
                yield task


def drained(candidate: Candidate, id: TaskId) -> bool:
    """Whether no ordinary work below the task is live."""
    return next(ordinary_below(candidate, id), None) is None


def cascade(candidate: Candidate, task: Task) -> None:
    """A marked task, and one that holds a bad outcome, want the work below to stop (K29, K31).

    Once: nothing new comes under them.
    """
    old = candidate.base.tasks.get(task.id)
    if not _stopping(task) or (old is not None and _stopping(old)):
        return
    reason = "owner ended" if task.abort is None else task.abort.reason
    for child in list(ordinary_below(candidate, task.id)):
        mark(candidate, child, reason)


def _stopping(task: Task) -> bool:
    state = task.state
    return task.abort is not None or (isinstance(state, Completing) and not isinstance(state.outcome, Completed))


def finish(candidate: Candidate, task: Task, now: float) -> None:
    """A decided outcome becomes final once the work below has drained (K29)."""
    if isinstance(task.state, Completing) and drained(candidate, task.id):
        candidate.put(evolve(task, state=Terminal(outcome=task.state.outcome), ended=now))
