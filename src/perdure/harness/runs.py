"""Runs (H10): how they start, what is placed at their boundaries, and how they end, staged by whoever decides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.harness.stored import COMPACTION, GENERATION, LIVE, RESET, USER
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


async def place_entry(tx: TaskTransaction, item: Submission) -> None:
    """Append the entry of what asks no model (a write, a reset, a summary), and settle it.

    A head that would bring back what the present one cut off is stale: nothing is appended (H9). So is a summary
    that cuts no further: of several in flight the furthest cut wins (H27).
    """
    content, conversation = item.content, item.conversation
    head: EntryId | None = content.get("head")
    if head is not None:
        floor = await floor_of(tx, conversation)
        if head < floor or (head == floor and item.type == "summary"):
            detail = f"the transcript starts at entry {floor} already, this starts it at {head}"
            tx.put_submission(evolve(item, state=Unanswered(reason="stale", detail=detail), content=None))
            return
    match item.type:
        case "reset":
            handoff = content["handoff"]
            messages = () if handoff is None else (user_message(handoff),)
            entry = tx.append(conversation, RESET, messages=messages, data={"submission": item.id}, heads_itself=True)
        case "summary":
            messages, data = (user_message(content["message"]),), content["data"]
            entry = tx.append(conversation, COMPACTION, messages=messages, data=data, head=head, task=data["task"])
        case _:
            entry = tx.append(conversation, EntryKind(content["kind"]), data=content.get("data"), head=head)
    tx.put_submission(evolve(item, state=Done(entry=entry.id), content=None))


async def place_entries(tx: TaskTransaction, conversation: ConversationId) -> None:
    """Place everything that asks no model, in the order of their ids: none overtakes an older one."""
    for item in tx.candidate.queued(conversation):
        if item.type != "input":
            await place_entry(tx, item)


async def place_summaries(tx: TaskTransaction, conversation: ConversationId) -> None:
    """Place finished summaries where a run ends, however it ends (H35). Their order among others is of no account."""
    for item in tx.candidate.queued(conversation):
        if item.type == "summary":
            await place_entry(tx, item)


async def floor_of(tx: TaskTransaction, conversation: ConversationId) -> EntryId:
    """The oldest entry of the active transcript, as this transaction leaves it; 0 where nothing was cut off."""
    for entry in reversed(tx.entries):
        if entry.conversation == conversation and entry.head is not None:
            return entry.head
    return (await tx.transcript(conversation)).floor or EntryId(0)


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
) -> Submission | None:
    """Place what the boundary places (H5): what asks no model, then inputs, which join `run` or start the next one.

    `after`: only what was handed in later is due (an abort left the rest alone); older writes still go before it.
    Returns the reset that it placed in `run`, which that ends (H8): then no input was placed.
    """
    queue = tx.candidate.queued(conversation)
    fresh = [item for item in queue if item.id > after]
    if not fresh or (run is None and not accepts_work(tx, conversation)):
        return None
    if len(fresh) < len(queue):
        fresh = [item for item in queue if item.id > after or item.type != "input"]
    settings = await harness.settings(tx, conversation)
    chosen = due(fresh, point, steering=settings.steering, follow_up=settings.follow_up)
    for item in chosen:
        if item.type != "input":
            await place_entry(tx, item)
    resets = [item for item in chosen if item.type == "reset"]
    if resets and run is not None:
        return resets[-1]
    inputs = [item for item in chosen if item.type == "input"]
    if inputs and run is None:
        await start_run(harness, tx, conversation, inputs)
        return None
    for item in inputs:
        assert run is not None
        place_input(tx, item, run)
    return None


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


def stop_conversation(tx: TaskTransaction, conversation: ConversationId, reason: str) -> None:
    """Withdraw what is queued and mark all that is live there, background work too: its owner ends."""
    for item in tx.candidate.queued(conversation):
        withdraw(tx, item, reason)
    for task in list(tx.candidate.scope(conversation)):
        tx.abort_task(task.id, reason)
