"""The scheduler: starts what commits reserved, signals what they marked, keeps deadlines (K26, K31, K36, K39)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal

from perdure.errors import (
    NotFound,
    SessionClosed,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    UsageError,
)
from perdure.records import (
    ConversationId,
    Held,
    HoldReason,
    Outcome,
    Pending,
    Running,
    Task,
    TaskId,
    Waiting,
    decode_task,
)
from perdure.session.change import Change
from perdure.session.line import Line, forbid_inside_commit
from perdure.session.transaction import Transaction
from perdure.settle.members import Ordered
from perdure.settle.state import State, evolve
from perdure.settle.walks import traverse
from perdure.tasks.conditions import Conditions
from perdure.tasks.definition import Definitions, TaskDefinition
from perdure.tasks.invocation import Invocation
from perdure.tasks.runner import GRACE, Runner
from perdure.tasks.staging import stage_parts
from perdure.tasks.timers import Timers
from perdure.tasks.transaction import REST, TaskTransaction


class Scheduler:
    """Invariant: once what is published was looked at, each published Running task has one runner, unless closing.

    It is the line's rules: `mode` and `fit` are what settling asks.
    """

    def __init__(self, line: Line, definitions: Definitions) -> None:
        self.mode: Literal["paused", "running", "closing"] = "paused"
        self.line = line
        self.definitions = definitions
        #: Runners by task. Changed in `look` and `ran`.
        self._runners: dict[TaskId, Runner] = {}
        #: Code without any right to commit that did not stop. Shown by `inspect`.
        self.detached: dict[asyncio.Task[Any], TaskId] = {}
        #: What stopped phases still gave, for the abort handlers that run once the work below has ended.
        self.late: dict[TaskId, Outcome] = {}
        #: Tasks that a definition could not take after all, and why, until another one is installed.
        self._unfit: dict[TaskId, tuple[TaskDefinition, HoldReason, str]] = {}
        #: Everything pending was reserved since the mode is running.
        self._reserved = False
        #: Who waits for something to be so; looked at after each published change.
        self._conditions = Conditions()
        #: Asyncio tasks of this scheduler besides the runners. They run in the context that it was made in.
        self._spawned: Ordered[asyncio.Task[None]] = {}
        self._context = contextvars.copy_context()
        self.timers = Timers(line, self.spawn)
        line.rules = self  # type: ignore[assignment]
        line.observers.append(self._published)
        line.on_end.append(self._ended)

    # -- rules ------------------------------------------------------------------------------

    def fit(self, task: Task) -> tuple[HoldReason, str] | None:
        """Why no installed definition can take the task, or None when one can.

        One that failed to take it is tried again only after a `retry`, which makes the task pending.
        """
        unfit = self._unfit.get(task.id)
        if unfit is not None and isinstance(task.state, Held) and unfit[0] is self.definitions.find(task.kind):
            return unfit[1:]
        return self.definitions.fit(task)

    def stages(self, task: Task) -> bool:
        """Whether what the pending task does next only stages, for the first time, and before any effect."""
        definition, state = self.definitions.find(task.kind), task.state
        return (
            definition is not None
            and definition.version == task.version
            and isinstance(state, Pending)
            and state.checkpoint.phase in definition.staging
            and task.attempt == 0
            and state.begun is None
            and task.abort is None
        )

    async def advance(self, tx: Transaction) -> bool:
        """Stage what tasks that the commit has just reserved need not wait to stage."""
        if self.line.space.short:
            tx.candidate.reserved = []
            return False
        return await stage_parts(tx, self.definitions.find, self._context)

    # -- starting ---------------------------------------------------------------------------

    async def resume(self) -> None:
        """Start scheduling: one commit reserves what may run (K39). Does nothing when it runs already."""
        forbid_inside_commit("resume()")
        self._check()
        if self.mode == "paused":
            self.mode = "running"
            self.timers.note(self.line.memory.published.tasks.values())
        if not self._reserved:
            await self._touch()
            self._reserved = True

    async def install(self, definitions: Definitions) -> None:
        """Replace the definitions; held tasks that they fit go on (K34, K35)."""
        self.definitions = definitions
        if self.mode == "running":
            await self._touch()

    async def _touch(self) -> None:
        tip = self.line.memory.tip

        async def stage(tx: TaskTransaction) -> None:
            waiting = [task.id for task in tx.memory.tip.tasks.values() if isinstance(task.state, Pending | Held)]
            tx.candidate.dirty.update(dict.fromkeys(waiting))

        if any(isinstance(task.state, Pending | Held) for task in tip.tasks.values()):
            await self.line.space.record(lambda: self.line.commit(TaskTransaction), stage)

    async def retry(self, id: TaskId) -> None:
        """Free a held task: parked, uncertain or in recovery (H44). Raises NotFound, UsageError if it is not held."""
        async with self.line.commit(TaskTransaction) as tx:
            task = tx.task(id)
            if task is None:
                raise NotFound(f"no live task {id} in session {self.line.session!r}")
            if not isinstance(task.state, Held):
                state = type(task.state).__name__.lower()
                raise UsageError(f"task {id} is {state}, not held: there is nothing to retry")
            self._unfit.pop(id, None)
            pending = Pending(checkpoint=task.state.checkpoint, begun=task.state.begun)
            tx.put_task(evolve(task, state=pending, crashes=0))

    # -- waiting ----------------------------------------------------------------------------

    async def until(self, done: Callable[[], bool], *, about: int | None = None) -> None:
        """Wait until a condition on published state holds. Starts the scheduler (K41).

        It is looked at after each commit, or only when the task or submission `about` has changed.
        """
        forbid_inside_commit("a wait")
        await self.resume()
        self._check()
        if not done():
            await self._conditions.wait(done, about)

    async def wait_task(self, id: TaskId) -> Outcome:
        """The terminal outcome of a task. Raises NotFound."""
        await self.until(lambda: id not in self.line.memory.published.tasks, about=id)
        for body in await self.line.storage.read_tasks(self.line.session, [id]):
            outcome = decode_task(body, self.line.session).outcome
            if outcome is not None:
                return outcome
        raise NotFound(f"no task {id} in session {self.line.session!r}")

    async def wait_idle(self, conversation: ConversationId | None = None, *, background: bool = False) -> None:
        """Wait until no task of an ordinary scope is live: a conversation's, by default every ownerless one's (K41).

        With `background`, until nothing at all is to do there: background tasks have ended or rest.
        """
        await self.until(lambda: self.idle(conversation, background=background))

    def idle(self, conversation: ConversationId | None = None, *, background: bool = False) -> bool:
        """Whether a scope has no live task, as published; with `background`, none that does not rest."""
        published = self.line.memory.published
        if conversation is not None:
            return self._none_of(traverse(published, conversation, background=background))
        if background:  # also what is on its way out below an owner that has ended
            return self._none_of(published.tasks.values())
        for id in published.scopes:
            known = published.conversations.get(id)
            if known is not None and known.owner is not None:
                continue
            if not self._none_of(traverse(published, id, background=background)):
                return False
        return True

    def _none_of(self, tasks: Iterable[Task]) -> bool:
        return all(resting(self.line.memory.published, task) for task in tasks)

    def _check(self) -> None:
        self.line.check()
        if self.mode == "closing":
            raise SessionClosed(f"session {self.line.session!r} is closing: open it again")

    # -- following the line -----------------------------------------------------------------

    def _published(self, change: Change) -> None:
        for task in change.tasks.values():
            if isinstance(task.state, Running):
                self.look(task.id)
            elif not task.live:
                self.late.pop(task.id, None)
                self._unfit.pop(task.id, None)
        if self.mode == "running" and change.tasks:
            self.timers.note(change.tasks.values())
        self._conditions.look(change)

    def look(self, id: TaskId) -> None:
        """Start a runner for a task that is reserved, or signal the one that runs when the task was marked."""
        task = self.line.memory.published.tasks.get(id)
        if self.mode != "running" or task is None or not isinstance(task.state, Running):
            return
        runner = self._runners.get(id)
        if runner is None:
            runner = self._runners[id] = Runner(self, id)
            loop = asyncio.get_running_loop()
            runner.loop_task = loop.create_task(runner.run(), name=f"perdure task {id}", context=self._context.copy())
        elif task.abort is not None:
            runner.signal()

    def ran(self, runner: Runner) -> None:
        """The runner has nothing more to do with its task."""
        if self._runners.get(runner.id) is runner:
            del self._runners[runner.id]

    def _ended(self, fault: StorageError | None) -> None:
        """The line ended: nothing more may start, and what runs is told (K5, Fenced)."""
        self.mode = "closing"
        self.timers.stop()
        for runner in list(self._runners.values()):
            runner.cancel()
        self._conditions.fail(
            fault or SessionClosed("the session was closed while this waited: open it and wait again")
        )

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something of the scheduler's own beside the runners, until the session closes."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=self._context.copy())
        self._spawned[task] = None
        task.add_done_callback(lambda done: self._spawned.pop(done, None))
        return task

    # -- for runners ------------------------------------------------------------------------

    def take(self, task: Task) -> Invocation | Held:
        """The invocation of a reserved task, migrated where its code is newer; or why it is held after all."""
        assert isinstance(task.state, Running)
        definition = self.definitions.find(task.kind)
        checkpoint = task.state.checkpoint
        phase, data, input = checkpoint.phase, checkpoint.data, task.input
        unfit = self.definitions.fit(task)
        if definition is not None and unfit is None and definition.version > task.version:
            try:
                input, phase, data = definition.migrate(task.version, task.input, checkpoint)
            except Exception as error:
                unfit = ("migration", f"migrate from version {task.version} failed: {error!r}")
        if definition is not None and unfit is None and phase not in definition.phases and task.abort is None:
            unfit = ("definition", f"version {definition.version} has no phase {phase!r}")
        if definition is None or unfit is not None:
            reason, detail = unfit or ("definition", "its definition was replaced")
            if definition is not None:
                self._unfit[task.id] = (definition, reason, detail)
            return Held(checkpoint=checkpoint, reason=reason, detail=detail, begun=task.state.begun)
        return Invocation(self.line, task, definition, phase, data, input, self.late.get(task.id))

    async def record(self, body: Callable[[TaskTransaction], Awaitable[None]]) -> None:
        """Commit what `body` stages; redone when refused, and when space returns (K5). Gives up when the line ends."""
        try:
            await self.line.space.record(lambda: self.line.commit(TaskTransaction), body)
        except (StorageCorrupt, StorageFailed) as error:  # where a read met it, the line does not know yet
            self.line.stop(error)
        except (SessionClosed, StorageError):
            return

    def leave_behind(self, child: asyncio.Task[Any], id: TaskId) -> None:
        """Show code that a task started and could not stop, until it ends."""
        self.detached[child] = id
        child.add_done_callback(self._gone)

    def _gone(self, loop_task: asyncio.Task[Any]) -> None:
        self.detached.pop(loop_task, None)
        if not loop_task.cancelled():
            loop_task.exception()

    # -- closing ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Take nothing more in, stop and join what runs; write no outcome (K7). What ignores it is detached."""
        self.line.seal()
        self._ended(None)
        for runner in list(self._runners.values()):
            runner.stop()
        await self._join([runner.loop_task for runner in self._runners.values() if runner.loop_task is not None])
        spawned = list(self._spawned)
        for task in spawned:
            task.cancel()
        if spawned:
            await asyncio.wait(spawned)

    async def _join(self, waiting: list[asyncio.Task[Any]]) -> None:
        if not waiting:
            return
        grace = asyncio.get_running_loop().create_task(self.line.clock.sleep(GRACE))
        try:
            while waiting and not grace.done():
                await asyncio.wait([*waiting, grace], return_when=asyncio.FIRST_COMPLETED)
                waiting = [task for task in waiting if not task.done()]
        finally:
            grace.cancel()
        for runner in list(self._runners.values()):
            if runner.loop_task in waiting:
                runner.detach()


def resting(state: State, task: Task) -> bool:
    """Whether a task has nothing to do until it is stopped: it rests, or is what such a task waits for."""
    if task.abort is not None or not isinstance(task.state, Waiting):
        return False
    if task.kind == REST:
        return True
    on = [state.tasks.get(id) for id in task.state.on]
    return bool(on) and all(each is not None and each.kind == REST for each in on)


__all__ = ["Definitions", "Scheduler", "TaskDefinition"]
