"""Deadlines (K36): timers and questions that the clock completes, judged by the injected clock."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from perdure.errors import PerdureError, StorageRejected
from perdure.records import Completed, Outside, Task, TaskId, Terminal, Waiting
from perdure.session.line import RETRY_EVERY, Line
from perdure.settle.state import evolve
from perdure.tasks.transaction import QUESTION, TaskTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

#: The longest sleep, in seconds: a wall clock that was set forward, or a machine that slept, is noticed within it.
LOOK_EVERY = 60.0
#: Why a task was stopped that a wait with a deadline named.
DEADLINE = "the deadline of its owner's wait came"
#: Deadlines of tasks that have ended are dropped when there are so many of them.
STALE = 256


class Timers:
    """Completes tasks at their deadline. Invariant while running: the heap holds every published deadline."""

    def __init__(self, line: Line, spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]) -> None:
        self._line = line
        self._spawn = spawn
        #: (deadline, task); also of tasks that have ended since.
        self._heap: list[tuple[float, TaskId]] = []
        self._sleeper: asyncio.Task[None] | None = None
        #: When the sleeper looks next.
        self._until = 0.0

    def stop(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None

    def note(self, tasks: Iterable[Task]) -> None:
        """Learn the deadlines of published tasks."""
        for task in tasks:
            deadline = deadline_of(task)
            if deadline is not None:
                heapq.heappush(self._heap, (deadline, task.id))
        if not self._heap:
            return
        live = self._line.memory.published.tasks
        if len(self._heap) > STALE + 2 * len(live):
            self._keep(live)
        if self._heap and (self._sleeper is None or self._sleeper.done() or self._heap[0][0] < self._until):
            self.stop()
            self._until = self._heap[0][0]
            self._sleeper = self._spawn(self._sleep(), "perdure timers")

    def _keep(self, live: Mapping[TaskId, Task]) -> None:
        self._heap = [(deadline, id) for deadline, id in dict.fromkeys(self._heap) if id in live]
        heapq.heapify(self._heap)

    async def _sleep(self) -> None:
        clock = self._line.clock
        while self._heap:
            self._until = self._heap[0][0]
            wait = self._until - clock.now()
            if wait > 0:
                await clock.sleep(min(wait, LOOK_EVERY))
                continue
            try:
                await self._complete_due(clock.now())
            except StorageRejected:
                await clock.sleep(RETRY_EVERY)
            except PerdureError:  # the line has ended, and says so to everyone
                return

    async def _complete_due(self, now: float) -> None:
        due = [(deadline, id) for deadline, id in self._heap if deadline <= now]
        live = self._line.memory.tip.tasks
        if any(id in live for _, id in due):
            async with self._line.commit(TaskTransaction) as tx:
                for _, id in due:
                    task = tx.task(id)
                    if task is not None:
                        _complete(tx, task)
        done = dict.fromkeys(due)
        self._heap = [item for item in self._heap if item not in done]
        heapq.heapify(self._heap)


def _complete(tx: TaskTransaction, task: Task) -> None:
    """End a task whose deadline is there, or what it waits for: it may have another one than when it was noted."""
    deadline = deadline_of(task)
    if deadline is None or deadline > tx.now:
        return
    assert isinstance(task.state, Waiting)
    if not isinstance(task.state.policy, Outside):
        for id in task.state.on:
            tx.abort_task(id, DEADLINE)
        return
    result = None
    if task.kind == QUESTION:
        result = {"answer": task.input.get("default"), "by": "deadline"}
    tx.put_task(evolve(task, state=Terminal(outcome=Completed(result=result)), ended=tx.now))


def deadline_of(task: Task) -> float | None:
    """When the clock completes this task (a timer, a question with a deadline), or stops what it waits for."""
    state = task.state
    if not isinstance(state, Waiting):
        return None
    return state.policy.deadline if isinstance(state.policy, Outside) else state.deadline
