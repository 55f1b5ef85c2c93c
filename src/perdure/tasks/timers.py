"""Deadlines (K36): timers and questions that the clock completes, judged by the injected clock."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable

from perdure.errors import SessionClosed, StorageError, StorageRejected
from perdure.records import Completed, Task, TaskId, Terminal
from perdure.session.line import RETRY_EVERY, Line
from perdure.settle.state import deadline_of, evolve
from perdure.tasks.transaction import QUESTION, TaskTransaction


class Timers:
    """Completes tasks at their deadline. Invariant while running: the heap holds every published deadline (and maybe past ones)."""

    def __init__(self, line: Line, running: Callable[[], bool]) -> None:
        self._line = line
        self._running = running
        self._heap: list[tuple[float, TaskId]] = []
        self._sleeper: asyncio.Task[None] | None = None
        self._until = 0.0

    def start(self, tasks: Iterable[Task]) -> None:
        self.note(tasks)

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
        if self._heap and (self._sleeper is None or self._heap[0][0] < self._until):
            self.stop()
            self._until = self._heap[0][0]
            self._sleeper = asyncio.get_running_loop().create_task(self._sleep(), name="perdure timers")

    async def _sleep(self) -> None:
        clock = self._line.clock
        while self._heap:
            self._until = self._heap[0][0]
            wait = self._until - clock.now()
            if wait > 0:
                await clock.sleep(wait)
                continue
            try:
                await self._complete_due(clock.now())
            except StorageRejected:
                await clock.sleep(RETRY_EVERY)
            except (SessionClosed, StorageError):
                return
        self._sleeper = None

    async def _complete_due(self, now: float) -> None:
        due = [id for deadline, id in self._heap if deadline <= now]
        live = self._line.memory.tip.tasks
        if any(id in live for id in due):
            async with self._line.commit(TaskTransaction) as tx:
                for id in due:
                    task = tx.task(id)
                    if task is not None:
                        _complete(tx, task)
        self._heap = [item for item in self._heap if item[0] > now]
        heapq.heapify(self._heap)


def _complete(tx: TaskTransaction, task: Task) -> None:
    deadline = deadline_of(task)
    if deadline is None:
        return
    result = None
    if task.kind == QUESTION:
        result = {"answer": task.input.get("default"), "by": "deadline"}
    tx.put_task(evolve(task, state=Terminal(outcome=Completed(result=result)), ended=tx.now))
