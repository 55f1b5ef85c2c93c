"""Reservation (K24a): which pending tasks may run now."""

from __future__ import annotations

from typing import Literal, Protocol

from perdure.records import Held, HoldReason, Pending, Running, Task
from perdure.settle.owners import drained
from perdure.settle.state import Candidate, evolve


class Rules(Protocol):
    """What settling has to know besides records. It never reads the clock: `now` is the commit's time."""

    mode: Literal["paused", "running", "closing"]

    def fit(self, task: Task) -> tuple[HoldReason, str] | None:
        """Why no installed definition can take the task, or None when one can."""
        ...

    def stages(self, task: Task) -> bool:
        """Whether what a pending task does next can be a part of the commit that reserves it."""
        ...


def reserve(candidate: Candidate, task: Task, rules: Rules) -> None:
    """Reserve a pending task, or hold it for want of code. A marked one waits for the work below it (K31)."""
    state = task.state
    if isinstance(state, Held) and state.reason in ("definition", "migration") and rules.fit(task) is None:
        state = Pending(checkpoint=state.checkpoint, begun=state.begun)
        task = evolve(task, state=state)
        candidate.put(task)
    if not isinstance(state, Pending) or rules.mode != "running":
        return
    if task.abort is not None and not drained(candidate, task.id):
        return
    unfit = rules.fit(task)
    if unfit is not None:
        reason, detail = unfit
        held = Held(checkpoint=state.checkpoint, reason=reason, detail=detail, begun=state.begun)
        candidate.put(evolve(task, state=held))
        return
    if task.crashes >= 2 and _another_suspect_runs(candidate, task):
        return
    candidate.put(evolve(task, state=Running(checkpoint=state.checkpoint, begun=state.begun), attempt=task.attempt + 1))
    if rules.stages(task):
        candidate.reserved.append(task.id)


def _another_suspect_runs(candidate: Candidate, task: Task) -> bool:
    """From the second crash on, suspects run one at a time (H44)."""
    for id in (*candidate.base.suspects, *candidate.tasks):
        other = candidate.task(id)
        if other is not None and id != task.id and other.crashes >= 2 and isinstance(other.state, Running):
            return True
    return False
