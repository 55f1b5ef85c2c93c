"""Request ids (H2, H44): the same id with the same body is the same submission, with another body a conflict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.errors import RequestConflict, UsageError
from perdure.records import ConversationId, Queued, Submission, SubmissionId, decode_submission
from perdure.session.transaction import Transaction
from perdure.values import clean_text, digest

#: No request id is longer, in characters.
MOST_REQUEST_ID = 1000


def digest_of(type: str, content: Any) -> str:
    """The hash that tells whether two bodies are the same."""
    return digest([type, content])[:32]


async def find_request(tx: Transaction, conversation: ConversationId, request_id: str, body: str) -> Submission | None:
    """The submission that this request made before, as of the tip. Raises RequestConflict for another body."""
    found = next((item for item in _live(tx, conversation) if item.request_id == request_id), None)
    if found is None:
        await tx.line.flushed()
        stored = await tx.line.storage.find_submission(tx.line.session, conversation, request_id)
        found = None if stored is None else decode_submission(stored, tx.line.session)
    if found is not None and found.digest != body:
        state = type(found.state).__name__.lower()
        raise RequestConflict(
            f"request id {request_id!r} belongs to submission {found.id} ({found.type}, {state}) with another body; "
            f"nothing was written: take a new request id"
        )
    return found


def _live(tx: Transaction, conversation: ConversationId) -> Iterator[Submission]:
    """What this transaction touched, what is queued, and what the conversation's tasks have to answer."""
    yield from (item for item in tx.candidate.submissions.values() if item.conversation == conversation)
    yield from tx.candidate.queued(conversation)
    for task in tx.candidate.scope(conversation):
        yield from tx.candidate.placed(task.id)


def check_request_id(request_id: str | None) -> str | None:
    """The request id as it is stored. Raises UsageError for what is none."""
    if request_id is None:
        return None
    if not isinstance(request_id, str) or not request_id or len(request_id) > MOST_REQUEST_ID:  # pyright: ignore[reportUnnecessaryIsInstance]
        shown = repr(request_id)[:60]
        raise UsageError(f"a request id is a text of 1 to {MOST_REQUEST_ID} characters, not {shown}")
    return clean_text(request_id)


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
