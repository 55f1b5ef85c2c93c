"""Request ids (H2, H44): the same id with the same body is the same submission, with another body a conflict."""

from __future__ import annotations

from typing import Any

from perdure.errors import RequestConflict
from perdure.records import ConversationId, Queued, Submission, SubmissionId, decode_submission
from perdure.session.transaction import Transaction
from perdure.values import digest


def digest_of(type: str, content: Any) -> str:
    """The hash that tells whether two bodies are the same."""
    return digest([type, content])[:32]


async def find_request(tx: Transaction, conversation: ConversationId, request_id: str, body: str) -> Submission | None:
    """The submission that this request made before, as of the tip. Raises RequestConflict where its body was another."""
    found = next(
        (
            item
            for item in (*tx.candidate.submissions.values(), *tx.memory.tip.submissions.values())
            if item.request_id == request_id and item.conversation == conversation
        ),
        None,
    )
    if found is None:
        await tx.line.flushed()
        stored = await tx.line.storage.find_submission(tx.line.session, conversation, request_id)
        found = None if stored is None else decode_submission(stored)
    if found is not None and found.digest != body:
        state = type(found.state).__name__.lower()
        raise RequestConflict(
            f"request id {request_id!r} belongs to submission {found.id} ({found.type}, {state}) with another body; "
            f"nothing was written: take a new request id"
        )
    return found


def queued(
    tx: Transaction,
    conversation: ConversationId,
    type: Any,
    content: Any,
    *,
    request_id: str | None,
    body: str,
    mode: Any = "follow_up",
) -> Submission:
    """A new submission in the inbox, not staged yet."""
    return Submission(
        id=SubmissionId(tx.mint()),
        conversation=conversation,
        type=type,
        state=Queued(),
        digest=body,
        at=tx.now,
        request_id=request_id,
        mode=mode,
        content=content,
    )
