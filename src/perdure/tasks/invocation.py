"""An invocation: one run of a task's code, and what it may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from perdure.errors import HandleExpired, NotFound, Revoked, StorageError
from perdure.records import Begun, Outcome, Running, Task, TaskId, decode_task
from perdure.session.change import Flight
from perdure.session.line import Commit, Line
from perdure.session.transaction import Transaction
from perdure.tasks.definition import start
from perdure.tasks.transaction import InvocationTransaction

if TYPE_CHECKING:
    from perdure.tasks.definition import TaskDefinition


class Invocation:
    """Lent to a handler while it runs. It dies with the commit that moves its task, the handler, or the grace."""

    __slots__ = (
        "_line",
        "_task",
        "aborting",
        "attempt",
        "begun",
        "conversation",
        "data",
        "definition",
        "id",
        "input",
        "late",
        "moving",
        "over",
        "phase",
        "revoked",
        "stopping",
    )

    def __init__(
        self,
        line: Line,
        task: Task,
        definition: TaskDefinition,
        phase: str,
        data: Any,
        input: Any,
        late: Outcome | None,
    ) -> None:
        assert isinstance(task.state, Running)
        self._line = line
        self._task = task
        self.definition = definition
        self.id = task.id
        self.conversation = task.conversation
        self.input = input
        self.attempt = task.attempt
        self.phase = phase
        self.data = data
        #: What was known of its effect when it started.
        self.begun: Begun | None = task.state.begun
        #: Runs the abort handler.
        self.aborting = task.abort is not None
        #: Was told to stop while it ran.
        self.stopping = False
        #: Lost its right to commit.
        self.revoked = False
        #: The handler has returned.
        self.over = False
        #: The commit that moves its task, once it was admitted.
        self.moving: Flight | None = None
        #: The outcome that a stopped phase still produced within the grace, for the abort handler.
        self.late = late

    @property
    def uncertain(self) -> bool:
        """An earlier attempt began an unsafe effect, and nobody knows its outcome (K27)."""
        return self.begun is not None and self.begun.replay == "unsafe" and self.begun.attempt != self.attempt

    @property
    def idempotency_key(self) -> str:
        """The same over all attempts of the task: for services that can tell a repetition."""
        return f"{self._line.session}/{self.id}"

    @property
    def line(self) -> Line:
        return self._line

    @property
    def spent(self) -> bool:
        """Moved its task: nothing more to do. A move that storage refused moved nothing."""
        return self.moving is not None and self.moving.error is None

    def holds(self, task: Task) -> bool:
        """Whether the task is reserved for this very invocation. Each move makes a checkpoint object of its own."""
        state, taken = task.state, self._task.state
        return (
            isinstance(state, Running)
            and isinstance(taken, Running)
            and state.checkpoint is taken.checkpoint
            and task.attempt == self.attempt
        )

    def fence(self, tx: Transaction) -> None:
        """Refuse a commit of an invocation that may not commit any more."""
        if self.spent:
            raise HandleExpired(f"the invocation of task {self.id} has moved its task on: this handle is dead")
        if self.over:
            raise HandleExpired(f"the handler of task {self.id} has returned: its invocation is dead")
        task = tx.task(self.id)
        if self.revoked or task is None or not self.holds(task):
            raise Revoked(f"the invocation of task {self.id} may not commit any more; nothing was written")

    async def landed(self) -> None:
        """Wait until it is known whether the move was kept."""
        if self.moving is not None:
            try:
                await self.moving.wait()
            except StorageError:
                return

    def commit(self) -> Commit[InvocationTransaction]:
        """`async with invocation.commit() as tx`: may move the task with `next`, `wait`, `complete`, `fail`."""
        return self._line.commit(self._transaction)

    def _transaction(self, line: Line) -> InvocationTransaction:
        return InvocationTransaction(line, self)

    async def record(self, body: Callable[[InvocationTransaction], Awaitable[None]]) -> None:
        """Commit what `body` stages, redone from the new tip when it is refused, and first when space returns (K5, K8).

        For outcomes that must not get lost: `body` may run more than once and must only stage.
        """
        await self._line.space.record(self.commit, body)

    async def begin(self, replay: Literal["safe", "unsafe"] | None = None) -> None:
        """Commit that the effect of this attempt starts now (K24a). Durable on return."""
        async with self.commit() as tx:
            tx.begin(replay or self.definition.replay)

    async def outcomes(self, tasks: Iterable[Task | TaskId | int]) -> list[Outcome]:
        """Outcomes of ended tasks, in the order asked for. Raises NotFound for one that has not ended."""
        ids = [TaskId(task.id if isinstance(task, Task) else task) for task in tasks]
        found: dict[TaskId, Outcome] = {}
        for body in await self._line.storage.read_tasks(self._line.session, ids):
            task = decode_task(body, self._line.session)
            if task.outcome is not None:
                found[task.id] = task.outcome
        missing = [id for id in ids if id not in found]
        if missing:
            raise NotFound(f"tasks {missing} have no outcome")
        return [found[id] for id in ids]

    def call(self) -> Awaitable[None]:
        """Start the handler that this invocation is for."""
        if self.aborting:
            return self.definition.abort(self)
        if self.phase in self.definition.staging:
            return self._stage()
        return start(self.definition, self.phase, self, self.data)

    async def _stage(self) -> None:
        async with self.commit() as tx:
            await start(self.definition, self.phase, tx, self.data)
