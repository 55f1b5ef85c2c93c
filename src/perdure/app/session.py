"""An open session, as users hold it: line, tasks and harness in one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextvars import Context
from typing import Any

from perdure.app.keeping import Keeping
from perdure.app.models import ModelFinder
from perdure.app.watching import TaskGraphs
from perdure.errors import NotFound, PerdureError, UsageError
from perdure.harness.approval import decide
from perdure.harness.conversation import ConversationHandle
from perdure.harness.harness import Harness
from perdure.harness.intake import addressed, handlers, keyed, root
from perdure.harness.registry import Registry
from perdure.harness.submissions import SubmissionHandle
from perdure.records import (
    ROOT,
    Conversation,
    ConversationId,
    Held,
    Inbound,
    Outcome,
    Pending,
    SubmissionId,
    TaskId,
    decode_conversation,
)
from perdure.session.change import Change
from perdure.session.documents import DocumentToken
from perdure.session.inbound import Intake
from perdure.session.line import Commit, Line, forbid_inside_commit
from perdure.session.opening import recover
from perdure.session.reading import Attached, snapshot
from perdure.session.retention import decide_deletion, finish_deletions
from perdure.settle.state import evolve
from perdure.settle.walks import below
from perdure.storage import Worker
from perdure.tasks.inspection import Inspection, inspect_state
from perdure.tasks.transaction import TaskTransaction


class Session(Keeping, TaskGraphs):
    """One open session of a store. Made by `perdure.open`; closes with its block."""

    def __init__(self, line: Line, harness: Harness, models: ModelFinder) -> None:
        self._line = line
        self._harness = harness
        self._models = models
        self.telemetry = line.telemetry
        self.key = line.session
        #: The worker that owns the session: this process.
        self.owner: Worker = line.storage.worker
        self._handlers = {**handlers(harness), "retry": _retry, "delete": self._delete}
        self._intake = Intake(line, TaskTransaction, self._handlers)
        self._closing: asyncio.Task[None] | None = None
        #: Removes what deletions that were handed in left behind.
        self._sweeping: asyncio.Task[None] | None = None

    # -- conversations ----------------------------------------------------------------------

    async def root(self) -> ConversationHandle:
        """The conversation that every session has, made on first use."""
        if ROOT not in self._line.memory.published.conversations:
            async with self._line.commit(TaskTransaction) as tx:
                await root(tx)
        return ConversationHandle(self._harness, ROOT)

    async def conversation(self, key: str) -> ConversationHandle:
        """Get or create a conversation by your own key. Durable on return."""
        if not isinstance(key, str) or not key:  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a conversation key is a text that is not empty, not {key!r}")
        async with self._line.commit(TaskTransaction) as tx:
            found = await keyed(tx, key)
        return ConversationHandle(self._harness, found.id)

    async def find(self, id: int) -> ConversationHandle:
        """A conversation by id. Raises NotFound."""
        found = await self._line.memory.conversation(ConversationId(id))
        return ConversationHandle(self._harness, found.id)

    async def conversations(self, *, before: int | None = None, limit: int = 20) -> list[Conversation]:
        """The newest conversations, newest first."""
        bodies = await self._line.storage.scan_conversations(self._line.session, before=before, limit=limit)
        return [decode_conversation(body, self._line.session) for body in bodies]

    def submission(self, id: int) -> SubmissionHandle:
        """A submission by id, also after a restart; an unknown id raises NotFound when it is asked for."""
        return SubmissionHandle(self._harness, SubmissionId(id))

    # -- work -------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Start scheduling: work that was accepted before goes on (K39)."""
        await self._harness.scheduler.resume()

    async def wait_idle(self, *, background: bool = False) -> None:
        """Wait until no ordinary task of any ownerless conversation is live. Starts the scheduler (K41).

        `background` waits for jobs and background agents, too: until all that there is has ended or rests.
        """
        await self._harness.scheduler.wait_idle(background=background)

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until a condition on published state holds, looked at after each commit. Starts the scheduler (K41)."""
        await self._harness.scheduler.until(done)

    async def wait_task(self, id: int) -> Outcome:
        """How a task ended. Starts the scheduler. Raises NotFound."""
        return await self._harness.scheduler.wait_task(TaskId(id))

    async def abort_task(self, id: int, reason: str = "aborted by the user") -> Outcome:
        """Mark a task for abort, a background one too, and wait until it has ended (K32)."""
        forbid_inside_commit("abort_task()")
        async with self._line.commit(TaskTransaction) as tx:
            tx.abort_task(TaskId(id), reason)
        return await self.wait_task(id)

    async def retry(self, id: int) -> None:
        """Let a held task go on: parked, uncertain or in recovery (H44). Raises NotFound, UsageError if not held."""
        async with self._line.commit(TaskTransaction) as tx:
            _free(tx, TaskId(id))

    async def answer(self, question: int, value: Any, *, by: str | None = None) -> None:
        """Answer a question, at most once. Raises AlreadyAnswered, NotFound; then nothing changes (K37).

        One about a call takes a decision, see `perdure.Ask`; for what is none it raises UsageError.
        """
        async with self._line.commit(TaskTransaction) as tx:
            await decide(self._harness, tx, TaskId(question), value, by=by)

    def inspect(self) -> Inspection:
        """Live tasks, queued and placed submissions, open questions, held reasons, as published (K38)."""
        memory, scheduler = self._line.memory, self._harness.scheduler
        fault = self._line.fault
        storage = f"stopped: {fault}" if fault is not None else "full" if self._line.full else "ok"
        return inspect_state(
            self._line.session,
            memory.published_seq,
            memory.published,
            detached=list(scheduler.detached.values()),
            storage=storage,
        )

    def subtree(self, task: int) -> list[int]:
        """Ids of the live tasks below a task, background ones included."""
        return [item.id for item in below(self._line.memory.published, TaskId(task), background=True)]

    async def install(self, registry: Registry) -> None:
        """Publish another registry: new work uses it, held work that it fits goes on (H37, K34)."""
        await self._harness.install(registry)

    # -- state ------------------------------------------------------------------------------

    def commit(self) -> Commit[TaskTransaction]:
        """`async with session.commit() as tx`: a commit that belongs to no conversation."""
        return self._line.commit(TaskTransaction)

    async def snapshot(self, token: DocumentToken, *, key: str = "") -> Any:
        """A copy of the present value of a session document; None where there is none."""
        return await snapshot(self._line, token, 0, key)

    async def attach(self, token: DocumentToken, *, key: str = "") -> Attached:
        """A session document's value that follows each commit until it is closed (K43)."""
        return await Attached.open(self._line, token, 0, key)

    def observe(self, observer: Callable[[Change], None]) -> Callable[[], None]:
        """Call `observer` with each published commit, in order. It must not raise or wait. Returns how to stop."""
        self._line.observers.append(observer)
        return lambda: self._line.observers.remove(observer)

    # -- closing ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Take nothing more in, stop and join what runs, write no outcome, give the claim back (K7).

        Cancelling this cancels the wait only.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="perdure close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._intake.close()
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping])
        await self._harness.scheduler.close()
        self._harness.close()
        await self._models.close()
        await self._line.close()
        if self._line.fault is None:
            await self._line.storage.release(self._line.claim)

    async def start(self, crashed: bool) -> None:
        """The recovery commit (K46), then listening for what is handed in."""
        await recover(self._line, crashed, TaskTransaction, self._handlers, self._harness.generation.recovered)
        if self._line.storage.supports_processes:
            self._intake.start()

    async def _delete(self, tx: TaskTransaction, item: Inbound) -> Any:
        """Another process deletes a conversation: it is decided in this commit, and the rest follows."""
        conversation = await addressed(tx, item)
        done = await decide_deletion(tx, conversation.id)
        if self._sweeping is None or self._sweeping.done():
            loop = asyncio.get_running_loop()  # not in the context of this commit: it makes commits of its own
            self._sweeping = loop.create_task(self._sweep(), name="perdure sweep", context=Context())
        return {"deleted": list(done.conversations)}

    async def _sweep(self) -> None:
        """What is left when it cannot go on, the next deletion or `prune` removes."""
        with contextlib.suppress(PerdureError):
            await finish_deletions(self._line)


async def _retry(tx: TaskTransaction, item: Inbound) -> Any:
    """Another process asks to let a held task go on."""
    _free(tx, TaskId(item.body["task"]))
    return {"freed": item.body["task"]}


def _free(tx: TaskTransaction, id: TaskId) -> None:
    task = tx.task(id)
    if task is None:
        raise NotFound(f"no live task {id} in session {tx.line.session!r}")
    if not isinstance(task.state, Held):
        raise UsageError(f"task {id} is {type(task.state).__name__.lower()}, not held: there is nothing to retry")
    tx.put_task(evolve(task, state=Pending(checkpoint=task.state.checkpoint, begun=task.state.begun), crashes=0))
