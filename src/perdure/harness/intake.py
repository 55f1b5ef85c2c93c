"""What other processes may hand in to a conversation (K1a), and what each kind of item does in the commit that takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import UsageError
from perdure.harness.conversation import abort_conversation
from perdure.harness.submissions import submit_input, submit_write, withdraw_submission
from perdure.messages import UserMessage
from perdure.records import ROOT, Conversation, ConversationId, Inbound, SubmissionId, TaskId
from perdure.session.opening import InboundHandler
from perdure.tasks.questions import answer
from perdure.tasks.transaction import TaskTransaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


def handlers(harness: Harness) -> Mapping[str, InboundHandler]:
    """The handlers by kind. Their answers say what became of the item, for whoever handed it in."""

    async def input(tx: TaskTransaction, item: Inbound) -> Any:
        body = item.body
        conversation = await _conversation(tx, body)
        message = msgspec.convert(body["message"], UserMessage)
        request_id = body.get("request_id") or f"inbound:{item.id}"
        when_busy = body.get("when_busy", "follow_up")
        found = await submit_input(harness, tx, conversation.id, message, request_id=request_id, when_busy=when_busy)
        return {"submission": found.id, "conversation": conversation.id}

    async def write(tx: TaskTransaction, item: Inbound) -> Any:
        body = item.body
        conversation = await _conversation(tx, body)
        request_id = body.get("request_id") or f"inbound:{item.id}"
        found = await submit_write(harness, tx, conversation.id, body["kind"], body.get("data"), request_id=request_id)
        return {"submission": found.id, "conversation": conversation.id}

    async def abort(tx: TaskTransaction, item: Inbound) -> Any:
        body = item.body
        if "submission" in body:
            return {"withdrawn": await withdraw_submission(tx, SubmissionId(body["submission"]))}
        if "task" in body:
            return {"marked": [body["task"]] if tx.abort_task(TaskId(body["task"]), body.get("reason", "aborted")) else []}
        conversation = await _conversation(tx, body)
        marked = await abort_conversation(
            tx,
            conversation.id,
            background=bool(body.get("background")),
            keep=bool(body.get("keep")),
            reason=body.get("reason", "aborted"),
        )
        return {"marked": marked}

    async def decide(tx: TaskTransaction, item: Inbound) -> Any:
        await answer(tx, TaskId(item.body["question"]), item.body.get("value"), by=item.body.get("by"))
        return {"answered": item.body["question"]}

    return {"input": input, "write": write, "abort": abort, "answer": decide}


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


async def _conversation(tx: TaskTransaction, body: dict[str, Any]) -> Conversation:
    if "id" in body:
        return await tx.use(ConversationId(body["id"]))
    if body.get("key") is not None:
        if not isinstance(body["key"], str):
            raise UsageError(f"a conversation key is a text, not {body['key']!r}")
        return await keyed(tx, body["key"])
    return await root(tx)
