"""The scheduler: runs what commits reserved, signals what they marked, and keeps the deadlines (K26, K31, K36, K39)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from perdure.errors import (
    NotFound,
    PerdureError,
    Revoked,
    SessionClosed,
    StorageError,
    StorageFull,
    StorageRejected,
    UsageError,
)
from perdure.records import (
    Completing,
    ConversationId,
    Faulted,
    Held,
    HoldReason,
    Outcome,
    Pending,
    Running,
    Task,
    TaskId,
    decode_task,
)
from perdure.session.change import Change
from perdure.session.line import RETRY_EVERY, Line, forbid_inside_commit
from perdure.settle.state import Ordered, evolve
from perdure.tasks.definition import Definitions, TaskDefinition
from perdure.tasks.invocation import Invocation
from perdure.tasks.timers import Timers
from perdure.tasks.transaction import TaskTransaction, error_info

#: How long a stopped invocation may take before it loses its right to commit, in seconds (K31).
GRACE = 5.0


class Runner:
    """One asyncio task that runs the invocations of one durable task, one after another."""

    __slots__ = ("inside", "invocation", "loop_task")

    def __init__(self) -> None:
        self.loop_task: asyncio.Task[None] | None = None
        self.invocation: Invocation | None = None
        #: The loop task is inside the user's handler, so cancelling it signals the handler and nothing else.
        self.inside = False


class Scheduler:
    """Invariant: once everything published was looked at, each published Running task has exactly one runner, unless closing.

    It is the line's rules: `mode` and `fit` are what settling asks.
    """

    def __init__(self, line: Line, definitions: Definitions) -> None:
        self.mode: Literal["paused", "running", "closing"] = "paused"
        self.line = line
        self.definitions = definitions
        #: Runners by task. Changed in `_start` and at the end of `_run`.
        self._runners: dict[TaskId, Runner] = {}
        #: Runners whose grace is over: revoked, not joined. Shown by `inspect`.
        self.detached: dict[asyncio.Task[None], TaskId] = {}
        #: Called after each published change that ended or changed tasks; each says whether it is done.
        self._conditions: Ordered[Condition] = {}
        self._graces: Ordered[asyncio.Task[None]] = {}
        self.timers = Timers(line, self.mode_is_running)
        line.rules = self  # type: ignore[assignment]
        line.observers.append(self._published)
        line.on_fault.append(self._faulted)

    def mode_is_running(self) -> bool:
        return self.mode == "running"

    def fit(self, task: Task) -> tuple[HoldReason, str] | None:
        return self.definitions.fit(task)

    # -- starting ---------------------------------------------------------------------------

    async def resume(self) -> None:
        """Start scheduling: one commit reserves what may run (K39). Does nothing when it runs already."""
        forbid_inside_commit("resume()")
        self.line.check()
        if self.mode != "paused":
            return
        self.mode = "running"
        await self._touch()
        self.timers.start(self.line.memory.published.tasks.values())

    async def install(self, definitions: Definitions) -> None:
        """Replace the definitions; held tasks that they fit go on (K34, K35)."""
        self.definitions = definitions
        if self.mode == "running":
            await self._touch()

    async def _touch(self) -> None:
        tip = self.line.memory.tip
        waiting = [task.id for task in tip.tasks.values() if isinstance(task.state, Pending | Held)]
        if waiting:
            async with self.line.commit(TaskTransaction) as tx:
                tx.candidate.dirty.update(dict.fromkeys(waiting))

    async def retry(self, id: TaskId) -> None:
        """Free a held task: parked, uncertain or in recovery (H44). Raises NotFound, UsageError where it is not held."""
        async with self.line.commit(TaskTransaction) as tx:
            task = tx.task(id)
            if task is None:
                raise NotFound(f"no live task {id}")
            if not isinstance(task.state, Held):
                raise UsageError(f"task {id} is {type(task.state).__name__.lower()}, not held: there is nothing to retry")
            pending = Pending(checkpoint=task.state.checkpoint, begun=task.state.begun)
            tx.put_task(evolve(task, state=pending, crashes=0))

    # -- waiting ----------------------------------------------------------------------------

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until a condition on published state holds; it is looked at after each change. Starts the scheduler (K41)."""
        forbid_inside_commit("a wait")
        await self.resume()
        self.line.check()
        if done():
            return
        condition = Condition(done)
        self._conditions[condition] = None
        try:
            await condition.future
        finally:
            self._conditions.pop(condition, None)

    async def wait_task(self, id: TaskId) -> Outcome:
        """The terminal outcome of a task. Raises NotFound."""
        await self.until(lambda: id not in self.line.memory.published.tasks)
        for body in await self.line.storage.read_tasks(self.line.session, [id]):
            outcome = decode_task(body).outcome
            if outcome is not None:
                return outcome
        raise NotFound(f"no task {id} in session {self.line.session!r}")

    async def wait_idle(self, conversation: ConversationId | None = None) -> None:
        """Wait until the conversation's ordinary scope has no live task; without one, that of every ownerless conversation (K41)."""
        await self.until(lambda: self.idle(conversation))

    def idle(self, conversation: ConversationId | None = None) -> bool:
        published = self.line.memory.published
        if conversation is not None:
            return next(published.ordinary(conversation), None) is None
        for id in published.scopes:
            known = published.conversations.get(id)
            if (known is None or known.owner is None) and next(published.ordinary(id), None) is not None:
                return False
        return True

    # -- following the line -----------------------------------------------------------------

    def _published(self, change: Change) -> None:
        if self.mode == "running":
            for task in change.tasks.values():
                if isinstance(task.state, Running):
                    runner = self._runners.get(task.id)
                    if runner is None:
                        self._start(task.id)
                    elif task.abort is not None:
                        self._signal(task.id, runner)
            self.timers.note(change.tasks.values())
        if self._conditions:
            for condition in list(self._conditions):
                condition.look()

    def _faulted(self, error: StorageError) -> None:
        """The line stopped for good: nothing more may start, and what runs is told (K5, Fenced)."""
        self.mode = "closing"
        self.timers.stop()
        for runner in list(self._runners.values()):
            self._cancel(runner)
        for condition in list(self._conditions):
            condition.fail(error)

    def _start(self, id: TaskId) -> None:
        runner = Runner()
        self._runners[id] = runner
        runner.loop_task = asyncio.get_running_loop().create_task(self._run(id, runner), name=f"perdure task {id}")

    # -- running ----------------------------------------------------------------------------

    async def _run(self, id: TaskId, runner: Runner) -> None:
        late: Outcome | None = None
        while True:
            task = self.line.memory.published.tasks.get(id)
            if task is None or not isinstance(task.state, Running) or self.mode != "running":
                break
            if self.line.full:  # nothing new starts while outcomes cannot be recorded (K5)
                await self.line.clock.sleep(RETRY_EVERY)
                await self.line.probe()
                continue
            invocation = self._invocation(task)
            if isinstance(invocation, Held):
                await self._leave(id, invocation)
                continue
            invocation.late = late
            runner.invocation = invocation
            await self._invoke(invocation, runner)
            late = invocation.late
            if invocation.revoked:
                return
        if self._runners.get(id) is runner:
            del self._runners[id]

    def _invocation(self, task: Task) -> Invocation | Held:
        """The invocation of a reserved task, migrated where its code is newer; or why it is held after all."""
        assert isinstance(task.state, Running)
        definition = self.definitions.find(task.kind)
        checkpoint = task.state.checkpoint
        if definition is None or definition.version < task.version:
            reason, detail = self.definitions.fit(task) or ("definition", "its definition was replaced")
            return Held(checkpoint=checkpoint, reason=reason, detail=detail, begun=task.state.begun)
        phase, data, input = checkpoint.phase, checkpoint.data, task.input
        if definition.version > task.version:
            try:
                assert definition.migrate is not None
                input, phase, data = definition.migrate(task.version, task.input, checkpoint)
            except Exception as error:
                detail = f"migrate from version {task.version} failed: {error!r}"
                return Held(checkpoint=checkpoint, reason="migration", detail=detail, begun=task.state.begun)
        if phase not in definition.phases and task.abort is None:
            detail = f"version {definition.version} has no phase {phase!r}"
            return Held(checkpoint=checkpoint, reason="definition", detail=detail, begun=task.state.begun)
        return Invocation(self.line, task, definition, phase, data, input)

    async def _invoke(self, invocation: Invocation, runner: Runner) -> None:
        """Run one handler, and commit what becomes of the task where the handler did not."""
        fault: BaseException | None = None
        runner.inside = True
        if invocation.stopping:
            self._cancel(runner)
        try:
            published = self.line.memory.published.tasks.get(invocation.id)
            if published is not None and published.abort is not None and not invocation.aborting:
                raise Revoked("told to stop before it started")
            await invocation.call()
        except asyncio.CancelledError:
            if not invocation.stopping or invocation.revoked:
                raise
            loop_task = asyncio.current_task()
            assert loop_task is not None
            loop_task.uncancel()
        except SessionClosed:
            return
        except Exception as error:
            fault = error
        finally:
            runner.inside = False
        if not invocation.revoked and not invocation.spent and self.mode == "running" and self.line.fault is None:
            await self._conclude(invocation, fault)

    async def _conclude(self, invocation: Invocation, fault: BaseException | None) -> None:
        """The handler ended without moving its task."""
        task = self.line.memory.tip.tasks.get(invocation.id)
        if task is None or not isinstance(task.state, Running):
            return
        if task.abort is not None and not invocation.aborting:
            state: Pending | Held | Completing = Pending(checkpoint=task.state.checkpoint, begun=task.state.begun)
        elif isinstance(fault, StorageRejected):
            state = Pending(checkpoint=task.state.checkpoint, begun=task.state.begun)
        elif isinstance(fault, Exception):
            state = Completing(outcome=Faulted(error=error_info(fault)))
            self.line.telemetry.emit("perdure.task.faulted", metadata={"task": task.id, "kind": task.kind, "error": type(fault).__name__})
        else:
            name = invocation.phase if not invocation.aborting else "abort"
            message = f"phase {name!r} of task kind {task.kind!r} returned without committing a next phase, a wait or an outcome"
            state = Completing(outcome=Faulted(error=error_info(UsageError(message))))
        await self._leave(invocation.id, state)

    async def _leave(self, id: TaskId, state: Pending | Held | Completing) -> None:
        """Commit a state that the runtime itself decided, redone until the line takes it."""

        async def stage(tx: TaskTransaction) -> None:
            task = tx.task(id)
            if task is not None and isinstance(task.state, Running):
                tx.put_task(evolve(task, state=state))

        await self.record(stage)

    async def record(self, body: Callable[[TaskTransaction], Awaitable[None]]) -> None:
        """Commit what `body` stages; redone when refused, and when space returns (K5)."""
        while True:
            try:
                async with self.line.commit(TaskTransaction) as tx:
                    await body(tx)
            except StorageFull:
                await self.line.clock.sleep(RETRY_EVERY)
            except StorageRejected:
                continue
            except (SessionClosed, StorageError):  # the line has stopped, and says so to everyone
                return
            else:
                return

    # -- stopping ---------------------------------------------------------------------------

    def _signal(self, id: TaskId, runner: Runner) -> None:
        """The task was marked: stop the invocation that runs, unless it is the abort handler already."""
        invocation = runner.invocation
        if invocation is None or invocation.aborting or invocation.stopping:
            return
        invocation.stopping = True
        self._cancel(runner)
        grace = asyncio.get_running_loop().create_task(self._after_grace(id, runner, invocation), name=f"perdure grace {id}")
        self._graces[grace] = None
        grace.add_done_callback(lambda done: self._graces.pop(done, None))

    def _cancel(self, runner: Runner) -> None:
        if runner.invocation is not None:
            runner.invocation.stopping = True
        if runner.inside and runner.loop_task is not None:
            runner.loop_task.cancel()

    async def _after_grace(self, id: TaskId, runner: Runner, invocation: Invocation) -> None:
        """Work that ignores the signal loses its right to commit, and the abort handler runs without it (K31)."""
        await self.line.clock.sleep(GRACE)
        if not runner.inside or runner.invocation is not invocation:
            return
        self._detach(id, runner, invocation)
        task = self.line.memory.tip.tasks.get(id)
        if task is not None and isinstance(task.state, Running):
            await self._leave(id, Pending(checkpoint=task.state.checkpoint, begun=task.state.begun))

    def _detach(self, id: TaskId, runner: Runner, invocation: Invocation) -> None:
        invocation.revoked = True
        assert runner.loop_task is not None
        self.detached[runner.loop_task] = id
        runner.loop_task.add_done_callback(self._gone)
        if self._runners.get(id) is runner:
            del self._runners[id]

    def _gone(self, loop_task: asyncio.Task[None]) -> None:
        self.detached.pop(loop_task, None)
        if not loop_task.cancelled():
            loop_task.exception()

    async def close(self) -> None:
        """Reserve nothing more, stop and join what runs; write no outcome (K7). Work that ignores it is detached after the grace."""
        self.mode = "closing"
        self.timers.stop()
        for condition in list(self._conditions):
            condition.fail(SessionClosed("the session was closed while this waited: open it again and wait again"))
        for runner in list(self._runners.values()):
            self._cancel(runner)
        waiting = [runner.loop_task for runner in self._runners.values() if runner.loop_task is not None]
        if waiting:
            await self._join(waiting)
        for grace in list(self._graces):
            grace.cancel()

    async def _join(self, waiting: list[asyncio.Task[None]]) -> None:
        grace = asyncio.get_running_loop().create_task(self.line.clock.sleep(GRACE))
        try:
            while waiting and not grace.done():
                await asyncio.wait([*waiting, grace], return_when=asyncio.FIRST_COMPLETED)
                waiting = [task for task in waiting if not task.done()]
        finally:
            grace.cancel()
        for id, runner in list(self._runners.items()):
            if runner.loop_task in waiting and runner.invocation is not None:
                self._detach(id, runner, runner.invocation)


class Condition:
    """Somebody waits for something to be so in published state."""

    __slots__ = ("_done", "future")

    def __init__(self, done: Callable[[], bool]) -> None:
        self._done = done
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(self) -> None:
        if not self.future.done() and self._done():
            self.future.set_result(None)

    def fail(self, error: PerdureError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


__all__ = ["Definitions", "Scheduler", "TaskDefinition"]
