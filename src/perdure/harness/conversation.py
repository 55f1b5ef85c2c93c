"""The handle of a conversation: compare it by id, it holds no state (K10)."""

from __future__ import annotations

from typing import Any, Literal

from perdure.errors import NotFound, UsageError
from perdure.harness.agents import Agents
from perdure.harness.compaction import compact_conversation
from perdure.harness.conversation_reading import ConversationReading
from perdure.harness.generation import ABORTED_AT
from perdure.harness.harness import check_setting
from perdure.harness.jobs import Jobs
from perdure.harness.runs import run_of, withdraw
from perdure.harness.stored import AGENT
from perdure.harness.submissions import SubmissionHandle, submit_input, submit_reset, submit_write
from perdure.messages import UserMessage
from perdure.records import Conversation, ConversationId, EntryId, Placed, Queued, TaskId
from perdure.session.line import Commit, forbid_inside_commit
from perdure.session.transaction import EntryKind
from perdure.settle.state import evolve
from perdure.settle.walks import traverse
from perdure.surface.settled import WhenBusy
from perdure.tasks.transaction import TaskTransaction
from perdure.values import clean_text


class ConversationHandle(ConversationReading):
    """One conversation of an open session: what can be handed in to it, and what can be read of it."""

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
            if isinstance(item.state, Placed):
                self._harness.warming.begin(self.id, (await self._harness.settings(tx, self.id)).model)
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

    async def compact(self, instructions: str | None = None) -> TaskId:
        """Summarise what is older, now, and as `instructions` ask; returns the task's id. Starts the scheduler.

        Durable on return. It runs beside the work: `session.wait_task(id)` says how it ended, an abort stops it. The
        summary is placed at once when the conversation is idle, else at the next boundary; no entry is removed (H28).
        """
        await self._harness.scheduler.resume()
        async with self.commit() as tx:
            task = await compact_conversation(self._harness, tx, self.id, instructions)
        return task.id

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

    async def fork(self, at: EntryId | None = None, *, key: str | None = None) -> ConversationHandle:
        """A new conversation that sees this one through entry `at`, by default its newest one (K15).

        It starts with the settings of then (H36), and copies no entry. Durable on return.
        Raises NotFound where this conversation does not see the entry, UsageError where another one has the key.
        """
        async with self.commit() as tx:
            child = await fork_conversation(tx, self.id, at, key)
        return ConversationHandle(self._harness, child.id)

    def commit(self) -> Commit[TaskTransaction]:
        """`async with chat.commit() as tx`: entries, documents and tasks of it, together or not at all."""
        return self._line.commit(lambda line: TaskTransaction(line, self.id))

    @property
    def jobs(self) -> Jobs:
        """The background jobs of this conversation."""
        return Jobs(self._harness, self.id, self.commit)

    @property
    def agents(self) -> Agents:
        """The background agents of this conversation."""
        return Agents(self._harness, self.id, self.commit)


async def fork_conversation(
    tx: TaskTransaction, conversation: ConversationId, at: EntryId | None, key: str | None
) -> Conversation:
    """Fork at an entry, by default the newest one of the tip. What it refuses, it refuses before anything is staged."""
    if key is not None and (known := await tx.find_conversation(key)) is not None:
        raise UsageError(f"key {key!r} belongs to another conversation, {known.id}: take another key, or no key")
    if at is None:
        at = await _newest(tx, conversation)
    return await tx.fork(conversation, at, key=key)


async def _newest(tx: TaskTransaction, conversation: ConversationId) -> EntryId:
    staged = [entry.id for entry in tx.entries if entry.conversation == conversation]
    if staged:
        return staged[-1]
    home = await tx.use(conversation)
    await tx.line.flushed()
    newest = await tx.line.memory.entries(home, limit=1)
    if not newest:
        raise NotFound(f"conversation {conversation} has no entry yet: there is nothing to fork from")
    return newest[0].id


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
