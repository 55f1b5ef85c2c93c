"""A commit that can make tasks, waits and questions, and the one that moves the task of an invocation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from perdure.errors import NotFound, Revoked, TaskRefused
from perdure.records import (
    Aborted,
    AllSettled,
    Begun,
    Checkpoint,
    Completed,
    Completing,
    Conversation,
    ConversationId,
    ErrorInfo,
    Failed,
    FailFast,
    First,
    Outcome,
    Outside,
    Pending,
    Running,
    Task,
    TaskId,
    TaskState,
    Terminal,
    Waiting,
    WaitPolicy,
    decode_task,
)
from perdure.session.line import Line
from perdure.session.transaction import Transaction
from perdure.settle.aborts import mark
from perdure.settle.state import evolve
from perdure.tasks.definition import TaskDefinition
from perdure.values import clean

if TYPE_CHECKING:
    from perdure.tasks.invocation import Invocation

QUESTION = "perdure.question"
TIMER = "perdure.timer"

PolicyName = Literal["all_settled", "fail_fast"]


class TaskTransaction(Transaction):
    """Adds tasks, questions and timers to what a commit can stage."""

    def create_task(
        self,
        definition: type[TaskDefinition] | TaskDefinition,
        input: Any = None,
        *,
        owner: Conversation | Task | Invocation | None = None,
        background: bool = False,
        phase: str | None = None,
        data: Any = None,
        intent: Literal["safe", "unsafe"] | None = None,
        after: Task | None = None,
    ) -> Task:
        """Stage a task, owned by this commit's conversation unless another owner is named (K45).

        `phase` and `data` start it later than its first phase; `intent` commits at once that its effect starts (K24a);
        `after` has it wait until that task has ended.
        """
        if isinstance(definition, type):
            definition = definition()
        conversation, owner_task = self._task_owner(owner)
        if background and owner_task is not None:
            raise TaskRefused(f"task {definition.kind!r}: only tasks that a conversation owns can be background (K30)")
        checkpoint = Checkpoint(phase=phase or definition.first_phase, data=clean(data))
        begun = None if intent is None else Begun(attempt=1, replay=intent)
        state: TaskState = Pending(checkpoint=checkpoint, begun=begun)
        if after is not None:
            state = Waiting(checkpoint=checkpoint, on=(after.id,), policy=AllSettled(), begun=begun)
        task = Task(
            id=TaskId(self.mint()),
            kind=definition.kind,
            version=definition.version,
            conversation=conversation,
            owner=owner_task,
            background=background,
            input=clean(input),
            at=self.now,
            state=state,
        )
        self.put_task(task)
        return task

    def ask(
        self,
        payload: Any,
        *,
        owner: Conversation | Task | Invocation | None = None,
        deadline: float | None = None,
        default: Any = None,
    ) -> Task:
        """Stage a question (K37): a task that `answer` completes from outside, or the clock at `deadline` with `default`."""
        return self._outside(QUESTION, {"payload": payload, "default": default}, deadline, owner)

    def timer(self, at: float, *, owner: Conversation | Task | Invocation | None = None) -> Task:
        """Stage a timer (K36): a task that the clock completes at `at`, in seconds since the epoch."""
        return self._outside(TIMER, None, at, owner)

    def _outside(self, kind: str, input: Any, deadline: float | None, owner: Conversation | Task | Invocation | None) -> Task:
        conversation, owner_task = self._task_owner(owner)
        task = Task(
            id=TaskId(self.mint()),
            kind=kind,
            version=1,
            conversation=conversation,
            owner=owner_task,
            input=clean(input),
            at=self.now,
            state=Waiting(checkpoint=Checkpoint(phase="open"), policy=Outside(deadline=deadline)),
        )
        self.put_task(task)
        return task

    def abort_task(self, id: TaskId, reason: str = "aborted") -> bool:
        """Mark a live task for abort; settling cascades it (K31). False if it had ended or was marked."""
        task = self.task(id)
        return task is not None and mark(self.candidate, task, reason)

    def _task_owner(self, owner: Conversation | Task | Invocation | None) -> tuple[ConversationId, TaskId | None]:
        if owner is None:
            if self.task_id is None:
                return self._conversation(None), None
            owner_id: TaskId = self.task_id
        elif isinstance(owner, Conversation):
            return owner.id, None
        else:
            owner_id = owner.id
        task = self.task(owner_id)
        if task is None:
            raise TaskRefused(f"task {owner_id} has ended: it cannot own new work (K29)")
        if task.abort is not None or isinstance(task.state, Completing):
            raise TaskRefused(f"task {owner_id} is ending: it cannot own new work (K29)")
        return task.conversation, owner_id


class InvocationTransaction(TaskTransaction):
    """A commit of a running invocation: it can also move its own task."""

    def __init__(self, line: Line, invocation: Invocation) -> None:
        super().__init__(line, invocation.conversation, invocation.id)
        self.invocation = invocation
        self.moved = False
        invocation.fence(self)

    @property
    def own(self) -> Task:
        """The invocation's task as this transaction has it."""
        task = self.task(self.invocation.id)
        assert task is not None
        return task

    def next(self, phase: Any, /, *, intent: Literal["safe", "unsafe"] | None = None, **data: Any) -> None:
        """Go on with another phase, which is given `data`. `intent` commits at once that its effect starts (K24a)."""
        begun = None if intent is None else Begun(attempt=1, replay=intent)
        state = Pending(checkpoint=Checkpoint(phase=_name_of(phase), data=clean(data)), begun=begun)
        self._move(evolve(self.own, state=state, attempt=0, first=False, crashes=0))

    async def wait(
        self,
        on: Iterable[Task | TaskId],
        *,
        then: Any,
        policy: PolicyName = "all_settled",
        first: int | None = None,
        **data: Any,
    ) -> None:
        """Go on with phase `then` when the policy is met (K28). Raises TaskRefused for a wait that could never end, NotFound."""
        ids = tuple(dict.fromkeys(TaskId(item.id) if isinstance(item, Task) else item for item in on))
        rule: WaitPolicy = First(n=first) if first is not None else FailFast() if policy == "fail_fast" else AllSettled()
        own = self.own
        for id in ids:
            await self._check_target(own, id, rule)
        checkpoint = Checkpoint(phase=_name_of(then), data=clean(data))
        self._move(evolve(own, state=Waiting(checkpoint=checkpoint, on=ids, policy=rule), attempt=0, first=False, crashes=0))

    def complete(self, result: Any = None) -> None:
        """End with a result, once the ordinary work below has ended (K29)."""
        self._end(Completed(result=clean(result)))

    def fail(self, error: BaseException | ErrorInfo | str) -> None:
        """End as failed; ordinary work below is aborted first."""
        self._end(Failed(error=error_info(error)))

    def aborted(self, result: Any = None) -> None:
        """End as aborted, from an abort handler. Says whether the effect had begun and what it gave in the grace."""
        own, late = self.own, self.invocation.late
        reason = own.abort.reason if own.abort is not None else "aborted"
        begun = isinstance(own.state, Running) and own.state.begun is not None
        if result is None and isinstance(late, Completed):
            result = late.result
        self._end(Aborted(reason=reason, begun=begun, result=clean(result)))

    def begin(self, replay: Literal["safe", "unsafe"] = "unsafe") -> None:
        """The effect of this attempt starts after this commit (K24a)."""
        own = self.own
        assert isinstance(own.state, Running)
        begun = Begun(attempt=own.attempt, replay=replay)
        self.put_task(evolve(own, state=Running(checkpoint=own.state.checkpoint, begun=begun)))

    def progress(self) -> None:
        """The begun attempt made progress: a crash from here on does not count against it (H44)."""
        own = self.own
        if isinstance(own.state, Running) and own.state.begun is not None and not own.state.begun.progress:
            begun = Begun(attempt=own.state.begun.attempt, replay=own.state.begun.replay, progress=True)
            self.put_task(evolve(own, state=Running(checkpoint=own.state.checkpoint, begun=begun), crashes=0))

    def memo(self, name: str, value: Any) -> Any:
        """A small value of this task: the first writer wins, everyone gets that value (K36)."""
        own = self.own
        if name not in own.memos:
            self.put_task(evolve(own, memos={**own.memos, name: clean(value)}))
        return self.own.memos[name]

    def _end(self, outcome: Outcome) -> None:
        self._move(evolve(self.own, state=Completing(outcome=outcome)))

    def _move(self, task: Task) -> None:
        invocation = self.invocation
        if self.own.abort is not None and not invocation.aborting:
            if isinstance(task.state, Completing):
                invocation.late = task.state.outcome
            raise Revoked(f"task {task.id} was told to stop: its abort handler decides the outcome")
        self.moved = True
        self.put_task(task)

    async def _check_target(self, own: Task, id: TaskId, rule: WaitPolicy) -> None:
        if id == own.id:
            raise TaskRefused(f"task {id} cannot wait for itself")
        target = self.candidate.task(id)
        if target is None:
            target = await self._ended(id)
            self.candidate.outcomes[id] = _outcome_of(target)
        elif target.outcome is None and self._is_ancestor(id, own):
            raise TaskRefused(f"task {own.id} cannot wait for task {id}, which owns it")
        if not isinstance(rule, AllSettled) and target.owner != own.id:
            raise TaskRefused(f"task {own.id} waits with a policy that stops tasks: task {id} is not its own child")

    async def _ended(self, id: TaskId) -> Task:
        await self.line.flushed()
        for body in await self.line.storage.read_tasks(self.line.session, [id]):
            return decode_task(body)
        raise NotFound(f"no task {id} in session {self.line.session!r}")

    def _is_ancestor(self, id: TaskId, task: Task) -> bool:
        at: Task | None = task
        while at is not None:
            above = self.candidate.owner(at)
            if above is None:
                return False
            if above == id:
                return True
            at = self.candidate.task(above)
        return False


def _outcome_of(task: Task) -> Outcome:
    assert isinstance(task.state, Terminal)
    return task.state.outcome


def _name_of(phase: Any) -> str:
    return phase if isinstance(phase, str) else phase.__name__


def error_info(error: BaseException | ErrorInfo | str) -> ErrorInfo:
    """An error as data: class and message, never a stack."""
    if isinstance(error, ErrorInfo):
        return error
    if isinstance(error, str):
        return ErrorInfo(type="Error", message=clean(error))
    return ErrorInfo(type=type(error).__name__, message=clean(str(error)))


__all__ = ["QUESTION", "TIMER", "InvocationTransaction", "TaskTransaction", "error_info"]
