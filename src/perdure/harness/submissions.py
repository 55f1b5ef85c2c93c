"""Handing something to a conversation (H1 to H7), staged in one commit; and the handle that waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perdure.errors import ConversationBusy, InboxFull, InvalidValue, NotFound, TaskRefused, UsageError
from perdure.harness.approval import supersede
from perdure.harness.runs import accepts_work, place_due, place_entries, run_of, start_run, user_message, withdraw
from perdure.inbox.admission import check_request_id, digest_of, find_request, queued
from perdure.messages import UserMessage
from perdure.messages import user as user_text
from perdure.records import (
    RESERVED_PREFIX,
    ConversationId,
    Done,
    EntryId,
    Held,
    Placed,
    Queued,
    Submission,
    SubmissionId,
    Unanswered,
    decode_entry,
    decode_submission,
)
from perdure.session.line import forbid_inside_commit
from perdure.settle.walks import below
from perdure.surface.settled import Answered, NotAnswered, Settled, WhenBusy
from perdure.tasks.transaction import QUESTION, TaskTransaction
from perdure.values import clean

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


async def submit_input(
    harness: Harness,
    tx: TaskTransaction,
    conversation: ConversationId,
    content: str | UserMessage,
    *,
    request_id: str | None,
    when_busy: WhenBusy,
) -> Submission:
    """Admit an input. Idle with an empty inbox: its entry, generation task and live run are in this commit (H3).

    Raises ConversationBusy, RequestConflict, InboxFull, NotFound, TaskRefused, UsageError; then nothing is staged.
    """
    body = _input(content)
    request_id = check_request_id(request_id)
    digest = digest_of("input", body)
    await tx.use(conversation)
    if request_id is not None:
        found = await find_request(tx, conversation, request_id, digest)
        if found is not None:
            return found
    busy = run_of(tx.candidate, conversation) is not None
    if busy and when_busy == "reject":
        raise ConversationBusy(
            f"conversation {conversation} is answering: wait for it, or submit as follow_up or steer"
        )
    waiting = tx.candidate.queued(conversation)
    await _check_room(harness, tx, conversation, len(waiting) if busy else 0)
    if not busy and not accepts_work(tx, conversation):
        raise TaskRefused(
            f"conversation {conversation} belongs to a task that has ended or is ending: nothing can run there (K29)"
        )
    mode = "steer" if when_busy == "steer" else "follow_up"
    item = queued(tx, conversation, "input", body, request_id=request_id, body=digest, mode=mode)
    if not busy and not waiting:
        await start_run(harness, tx, conversation, [item])
    else:
        tx.put_submission(item)
        if mode == "steer":
            await supersede(tx, conversation)
        if not busy:  # a failed run left the inbox alone: the oldest goes first (H6)
            await place_due(harness, tx, conversation, "idle", None)
    return tx.candidate.submissions[item.id]


def _input(content: object) -> Any:
    """An input's message as it is stored. Raises UsageError for what is none."""
    if isinstance(content, str):
        return clean(msgspec.to_builtins(user_text(content)))
    if not isinstance(content, UserMessage):
        raise UsageError(f"an input is a text or a perdure.UserMessage, not {type(content).__name__}")
    body = clean(msgspec.to_builtins(content))
    try:
        user_message(body)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"the message is not one: {error}") from None
    return body


async def submit_write(
    harness: Harness,
    tx: TaskTransaction,
    conversation: ConversationId,
    kind: str,
    data: Any,
    *,
    request_id: str | None,
    head: EntryId | None = None,
) -> Submission:
    """Admit an entry that asks no model: written at once when idle, at the next boundary when busy (H4).

    With `head` the active transcript starts at that entry from then on; stale where it starts later already (H9).
    Raises RequestConflict, InboxFull, NotFound, UsageError; then nothing is staged.
    """
    if not kind or kind.startswith(RESERVED_PREFIX):
        raise UsageError(f"entry kind {kind!r} cannot be written: take a kind of your own, from entry_kind()")
    content: dict[str, Any] = {"kind": kind, "data": clean(data)}
    if head is not None:
        await tx.visible(conversation, head)
        content["head"] = head
    return await admit_entry(harness, tx, conversation, "write", content, request_id=request_id)


async def submit_reset(
    harness: Harness,
    tx: TaskTransaction,
    conversation: ConversationId,
    handoff: str | UserMessage | None,
    *,
    request_id: str | None,
) -> Submission:
    """Admit a reset: the model's context starts at its entry, with the handoff as what a user says (H8).

    Placed at once when idle, at the next boundary when busy, in the order of writes; after a tool round it ends the
    run. A tool that hands off stages it in the commit of its result. Raises as `submit_write`.
    """
    content = {"handoff": None if handoff is None else _input(handoff)}
    return await admit_entry(harness, tx, conversation, "reset", content, request_id=request_id)


