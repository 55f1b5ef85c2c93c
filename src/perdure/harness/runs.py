"""Runs (H10): how they start, what is placed at their boundaries, and how they end, staged by whoever decides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.harness.stored import GENERATION, LIVE, USER
from perdure.inbox.boundary import Point, due
from perdure.messages import UserMessage
from perdure.records import (
    Completing,
    ConversationId,
    Done,
    Entry,
    EntryId,
    Placed,
    Submission,
    Task,
    TaskId,
    Unanswered,
    UnansweredReason,
)
from perdure.session.transaction import EntryKind
from perdure.settle.rules import unanswered
from perdure.settle.state import Candidate, State
from perdure.tasks.transaction import TaskTransaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


def run_of(view: Candidate | State, conversation: ConversationId) -> Task | None:
    """The conversation's live run: it is busy exactly while there is one (K40)."""
    tasks = (
        view.scope(conversation)
        if isinstance(view, Candidate)
        else map(view.tasks.__getitem__, view.scopes.get(conversation, ()))
    )
    return next((task for task in tasks if task.kind == GENERATION), None)


def evolve(submission: Submission, **changes: Any) -> Submission:
    """The submission with some fields changed."""
    return msgspec.structs.replace(submission, **changes)


def user_message(content: Any) -> UserMessage:
    """The message of an input, from its stored content."""
    return msgspec.convert(content, UserMessage)


def place_write(tx: TaskTransaction, write: Submission) -> Entry:
    """Append a write's entry and settle it."""
    content = write.content
    entry = tx.append(write.conversation, EntryKind(content["kind"]), data=content.get("data"))
    tx.put_submission(evolve(write, state=Done(entry=entry.id), content=None))
    return entry


def place_input(tx: TaskTransaction, item: Submission, run: TaskId) -> Entry:
    """Append an input's user entry; the run has to answer it."""
    entry = tx.append(item.conversation, USER, messages=(user_message(item.content),), data={"submission": item.id})
    tx.put_submission(evolve(item, state=Placed(entry=entry.id, run=run), content=None))
    return entry


def accepts_work(tx: TaskTransaction, conversation: ConversationId) -> bool:
    """Whether a run can start there: not below a task that has ended or is ending (K29)."""
    home = tx.candidate.conversation(conversation)
    if home is None or home.owner is None:
        return True
    owner = tx.task(home.owner)
    return owner is not None and owner.abort is None and not isinstance(owner.state, Completing)


async def start_run(
    harness: Harness, tx: TaskTransaction, conversation: ConversationId, inputs: Sequence[Submission]
) -> Task:
    """A new run that answers these inputs: entries, placed submissions, generation task and live document (H3)."""
    home = tx.candidate.conversation(conversation) or await tx.use(conversation)
    task = tx.create_task(harness.generation, owner=home)
    await tx.doc(LIVE, task.id)
    for item in inputs:
        place_input(tx, item, task.id)
    return task


async def place_due(
    harness: Harness,
    tx: TaskTransaction,
    conversation: ConversationId,
    point: Point,
    run: TaskId | None,
    *,
    after: int = 0,
) -> None:
    """Place what the boundary places (H5): writes, then inputs, which join `run` or start the next one.

    `after`: only what was handed in later is due (an abort left the rest alone); older writes still go before it.
    """
    queue = tx.candidate.queued(conversation)
    fresh = [item for item in queue if item.id > after]
    if not fresh or (run is None and not accepts_work(tx, conversation)):
        return
    if len(fresh) < len(queue):
        fresh = [item for item in queue if item.id > after or item.type == "write"]
    settings = await harness.settings(tx, conversation)
    chosen = due(fresh, point, steering=settings.steering, follow_up=settings.follow_up)
    for item in chosen:
        if item.type != "input":
            place_write(tx, item)
    inputs = [item for item in chosen if item.type == "input"]
    if not inputs:
        return
    if run is None:
        await start_run(harness, tx, conversation, inputs)
        return
    for item in inputs:
        place_input(tx, item, run)


def settle_answered(tx: TaskTransaction, run: TaskId, answer: EntryId) -> None:
    """Every submission that the run had to answer is done with its final answer."""
    for item in list(tx.candidate.placed(run)):
        assert isinstance(item.state, Placed)
        tx.put_submission(evolve(item, state=Done(entry=item.state.entry, answer=answer)))


def settle_unanswered(tx: TaskTransaction, run: TaskId, reason: UnansweredReason, detail: str) -> None:
    """Every submission that the run had to answer is unanswered for this reason."""
    for item in list(tx.candidate.placed(run)):
        tx.put_submission(unanswered(item, reason, detail))


def withdraw(tx: TaskTransaction, item: Submission, detail: str) -> None:
    """Take a queued submission back: it is settled as unanswered, aborted (H7, H38)."""
    tx.put_submission(evolve(item, state=Unanswered(reason="aborted", detail=detail), content=None))
