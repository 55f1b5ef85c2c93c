"""The handle of a conversation: compare it by id, it holds no state (K10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

from perdure.errors import UsageError
from perdure.harness.generation import ABORTED_AT
from perdure.harness.harness import Settings, check_setting, overlay
from perdure.harness.jobs import Jobs
from perdure.harness.runs import run_of, withdraw
from perdure.harness.stored import AGENT, LIVE, USAGE, USAGE_BELOW
from perdure.harness.submissions import SubmissionHandle, WhenBusy, submit_input, submit_reset, submit_write
from perdure.harness.usage import merged, shown
from perdure.messages import UserMessage
from perdure.records import Conversation, ConversationId, Entry, EntryId, Queued, Submission, Task
from perdure.session.documents import DocumentToken
from perdure.session.line import Commit, Line, forbid_inside_commit
from perdure.session.reading import Attached, snapshot, snapshot_as_of
from perdure.session.transaction import EntryKind
from perdure.settle.state import evolve
from perdure.settle.walks import traverse
from perdure.tasks.transaction import QUESTION, TaskTransaction
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


class ConversationHandle:
    """One conversation of an open session."""

    def __init__(self, harness: Harness, id: ConversationId) -> None:
        self._harness = harness
        self.id = id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConversationHandle):
            return NotImplemented
        return other.id == self.id and other._harness.line is self._harness.line

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<conversation {self.id} of session {self._line.session!r}>"

    @property
    def _line(self) -> Line:
        return self._harness.line

    # -- handing in -------------------------------------------------------------------------

    async def submit(
        self, content: str | UserMessage, *, request_id: str | None = None, when_busy: WhenBusy = "follow_up"
    ) -> SubmissionHandle:
        """Hand in an input for the model to answer; durable on return. Starts the scheduler.

        While a run is live, `follow_up` waits for its final answer, `steer` joins it after the current tool round,
        `reject` raises ConversationBusy. The same `request_id` returns the first submission, also after a restart;
        with another body it raises RequestConflict.
        """
        if when_busy not in ("follow_up", "steer", "reject"):
            raise UsageError(f"when_busy={when_busy!r}: use 'follow_up', 'steer' or 'reject'")
        await self._harness.scheduler.resume()
        async with self.commit() as tx:
            item = await submit_input(self._harness, tx, self.id, content, request_id=request_id, when_busy=when_busy)
        return SubmissionHandle(self._harness, item.id)

    async def write(
        self, kind: EntryKind, data: Any = None, *, head: EntryId | None = None, request_id: str | None = None
    ) -> SubmissionHandle:
        """Hand in an entry that asks no model; durable on return. While a run is live it waits for a boundary.

        With `head` the model's context starts at that entry from then on. Where it starts later already when this
        is placed, it settles as unanswered, `stale` (H9). Raises NotFound for a head that is not seen from here.
        """
        async with self.commit() as tx:
            item = await submit_write(self._harness, tx, self.id, kind.name, data, head=head, request_id=request_id)
        return SubmissionHandle(self._harness, item.id)

    async def reset(
        self, handoff: str | UserMessage | None = None, *, request_id: str | None = None
    ) -> SubmissionHandle:
        """Hand in a reset; durable on return. The model's context starts there, with the handoff, if there is one.

        Everything said before stays in storage. While a run is live it waits for the next boundary, in the order of
        writes; placed after a tool round it ends the run: what that had to answer is unanswered, `reset` (H8).
        """
        async with self.commit() as tx:
            item = await submit_reset(self._harness, tx, self.id, handoff, request_id=request_id)
        return SubmissionHandle(self._harness, item.id)

    async def abort(
        self,
        *,
        background: bool = False,
        queue: Literal["withdraw", "keep"] = "withdraw",
        reason: str = "aborted by the user",
    ) -> None:
        """Stop ordinary work; returns when everything that was marked has ended (K32).

        Queued inputs are withdrawn unless `queue="keep"`; queued writes stay.
        `background` also crosses background boundaries.
        """
        forbid_inside_commit("abort()")
        if queue not in ("withdraw", "keep"):
            raise UsageError(f"queue={queue!r}: use 'withdraw' or 'keep'")
        async with self.commit() as tx:
            marked = await abort_conversation(tx, self.id, background=background, keep=queue == "keep", reason=reason)
        published = self._line.memory
        if marked:
            await self._harness.scheduler.until(lambda: not any(id in published.published.tasks for id in marked))

    async def configure(self, **settings: Any) -> None:
        """Set this conversation's own settings (see `Settings`); None takes the session's again. Durable on return."""
        for name, value in settings.items():
            check_setting(name, value)
        async with self.commit() as tx:
            own = await tx.doc(AGENT)
            for name, value in settings.items():
                if value is None:
                    own.pop(name, None)
                else:
                    own[name] = value

    async def fork(self, at: EntryId, *, key: str | None = None) -> ConversationHandle:
        """A new conversation that sees this one through entry `at` (K15). Copies no entry."""
        async with self.commit() as tx:
            child = await tx.fork(self.id, at, key=key)
        return ConversationHandle(self._harness, child.id)

    def commit(self) -> Commit[TaskTransaction]:
        """`async with chat.commit() as tx`: entries, documents and tasks of it, together or not at all."""
        return self._line.commit(lambda line: TaskTransaction(line, self.id))

    # -- reading ----------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a run is live, as published (K40)."""
        return run_of(self._line.memory.published, self.id) is not None

    async def wait_idle(self) -> None:
        """Wait until no ordinary task of this conversation is live. Starts the scheduler (K41)."""
        await self._harness.scheduler.wait_idle(self.id)

    async def record(self) -> Conversation:
        """The conversation's record. Raises NotFound."""
        return await self._line.memory.conversation(self.id)

    async def entries(self, *, before: EntryId | None = None, limit: int = 100) -> list[Entry]:
        """A page of the entries that this conversation sees, newest first (K16)."""
        return await self._line.memory.entries(await self.record(), before=before, limit=limit)

    async def history(self) -> AsyncIterator[Entry]:
        """Every entry that this conversation sees, newest first, page by page."""
        before: EntryId | None = None
        while page := await self.entries(before=before):
            for entry in page:
                yield entry
            before = page[-1].id

    async def snapshot(self, token: DocumentToken, *, key: str = "") -> Any:
        """A copy of the present value of a document of it, or of the session; None where there is none (K20)."""
        owner = 0 if token.scope == "session" else self.id
        return await snapshot(self._line, token, owner, key)

    async def snapshot_as_of(self, token: DocumentToken, at: EntryId, *, key: str = "") -> Any:
        """A rewindable document as it was after the commit that wrote entry `at` (K20)."""
        return await snapshot_as_of(self._line, token, self.id, key, at)

    async def attach(self, token: DocumentToken, *, key: str = "") -> Attached:
        """A read-only value that follows each commit until it is closed (K43)."""
        owner = 0 if token.scope == "session" else self.id
        return await Attached.open(self._line, token, owner, key)

    async def live(self) -> dict[str, Any] | None:
        """What the live run shows: round, attempt, partial answer, retry, open tool calls. None while idle."""
        run = run_of(self._line.memory.published, self.id)
        return None if run is None else await snapshot(self._line, LIVE, run.id, "")

    async def usage(self, *, subtree: bool = False) -> dict[str, Any]:
        """What this conversation used, by model and by tool (H17); with `subtree` also what those below it did.

        Below it are the conversations that its tasks own, and what those own, also when they were deleted.
        """
        own = await self.snapshot(USAGE)
        return shown(merged(own, await self.snapshot(USAGE_BELOW)) if subtree else own)

    async def settings(self) -> Settings:
        """The settings in force."""
        return overlay(self._harness.defaults.settings, await self.snapshot(AGENT))

    @property
    def jobs(self) -> Jobs:
        """The background jobs of this conversation."""
        return Jobs(self._harness, self.id, self.commit)

    def inbox(self) -> list[Submission]:
        """Queued submissions, oldest first, as published."""
        published = self._line.memory.published
        return [published.submissions[id] for id in published.queued.get(self.id, ())]

    def questions(self) -> list[Task]:
        """Open questions of this conversation's ordinary work, as published (K37)."""
        return [task for task in self._line.memory.published.ordinary(self.id) if task.kind == QUESTION]


async def abort_conversation(
    tx: TaskTransaction, conversation: ConversationId, *, background: bool, keep: bool, reason: str
) -> list[Any]:
    """Withdraw queued inputs and mark what is live; returns the ids of the tasks that were marked (K32)."""
    reason = clean_text(reason)
    await tx.use(conversation)
    run = run_of(tx.candidate, conversation)
    if run is not None:
        tx.put_task(evolve(run, memos={**run.memos, ABORTED_AT: tx.next_id - 1}))
    if not keep:
        for item in tx.candidate.queued(conversation):
            if item.type == "input" and isinstance(item.state, Queued):
                withdraw(tx, item, reason)
    tasks = list(traverse(tx.memory.tip, conversation, background=background))
    for task in tasks:
        tx.abort_task(task.id, reason)
    return [task.id for task in tasks]
