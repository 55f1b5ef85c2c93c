"""Questions (K37): tasks that a person or a program completes from outside, at most once."""

from __future__ import annotations

from typing import Any

from perdure.errors import AlreadyAnswered, NotFound, UsageError
from perdure.records import Aborted, Completed, Outside, Task, TaskId, Terminal, Waiting, decode_task
from perdure.settle.state import evolve
from perdure.tasks.transaction import QUESTION, TaskTransaction
from perdure.values import clean


async def answer(
    tx: TaskTransaction, id: TaskId, value: Any, *, by: str | None = None, at: float | None = None
) -> None:
    """Decide a question in this commit. Raises NotFound, UsageError for a task that is none, AlreadyAnswered.

    It was said at `at`, by default now. After the question's deadline it is too late, also where nobody ran to note
    that: what the question then comes to is its default.
    """
    task = tx.task(id)
    if task is None:
        raise await _decided(tx, id)
    if task.kind != QUESTION:
        raise UsageError(f"task {id} is a {task.kind!r}, not a question")
    state = task.state
    deadline = state.policy.deadline if isinstance(state, Waiting) and isinstance(state.policy, Outside) else None
    if deadline is not None and deadline <= (tx.now if at is None else at):
        said = f"question {id} could be answered until its deadline, which has passed: its default decides"
        raise AlreadyAnswered(f"{said}; nothing was changed", by="deadline", at=deadline)
    decide(tx, task, value, by=by)


def decide(tx: TaskTransaction, task: Task, value: Any, *, by: str | None) -> None:
    """Stage the end of an open question."""
    outcome = Completed(result={"answer": clean(value), "by": by})
    tx.put_task(evolve(task, state=Terminal(outcome=outcome), ended=tx.now))


async def _decided(tx: TaskTransaction, id: TaskId) -> Exception:
    """Why a question cannot be answered any more."""
    ended: Task | None = tx.candidate.tasks.get(id)
    if ended is None:
        await tx.line.flushed()
        bodies = await tx.line.storage.read_tasks(tx.line.session, [id])
        ended = decode_task(bodies[0], tx.line.session) if bodies else None
    if ended is None or ended.kind != QUESTION:
        return NotFound(f"no question {id} in session {tx.line.session!r}")
    match ended.outcome:
        case Completed(result=result):
            by = result.get("by")
            said = f"question {id} was answered by {by or 'someone'} before; nothing was changed"
            return AlreadyAnswered(said, by=by, at=ended.ended)
        case Aborted(reason=reason):
            said = f"question {id} is no longer pending: its asker was aborted ({reason})"
            return AlreadyAnswered(said, at=ended.ended)
        case _:
            return AlreadyAnswered(f"question {id} is no longer pending", at=ended.ended)


def answered(outcome: object) -> tuple[bool, Any, str | None]:
    """(answered, value, by) of a question's outcome; not answered where it was aborted."""
    if isinstance(outcome, Completed):
        return True, outcome.result["answer"], outcome.result.get("by")
    return False, None, None