async def admit_entry(
    harness: Harness,
    tx: TaskTransaction,
    conversation: ConversationId,
    type: Literal["write", "reset"],
    content: dict[str, Any],
    *,
    request_id: str | None,
) -> Submission:
    """Admit what asks no model, and place it where no run is live. Raises RequestConflict, InboxFull, NotFound."""
    request_id = check_request_id(request_id)
    digest = digest_of(type, content)
    await tx.use(conversation)
    if request_id is not None:
        found = await find_request(tx, conversation, request_id, digest)
        if found is not None:
            return found
    busy = run_of(tx.candidate, conversation) is not None
    waiting = len(tx.candidate.queued(conversation)) if busy else 0
    await _check_room(harness, tx, conversation, waiting)
    item = queued(tx, conversation, type, content, request_id=request_id, body=digest)
    tx.put_submission(item)
    if not busy:  # a run that ended badly may have left older ones
        await place_entries(tx, conversation)
    return tx.candidate.submissions[item.id]


async def _check_room(harness: Harness, tx: TaskTransaction, conversation: ConversationId, waiting: int) -> None:
    if waiting:
        most = (await harness.settings(tx, conversation)).max_queued
        if waiting >= most:
            raise InboxFull(
                f"conversation {conversation} holds {waiting} queued submissions, which is its limit: wait for some"
            )


Withdrawal = Literal["aborted", "already_placed", "settled"]


async def withdraw_submission(tx: TaskTransaction, id: SubmissionId) -> Withdrawal:
    """Take a queued submission back, whatever its type (H7). Raises NotFound."""
    item = tx.candidate.submission(id)
    if item is None:
        await tx.line.flushed()
        if await tx.line.storage.read_submission(tx.line.session, id) is None:
            raise NotFound(f"no submission {id} in session {tx.line.session!r}")
        return "settled"
    match item.state:
        case Queued():
            withdraw(tx, item, "withdrawn")
            return "aborted"
        case Placed():
            return "already_placed"
        case _:
            return "settled"


class SubmissionHandle:
    """A submission by id. Holds no state: it can be found again after a restart with `session.submission(id)`."""

    def __init__(self, harness: Harness, id: SubmissionId) -> None:
        self._harness = harness
        self.id = id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubmissionHandle) and other.id == self.id and other._harness.line is self._harness.line

    def __hash__(self) -> int:
        return hash(self.id)

    async def wait(self) -> Settled:
        """How it was settled. Starts the scheduler. Cancelling the wait cancels nothing else (K33)."""
        published = self._harness.line.memory
        await self._harness.scheduler.until(lambda: self.id not in published.published.submissions, about=self.id)
        record = await self._stored()
        match record.state:
            case Done(entry=entry, answer=answer):
                found = None if answer is None else await self._harness.line.storage.read_entry(self._session, answer)
                return Answered(entry=entry, answer=None if found is None else decode_entry(found, self._session))
            case Unanswered(reason=reason, detail=detail, entry=entry):
                return NotAnswered(reason=reason, detail=detail, entry=entry)
            case _:
                raise NotFound(f"submission {self.id} is not settled")

    async def status(self) -> str:
        """`queued`, `running`, `asks`, `held(reason)`, `done` or `unanswered(reason)`. Waits for no work (K39).

        It `asks` while a question of its work is open, such as an approval, whatever else goes on.
        """
        published = self._harness.line.memory.published
        record = published.submissions.get(self.id) or await self._stored()
        match record.state:
            case Placed(run=run):
                held = self._held(run)
                return f"held({held})" if held else "asks" if self._asks(run) else "running"
            case Unanswered(reason=reason):
                return f"unanswered({reason})"
            case state:
                return type(state).__name__.lower()

    async def abort(self) -> Withdrawal:
        """Withdraw it while it is queued; says `aborted`, `already_placed` or `settled` (H7)."""
        async with self._harness.line.commit(TaskTransaction) as tx:
            return await withdraw_submission(tx, self.id)

    def _held(self, run: Any) -> str | None:
        published = self._harness.line.memory.published
        own = published.tasks.get(run)
        for task in (*([] if own is None else [own]), *below(published, run, background=False)):
            if isinstance(task.state, Held):
                return task.state.reason
        return None

    def _asks(self, run: Any) -> bool:
        published = self._harness.line.memory.published
        return any(task.kind == QUESTION for task in below(published, run, background=False))

    @property
    def _session(self) -> str:
        return self._harness.line.session

    async def _stored(self) -> Submission:
        forbid_inside_commit("reading a submission")
        body = await self._harness.line.storage.read_submission(self._session, self.id)
        if body is None:
            raise NotFound(f"no submission {self.id} in session {self._session!r}")
        return decode_submission(body, self._session)
