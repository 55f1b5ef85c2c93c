"""The rules that every commit leaves applied (K9).

Pure: they look at a candidate and put records into it, in a fixed order, until nothing changes.
Each pass only moves tasks forward (marked, resumed, ended, reserved), so it ends.
"""

from __future__ import annotations

from perdure.records import (
    Aborted,
    Begun,
    Checkpoint,
    Completed,
    Completing,
    ErrorInfo,
    Failed,
    Faulted,
    Held,
    Orphaned,
    Outcome,
    Pending,
    Placed,
    Running,
    Submission,
    Task,
    Terminal,
    Unanswered,
    UnansweredReason,
    Waiting,
)
from perdure.settle.aborts import stop
from perdure.settle.owners import cascade, drained, finish
from perdure.settle.reserve import Rules, reserve
from perdure.settle.state import Candidate, State, evolve
from perdure.settle.waits import resume

#: A task is parked after so many process deaths during its own begun, progressless invocations (H44).
PARKED_AFTER = 3
#: Why a submission was not placed whose conversation belonged to a task that has ended.
OWNER_ENDED = "the task that owns this conversation has ended"


def settle(candidate: Candidate, rules: Rules, now: float) -> list[Task]:
    """Apply the rules to what the commit touched. Returns the tasks that ended in it, by id."""
    ended: dict[int, Task] = {}
    dirty = candidate.dirty
    while dirty:
        ids = sorted(dirty)
        dirty.clear()
        for id in ids:
            task = candidate.task(id)
            if task is None:
                continue
            if type(task.state) is not Terminal:
                _step(candidate, task, rules, now)
            elif id in candidate.tasks and id not in ended:
                ended[id] = task
                _settle_submissions(candidate, task)
    return [ended[id] for id in sorted(ended)]


def _step(candidate: Candidate, task: Task, rules: Rules, now: float) -> None:
    """The rules that one task can meet, in order; a change puts the task back among the dirty ones."""
    state = type(task.state)
    if task.abort is not None or state is Completing:
        cascade(candidate, task)
        if task.abort is not None and state is not Running:
            stop(candidate, task, now, lambda: drained(candidate, task.id), rules.fit(task) is None)
            if candidate.tasks.get(task.id, task) is not task:
                return
    if state is Waiting:
        resume(candidate, task)
    elif state is Completing:
        finish(candidate, task, now)
    elif state is not Running:
        reserve(candidate, task, rules)


def _settle_submissions(candidate: Candidate, ended: Task) -> None:
    """What no run will answer any more is settled in the same commit.

    A run that ended without settling its submissions settles them by its outcome (H15); what is queued in conversations
    that the task owned can never be placed (K29).
    """
    outcome = ended.outcome
    assert outcome is not None
    for submission in list(candidate.placed(ended.id)):
        candidate.submissions[submission.id] = unanswered(submission, *reason_of(outcome))
    for conversation in candidate.owned(ended.id):
        for submission in candidate.queued(conversation):
            candidate.submissions[submission.id] = unanswered(submission, "aborted", OWNER_ENDED)


def reason_of(outcome: Outcome) -> tuple[UnansweredReason, str]:
    """Why a run with this outcome left its submissions unanswered."""
    match outcome:
        case Aborted(reason=reason):
            return "aborted", reason
        case Orphaned(reason=reason):
            return "orphaned", reason
        case Faulted(error=error):
            return "faulted", _error_text(error)
        case Failed(error=error):
            return "model_error", _error_text(error)
        case Completed():
            return "faulted", "the run completed without an answer"


def unanswered(submission: Submission, reason: UnansweredReason, detail: str) -> Submission:
    """The submission, settled without an answer."""
    entry = submission.state.entry if isinstance(submission.state, Placed) else None
    return Submission(
        id=submission.id,
        conversation=submission.conversation,
        type=submission.type,
        digest=submission.digest,
        at=submission.at,
        request_id=submission.request_id,
        mode=submission.mode,
        state=Unanswered(reason=reason, detail=detail, entry=entry),
    )


def _error_text(error: ErrorInfo) -> str:
    return f"{error.type}: {error.message}"


def recovered(task: Task, *, crashed: bool) -> Task | None:
    """What reopening makes of a task that was running (K27, H44), or None where nothing changes.

    Reserved only: pending again. Begun and safe: pending, to run again. Begun and unsafe: pending, uncertain.
    A crash during its own begun attempt without progress is counted; the third parks it.
    """
    state = task.state
    if not isinstance(state, Running):
        return None
    begun = state.begun
    crashes = task.crashes
    if crashed and begun is not None and (begun.replay == "safe" or begun.attempt == task.attempt):
        crashes = 0 if begun.progress else crashes + 1  # not for the invocation that only records an unknown outcome
    if begun is not None and begun.progress:
        begun = Begun(attempt=begun.attempt, replay=begun.replay)  # the next attempt has to make its own
    return evolve(task, state=_reopened(state.checkpoint, begun, crashes), crashes=crashes)


def _reopened(checkpoint: Checkpoint, begun: Begun | None, crashes: int) -> Pending | Held:
    if crashes >= PARKED_AFTER:
        detail = f"the process died {crashes} times while this task ran"
        return Held(checkpoint=checkpoint, reason="parked", detail=detail, begun=begun)
    return Pending(checkpoint=checkpoint, begun=begun)


__all__ = ["Candidate", "Rules", "State", "reason_of", "recovered", "settle", "unanswered"]
