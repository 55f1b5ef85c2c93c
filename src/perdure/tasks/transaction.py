"""A commit that can make tasks, waits and questions, and the one that moves the task of an invocation."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from perdure.errors import NotFound, Revoked, TaskRefused, UsageError
from perdure.records import (
    Aborted,
    AllSettled,
    Begun,
    Checkpoint,
    Completed,
    Completing,
    ConversationId,
    ErrorInfo,
    Failed,
    Outcome,
    Outside,
    Pending,
    Running,
    Task,
    TaskId,
    TaskState,
    Waiting,
    decode_task,
)
from perdure.session.change import Flight
from perdure.session.line import Line
from perdure.session.transaction import Transaction
from perdure.settle.aborts import mark
from perdure.settle.state import evolve
from perdure.tasks.definition import TaskDefinition
from perdure.tasks.waiting import PolicyName, Staged, check_target, policy_of, stops
from perdure.values import clean, clean_text

if TYPE_CHECKING:
    from perdure.tasks.invocation import Invocation

QUESTION = "perdure.question"
TIMER = "perdure.timer"
#: What a task waits for that rests: nobody ends it.
REST = "perdure.rest"


class ConversationLike(Protocol):
    """A conversation's record, or its handle."""

    @property
    def id(self) -> ConversationId: ...


#: What can own a task.
Owner: TypeAlias = "ConversationLike | Task | Invocation"


