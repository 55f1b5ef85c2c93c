"""What other processes may hand in to a conversation (K1a), and what it does in the commit that takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from perdure.errors import NotFound, UsageError
from perdure.harness.approval import decide
from perdure.harness.compaction import compact_conversation
from perdure.harness.conversation import abort_conversation, fork_conversation
from perdure.harness.submissions import submit_input, submit_reset, submit_write, withdraw_submission
from perdure.messages import UserMessage
from perdure.records import ROOT, Conversation, ConversationId, EntryId, Inbound, SubmissionId, TaskId
from perdure.session.opening import InboundHandler
from perdure.surface.settled import WhenBusy
from perdure.tasks.transaction import TaskTransaction
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


class _To(msgspec.Struct, frozen=True, kw_only=True):
    """Which conversation an item is for: by id or by key; the root one where neither is named."""

    id: int | None = None
    key: str | None = None


class InputItem(_To, frozen=True, kw_only=True):
    """Hands in an input."""

    message: UserMessage
    request_id: str | None = None
    when_busy: WhenBusy = "follow_up"


class WriteItem(_To, frozen=True, kw_only=True):
    """Hands in an entry that asks no model."""

    kind: str
    data: Any = None
    request_id: str | None = None


class ResetItem(_To, frozen=True, kw_only=True):
    """Starts the model's context anew."""

    handoff: UserMessage | None = None
    request_id: str | None = None


class CompactItem(_To, frozen=True, kw_only=True):
    """Has what is older in a conversation summarised."""

    instructions: str | None = None


class AbortItem(_To, frozen=True, kw_only=True):
    """Stops a submission, a task, or a conversation's work."""

    submission: int | None = None
    task: int | None = None
    background: bool = False
    keep: bool = False
    reason: str = "aborted"


class ForkItem(_To, frozen=True, kw_only=True):
    """Forks the conversation at an entry, by default its newest one."""

    at: int | None = None
    new_key: str | None = None


class AnswerItem(msgspec.Struct, frozen=True, kw_only=True):
    """Decides a question."""

    question: int
    value: Any = None
    by: str | None = None


B = TypeVar("B", bound=msgspec.Struct)


def _read(item: Inbound, type: type[B]) -> B:
    """Any process can hand in anything: what does not fit is refused, and never stands in the way of the others."""
    try:
        return msgspec.convert(item.body, type)
    except msgspec.ValidationError as error:
        raise UsageError(f"this is no {item.kind} item: {error}") from None


def handlers(harness: Harness) -> Mapping[str, InboundHandler]:
    """The handlers by kind. Their answers say what became of the item, for whoever handed it in."""
    return {**_submitting(harness), "abort": _abort, "fork": _fork}


def _submitting(harness: Harness) -> Mapping[str, InboundHandler]:
    async def input(tx: TaskTransaction, item: Inbound) -> Any:
        body = _read(item, InputItem)
        conversation = await _conversation(tx, body)
        request_id = body.request_id or f"inbound:{item.id}"
        found = await submit_input(
            harness, tx, conversation.id, body.message, request_id=request_id, when_busy=body.when_busy
        )
        return {"submission": found.id, "conversation": conversation.id}

    async def write(tx: TaskTransaction, item: Inbound) -> Any:
        body = _read(item, WriteItem)
        conversation = await _conversation(tx, body)
        request_id = body.request_id or f"inbound:{item.id}"
        found = await submit_write(harness, tx, conversation.id, body.kind, body.data, request_id=request_id)
        return {"submission": found.id, "conversation": conversation.id}

    async def reset(tx: TaskTransaction, item: Inbound) -> Any:
        body = _read(item, ResetItem)
        conversation = await _conversation(tx, body)
        request_id = body.request_id or f"inbound:{item.id}"
        found = await submit_reset(harness, tx, conversation.id, body.handoff, request_id=request_id)
        return {"submission": found.id, "conversation": conversation.id}

    async def compact(tx: TaskTransaction, item: Inbound) -> Any:
        body = _read(item, CompactItem)
        conversation = await _conversation(tx, body)
        task = await compact_conversation(harness, tx, conversation.id, body.instructions)
        return {"task": task.id, "conversation": conversation.id}

    async def answer(tx: TaskTransaction, item: Inbound) -> Any:
        body = _read(item, AnswerItem)
        await decide(harness, tx, TaskId(body.question), body.value, by=body.by, at=item.at)
        return {"answered": body.question}

    return {"input": input, "write": write, "reset": reset, "compact": compact, "answer": answer}


async def _abort(tx: TaskTransaction, item: Inbound) -> Any:
    body = _read(item, AbortItem)
    reason = clean_text(body.reason)
    if body.submission is not None:
        return {"withdrawn": await withdraw_submission(tx, SubmissionId(body.submission))}
    if body.task is not None:
        return {"marked": [body.task] if tx.abort_task(TaskId(body.task), reason) else []}
    conversation = await _conversation(tx, body)
    marked = await abort_conversation(tx, conversation.id, background=body.background, keep=body.keep, reason=reason)
    return {"marked": marked}


async def _fork(tx: TaskTransaction, item: Inbound) -> Any:
    body = _read(item, ForkItem)
    parent = await addressed(tx, item)
    at = None if body.at is None else EntryId(body.at)
    child = await fork_conversation(tx, parent.id, at, body.new_key)
    assert child.parent is not None
    return {"conversation": child.id, "at": child.parent.entry}


async def root(tx: TaskTransaction) -> Conversation:
    """The conversation with id 1, made on first use (K11)."""
    known = tx.candidate.conversation(ROOT)
    if known is not None:
        return known
    if tx.memory.published_seq == 0 and tx.memory.tip_seq == 0:
        return tx.create_conversation(id=ROOT)
    await tx.line.flushed()
    if await tx.line.storage.read_conversation(tx.line.session, ROOT) is None:
        return tx.create_conversation(id=ROOT)
    return await tx.use(ROOT)


async def keyed(tx: TaskTransaction, key: str) -> Conversation:
    """Get or create by key (K10)."""
    return await tx.find_conversation(key) or tx.create_conversation(key=key)


async def addressed(tx: TaskTransaction, item: Inbound) -> Conversation:
    """The conversation that an item names and that is there already. Raises NotFound, UsageError."""
    to = _read(item, _To)
    if to.key is None:
        return await tx.use(ROOT if to.id is None else ConversationId(to.id))
    found = await tx.find_conversation(to.key)
    if found is None:
        raise NotFound(f"no conversation with key {to.key!r} in session {tx.line.session!r}")
    return found


async def _conversation(tx: TaskTransaction, to: _To) -> Conversation:
    if to.id is not None:
        return await tx.use(ConversationId(to.id))
    if to.key is not None:
        if not to.key:
            raise UsageError("a conversation key is a text that is not empty")
        return await keyed(tx, to.key)
    return await root(tx)
