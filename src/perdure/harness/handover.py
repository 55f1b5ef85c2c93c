"""Calls that end when durable work has: the call waits as a task does, not as a function that runs (K28).

So no time limit runs meanwhile, nothing is repeated after a crash, and what ends the work also writes the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.errors import NotFound
from perdure.harness.gate import MOST_TOLD
from perdure.harness.loadout import pinned, uses_of
from perdure.harness.output import clip
from perdure.messages import Message, ToolErrorCode, text_of
from perdure.records import (
    Aborted,
    Completed,
    Done,
    EntryId,
    Failed,
    Faulted,
    Orphaned,
    Outcome,
    Submission,
    SubmissionId,
    Task,
    TaskId,
    Unanswered,
    decode_entry,
    decode_submission,
)
from perdure.tasks.timers import DEADLINE
from perdure.tasks.transaction import TaskTransaction
from perdure.values import encode


class WaitFor(msgspec.Struct, frozen=True):
    """What a tool returns whose call is to end when tasks have: their results are the call's.

    Make them with `call.once`: so they are the call's own, which an abort stops first, and a call that is repeated
    finds them. At `deadline`, in seconds since the epoch, what has not ended is stopped.
    """

    tasks: Sequence[Task | TaskId | int]
    deadline: float | None = None
    submission: SubmissionId | None = None  #: its answer is the result

    @property
    def ids(self) -> list[TaskId]:
        return [TaskId(each.id if isinstance(each, Task) else each) for each in self.tasks]


async def collected(
    tx: TaskTransaction, tasks: Sequence[int], submission: SubmissionId | None
) -> tuple[str, ToolErrorCode | None]:
    """The result of a call whose tasks have ended: its text, and its code where it is an error."""
    if submission is not None:
        return await _answer(tx, submission)
    outcomes = await tx.outcomes(tasks)
    bad = next((each for each in outcomes if not each.completed), None)
    code: ToolErrorCode | None = None if bad is None else "timeout" if _ran_out(bad) else "tool_error"
    if len(outcomes) == 1:
        return _told(outcomes[0]), code
    return "\n".join(f"{number}. {_told(each)}" for number, each in enumerate(outcomes, 1)), code


def _told(outcome: Outcome) -> str:
    match outcome:
        case Completed(result=result):
            return result if isinstance(result, str) else encode(result).decode()
        case Failed(error=error) | Faulted(error=error):
            return clip(f"It failed. {error.type}: {error.message}", MOST_TOLD)
        case Aborted(reason=reason) | Orphaned(reason=reason):
            return clip(f"It was stopped: {reason}", MOST_TOLD)


def _ran_out(outcome: Outcome) -> bool:
    return isinstance(outcome, Aborted) and outcome.reason == DEADLINE


async def _answer(tx: TaskTransaction, id: SubmissionId) -> tuple[str, ToolErrorCode | None]:
    item = await stored_submission(tx, id)
    match item.state:
        case Done(answer=answer) if answer is not None:
            return await answer_text(tx, answer), None
        case Unanswered(reason="aborted", detail=detail) if detail == DEADLINE:
            return "It ran out of its time limit and was stopped. What it did stays done.", "timeout"
        case Unanswered(reason=reason, detail=detail):
            return clip(f"It gave no answer ({reason}): {detail}", MOST_TOLD), "tool_error"
        case state:
            return f"It gave no answer: its input is {type(state).__name__.lower()}.", "tool_error"


async def stored_submission(tx: TaskTransaction, id: SubmissionId) -> Submission:
    """A submission as of the tip, also one that settled long ago. Raises NotFound."""
    found = tx.candidate.submission(id)
    if found is not None:
        return found
    await tx.line.flushed()
    body = await tx.line.storage.read_submission(tx.line.session, id)
    if body is None:
        raise NotFound(f"no submission {id} in session {tx.line.session!r}")
    return decode_submission(body, tx.line.session)


async def answer_text(tx: TaskTransaction, id: EntryId) -> str:
    """The text of an answer, also of one that this commit writes."""
    entry = next((staged for staged in tx.entries if staged.id == id), None)
    if entry is None:
        await tx.line.flushed()
        body = await tx.line.storage.read_entry(tx.line.session, id)
        if body is None:
            raise NotFound(f"no entry {id} in session {tx.line.session!r}")
        entry = decode_entry(body, tx.line.session)
    messages: tuple[Message, ...] = entry.messages
    return "".join(map(text_of, messages))


def saved_as(work: WaitFor, arguments: Any, data: dict[str, Any], intent: Mapping[str, Any]) -> dict[str, Any]:
    """What the checkpoint of the waiting call keeps: also what its hooks are told, and which they are."""
    return {
        "tasks": work.ids,
        "submission": work.submission,
        "data": data,
        "arguments": arguments,
        **pinned(uses_of(intent)),
    }