class TaskTransaction(Transaction):
    """Adds tasks, questions and timers to what a commit can stage."""

    def create_task(
        self,
        definition: type[TaskDefinition] | TaskDefinition,
        input: Any = None,
        *,
        owner: Owner | None = None,
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
        conversation, owner_task = self._task_owner(owner)
        if background and owner_task is not None:
            raise TaskRefused(f"task {definition.kind!r}: only tasks that a conversation owns can be background (K30)")
        first = definition.first_phase if phase is None else _name_of(phase, definition)
        checkpoint = Checkpoint(phase=first, data=clean(data))
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
        owner: Owner | None = None,
        deadline: float | None = None,
        default: Any = None,
        call: Any = None,
    ) -> Task:
        """Stage a question (K37): a task that `answer` completes, or the clock at `deadline` with `default`.

        `call` is the tool call that it is about, where it is an approval.
        """
        about = {} if call is None else {"call": call}
        return self._outside(QUESTION, {"payload": payload, "default": default, **about}, deadline, owner)

    def timer(self, at: float, *, owner: Owner | None = None) -> Task:
        """Stage a timer (K36): a task that the clock completes at `at`, in seconds since the epoch."""
        return self._outside(TIMER, None, at, owner)

    def _outside(self, kind: str, input: Any, deadline: float | None, owner: Owner | None) -> Task:
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

    async def ended(self, id: TaskId) -> Task:
        """A task as of the tip, also one that ended long ago. Raises NotFound."""
        task = self.candidate.task(id)
        if task is not None:
            return task
        await self.line.flushed()
        for body in await self.line.storage.read_tasks(self.line.session, [id]):
            return decode_task(body, self.line.session)
        raise NotFound(f"no task {id} in session {self.line.session!r}")

    async def outcomes(self, tasks: Iterable[Task | TaskId | int]) -> list[Outcome]:
        """Outcomes of ended tasks as of the tip, in the order asked for. Raises NotFound for one that has not ended."""
        found: list[Outcome] = []
        for item in tasks:
            task = await self.ended(TaskId(item.id if isinstance(item, Task) else item))
            if task.outcome is None:
                raise NotFound(f"task {task.id} has no outcome: wait for it first")
            found.append(task.outcome)
        return found

    def _task_owner(self, owner: Owner | None) -> tuple[ConversationId, TaskId | None]:
        if owner is None and self.task_id is not None:
            return self.check_owner(self.task_id).conversation, self.task_id
        if owner is not None and type(owner.id) is not int:
            kind = type(owner).__name__
            raise UsageError(f"a {kind} (id {owner.id!r}) owns no tasks: name a task, an invocation or a conversation")
        if owner is None or not self._is_task(owner):
            conversation = self._conversation(None) if owner is None else ConversationId(owner.id)
            known = self.candidate.conversation(conversation)
            if known is not None and known.owner is not None:
                self.check_owner(known.owner)
            return conversation, None
        id = TaskId(owner.id)
        return self.check_owner(id).conversation, id

    def _is_task(self, owner: Owner) -> bool:
        return isinstance(owner, Task) or self.candidate.task(TaskId(owner.id)) is not None

    def check_owner(self, id: TaskId) -> Task:
        """The task that is to own new work. Raises TaskRefused where it is not live, or is ending (K29)."""
        task = super().check_owner(id)
        if task.abort is not None or isinstance(task.state, Completing):
            raise TaskRefused(f"task {id} is ending: it cannot own new work (K29)")
        if isinstance(task.state, Waiting) and isinstance(task.state.policy, Outside):
            raise TaskRefused(f"task {id} is completed from outside, it has no code: it cannot own work")
        return task


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
        task = self.candidate.task(self.invocation.id)
        assert task is not None
        return task

    def admissible(self) -> None:
        if self.invocation.revoked:
            raise Revoked(f"the invocation of task {self.invocation.id} may not commit any more; nothing was written")

    def admitted(self, flight: Flight) -> None:
        if self.moved:
            self.invocation.moving = flight

    def next(self, phase: Any, /, *, intent: Literal["safe", "unsafe"] | None = None, **data: Any) -> None:
        """Go on with another phase, which is given `data`. `intent` commits at once that its effect starts (K24a)."""
        begun = None if intent is None else Begun(attempt=1, replay=intent)
        self._go_on(Pending(checkpoint=self._checkpoint(phase, data), begun=begun))

    def wait(
        self,
        on: Iterable[Task | TaskId | int],
        *,
        then: Any,
        policy: PolicyName = "all_settled",
        first: int | None = None,
        deadline: float | None = None,
        **data: Any,
    ) -> Awaitable[None]:
        """Go on with phase `then` when the policy is met (K28); at `deadline` (seconds since the epoch) the clock stops
        what has not ended, and it goes on when that has.

        Raises NotFound, and TaskRefused where it cannot end or would stop what is not its own; for tasks that ended in
        earlier commits it does so when it is awaited, or else when the commit ends.
        """
        ids = tuple(dict.fromkeys(TaskId(item.id if isinstance(item, Task) else item) for item in on))
        rule = policy_of(policy, first, len(ids))
        state = Waiting(checkpoint=self._checkpoint(then, data), on=ids, policy=rule, deadline=deadline)
        unknown: list[TaskId] = []
        for id in ids:
            target = self.candidate.task(id)
            if target is None:
                unknown.append(id)
            else:
                check_target(self.candidate, self.invocation.id, target, stops=stops(state))
        if not unknown:
            self._go_on(state)
            return Staged()
        self.unfinished = Staged(partial(self._wait_for, state, unknown))
        return self.unfinished

    async def _wait_for(self, state: Waiting, unknown: list[TaskId]) -> None:
        self.unfinished = None
        for id in unknown:
            check_target(self.candidate, self.invocation.id, await self.ended(id), stops=stops(state))
        self._go_on(state)

    def sleep(self, seconds: float, *, then: Any, **data: Any) -> None:
        """Go on with phase `then` after so many seconds, also across restarts: waits for a timer of its own (K36)."""
        if not seconds >= 0:
            raise UsageError(f"sleep({seconds!r}): a number of seconds from 0 up")
        self.wait([self.timer(self.now + seconds, owner=self.invocation)], then=then, **data)

    def rest(self, *, then: Any, **data: Any) -> None:
        """Stay, with nothing to do, until the task is stopped: it goes on owning what it owns.

        Waits that ask for background work do not count a task that rests (K41).
        """
        self.wait([self._outside(REST, None, None, self.invocation)], then=then, **data)

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
        """The effect of this attempt starts after this commit (K24a). Raises Revoked if the task was told to stop."""
        own = self.own
        assert isinstance(own.state, Running)
        if own.abort is not None and not self.invocation.aborting:
            raise Revoked(f"task {own.id} was told to stop: no effect starts any more")
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

    def _checkpoint(self, phase: Any, data: dict[str, Any]) -> Checkpoint:
        return Checkpoint(phase=_name_of(phase, self.invocation.definition), data=clean(data))

    def _go_on(self, state: Pending | Waiting) -> None:
        own = self.own
        if own.abort is not None and self.invocation.aborting:
            raise TaskRefused(f"task {own.id} was told to stop: its abort handler decides an outcome, nothing else")
        self._move(evolve(own, state=state, attempt=0, first=False, crashes=0))

    def _end(self, outcome: Outcome) -> None:
        self._move(evolve(self.own, state=Completing(outcome=outcome)))

    def _move(self, task: Task) -> None:
        invocation = self.invocation
        if self.own.abort is not None and not invocation.aborting:
            if isinstance(task.state, Completing):
                invocation.late = task.state.outcome
            raise Revoked(f"task {task.id} was told to stop: its abort handler decides the outcome")
        if self.moved:
            raise UsageError(f"this commit has moved task {task.id} already: one of next, wait, complete, fail")
        self.moved = True
        if task.version != invocation.definition.version:  # what it goes on with is this code's (K35)
            task = evolve(task, version=invocation.definition.version, input=invocation.input)
        self.put_task(task)


def _name_of(phase: Any, definition: type[TaskDefinition] | TaskDefinition) -> str:
    name = phase if isinstance(phase, str) else getattr(phase, "__name__", repr(phase))
    if name not in definition.phases:
        known = ", ".join(definition.phases)
        raise UsageError(f"task kind {definition.kind!r} has no phase {name!r}; it has {known}")
    return name


def error_info(error: BaseException | ErrorInfo | str) -> ErrorInfo:
    """An error as data: class and message, never a stack."""
    if isinstance(error, ErrorInfo):
        return error
    if isinstance(error, str):
        return ErrorInfo(type="Error", message=clean_text(error))
    return ErrorInfo(type=type(error).__name__, message=clean_text(str(error)))


__all__ = ["QUESTION", "REST", "TIMER", "InvocationTransaction", "TaskTransaction", "error_info"]
