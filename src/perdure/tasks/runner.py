"""Running the code of a durable task: invocation after invocation, until it waits, ends or is taken away (K26, K31)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.errors import SessionClosed, StorageError, StorageRejected
from perdure.records import Completing, Faulted, Held, Pending, Running, Task, TaskId
from perdure.settle.owners import drained
from perdure.settle.state import Candidate, evolve
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import TaskTransaction, error_info

if TYPE_CHECKING:
    from perdure.tasks.scheduler import Scheduler

#: How long a stopped invocation may take before it loses its right to commit, in seconds (K31).
GRACE = 5.0


class Runner:
    """One asyncio task that runs the invocations of one durable task, one after another."""

    __slots__ = ("_line", "_scheduler", "id", "inside", "invocation", "loop_task")

    def __init__(self, scheduler: Scheduler, id: TaskId) -> None:
        self._scheduler = scheduler
        self._line = scheduler.line
        self.id = id
        self.loop_task: asyncio.Task[Any] | None = None
        self.invocation: Invocation | None = None
        #: The loop task is inside the user's handler, so cancelling it signals the handler and nothing else.
        self.inside = False

    async def run(self) -> None:
        try:
            while (task := self._published()) is not None:
                await self._step(task)
                if self.invocation is not None and self.invocation.revoked:
                    return
        except (SessionClosed, StorageError):
            if not self._line.closing and self._line.fault is None:
                raise
        finally:
            self._scheduler.ran(self)

    def _published(self) -> Task | None:
        """The task, if it is reserved for us."""
        task = self._line.memory.published.tasks.get(self.id)
        if task is None or not isinstance(task.state, Running) or self._scheduler.mode != "running":
            return None
        return task

    def _step(self, task: Task) -> Awaitable[None]:
        """One step towards the task's next state: usually, to run its handler.

        Not a coroutine itself: thousands of runners may wait in their step at once.
        """
        assert isinstance(task.state, Running)
        memory, space = self._line.memory, self._line.space
        if memory.tip.tasks.get(self.id) is not task:  # what is published was overtaken: never run it twice
            return self._landed()
        if space.short:
            return space.wait_to_start()
        if task.abort is not None and not drained(Candidate(memory.published), self.id):
            # marked before the phase it was reserved for started: the work below comes first (K31)
            return self._leave(task, Pending(checkpoint=task.state.checkpoint, begun=task.state.begun))
        invocation = self._scheduler.take(task)
        return self._leave(task, invocation) if isinstance(invocation, Held) else self._invoke(invocation)

    async def _landed(self) -> None:
        """Wait until the tip is published, however that ends."""
        try:
            await self._line.flushed()
        except StorageRejected:
            return

    # -- one invocation ---------------------------------------------------------------------

    async def _invoke(self, invocation: Invocation) -> None:
        """Run one handler, and commit what becomes of the task where the handler did not."""
        fault: BaseException | None = None
        self.invocation = invocation
        self.inside = True
        try:
            await invocation.call()
        except asyncio.CancelledError as error:
            if invocation.revoked or (not invocation.stopping and _cancelled()):
                raise
            fault = error  # it was told to stop; or it cancelled itself, which is a fault like any other
        except Exception as error:
            fault = error
        finally:
            self.inside = False
            invocation.over = True
        if invocation.revoked:
            return
        await _absorb()
        await invocation.landed()
        if invocation.late is not None and not invocation.aborting and not invocation.spent:
            self._scheduler.late[self.id] = invocation.late
        refused = None if invocation.moving is None else invocation.moving.error
        fault = refused or fault
        if invocation.spent and isinstance(fault, Exception):
            self._tell("perdure.task.late_error", invocation, fault)
        if not invocation.spent and self._scheduler.mode == "running" and self._line.fault is None:
            await self._conclude(invocation, fault)

    async def _conclude(self, invocation: Invocation, fault: BaseException | None) -> None:
        """The handler ended without moving its task."""
        task = self._line.memory.tip.tasks.get(self.id)
        if task is None or not invocation.holds(task):
            return
        assert isinstance(task.state, Running)
        state: Pending | Completing
        if (task.abort is not None and not invocation.aborting) or isinstance(fault, StorageRejected):
            state = Pending(checkpoint=task.state.checkpoint, begun=task.state.begun)
        elif fault is not None:
            state = Completing(outcome=Faulted(error=error_info(fault)))
        else:
            name = "abort" if invocation.aborting else invocation.phase
            idle = f"phase {name!r} of task kind {task.kind!r} returned without committing"
            state = Completing(outcome=Faulted(error=error_info(f"{idle} a next phase, a wait or an outcome")))
        if isinstance(state, Completing):
            self._tell("perdure.task.faulted", invocation, fault)
        await self._leave(task, state)

    def _tell(self, event: str, invocation: Invocation, fault: BaseException | None) -> None:
        error = "idle" if fault is None else type(fault).__name__
        metadata = {"task": self.id, "kind": invocation.definition.kind, "error": error}
        self._line.telemetry.emit(event, metadata=metadata)

    async def _leave(self, seen: Task, state: Pending | Held | Completing) -> None:
        """Commit what the runtime itself decided for the task as it was seen, redone until the line takes it."""

        async def stage(tx: TaskTransaction) -> None:
            task = tx.task(self.id)
            if task is not None and same_attempt(task, seen):
                tx.put_task(evolve(task, state=state))

        await self._scheduler.record(stage)

    # -- stopping ---------------------------------------------------------------------------

    def signal(self) -> None:
        """The task was marked: stop the handler that runs, unless it is the abort handler already."""
        invocation = self.invocation
        if not self.inside or invocation is None or invocation.aborting or invocation.stopping:
            return
        self.cancel()
        self._scheduler.spawn(self._after_grace(invocation), f"perdure grace {self.id}")

    def cancel(self) -> None:
        """Cancel the handler."""
        if self.inside and self.invocation is not None and self.loop_task is not None:
            self.invocation.stopping = True
            self.loop_task.cancel()

    def stop(self) -> None:
        """The session closes: cancel the handler, or what the runner does between two of them."""
        self.cancel()
        if not self.inside and self.loop_task is not None:
            self.loop_task.cancel()

    async def _after_grace(self, invocation: Invocation) -> None:
        """Work that ignores the signal loses its right to commit, and the abort handler runs without it (K31)."""
        await self._line.clock.sleep(GRACE)
        if not self.inside or self.invocation is not invocation:
            return
        self.detach()
        task = self._line.memory.tip.tasks.get(self.id)
        if task is not None and invocation.holds(task):
            assert isinstance(task.state, Running)
            await self._leave(task, Pending(checkpoint=task.state.checkpoint, begun=task.state.begun))
        self._scheduler.look(self.id)

    def detach(self) -> None:
        """Take the right to commit away from code that does not stop, and show it until it does."""
        if self.invocation is not None:
            self.invocation.revoked = True
        assert self.loop_task is not None
        self._scheduler.leave_behind(self.loop_task, self.id)
        self._scheduler.ran(self)


def same_attempt(task: Task, seen: Task) -> bool:
    """Whether the task is still reserved as it was when it was seen. Checkpoints are compared by identity:
    each reservation keeps the one it was made for, each move makes a new one.
    """
    state, before = task.state, seen.state
    return (
        isinstance(state, Running)
        and isinstance(before, Running)
        and state.checkpoint is before.checkpoint
        and task.attempt == seen.attempt
    )


def _cancelled() -> bool:
    """Whether somebody asked for the current task to be cancelled."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


async def _absorb() -> None:
    """Take in the cancellations meant for a handler, delivered or not: what follows is not to be cancelled."""
    current = asyncio.current_task()
    if current is None or not current.cancelling():
        return
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while current.cancelling():
        current.uncancel()
