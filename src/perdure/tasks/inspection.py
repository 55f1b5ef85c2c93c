"""`inspect()`: what is going on in a session at one point of its line (K38). Runs no task code."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.records import Held, Running, Seq, Submission, Task, Waiting
from perdure.settle.state import State
from perdure.surface.frames import QuestionInfo, TaskInfo
from perdure.tasks.transaction import QUESTION


class SubmissionInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queued or placed submission."""

    id: int
    conversation: int
    type: str
    state: str
    mode: str
    request_id: str | None = None


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Live work at commit `seq`. `detached` are tasks whose stopped code still runs without any right to commit."""

    session: str
    seq: Seq
    tasks: list[TaskInfo]
    submissions: list[SubmissionInfo]
    questions: list[QuestionInfo]
    detached: list[int] = []
    storage: str = "ok"

    @property
    def held(self) -> list[TaskInfo]:
        """Tasks that wait for someone, with their reasons."""
        return [task for task in self.tasks if task.state == "held"]


def inspect_state(session: str, seq: Seq, state: State, *, detached: list[int], storage: str = "ok") -> Inspection:
    """Describe published state."""
    tasks = [state.tasks[id] for id in sorted(state.tasks)]
    return Inspection(
        session=session,
        seq=seq,
        tasks=[task_info(task) for task in tasks],
        submissions=[_submission(state.submissions[id]) for id in sorted(state.submissions)],
        questions=[question_info(task) for task in tasks if task.kind == QUESTION],
        detached=sorted(detached),
        storage=storage,
    )


def task_info(task: Task) -> TaskInfo:
    """A live task, as readers see it."""
    state = task.state
    checkpoint = getattr(state, "checkpoint", None)
    return TaskInfo(
        id=task.id,
        kind=task.kind,
        conversation=task.conversation,
        state=type(state).__name__.lower(),
        owner=task.owner,
        phase=None if checkpoint is None else checkpoint.phase,
        attempt=task.attempt,
        begun=isinstance(state, Running) and state.begun is not None,
        background=task.background,
        aborting=task.abort is not None,
        reason=state.reason if isinstance(state, Held) else None,
        detail=state.detail if isinstance(state, Held) else None,
        on=tuple(state.on) if isinstance(state, Waiting) else (),
        crashes=task.crashes,
        label=_label(task.input),
    )


def _label(input: Any) -> str | None:
    """What a person calls the task: the name in its input, for a tool's call the tool."""
    name: Any = msgspec.convert(input, dict[str, Any]).get("name") if isinstance(input, dict) else None
    return name if isinstance(name, str) else None


def _submission(item: Submission) -> SubmissionInfo:
    return SubmissionInfo(
        id=item.id,
        conversation=item.conversation,
        type=item.type,
        state=type(item.state).__name__.lower(),
        mode=item.mode,
        request_id=item.request_id,
    )


def question_info(task: Task) -> QuestionInfo:
    """An open question, as readers see it."""
    policy = task.state.policy if isinstance(task.state, Waiting) else None
    return QuestionInfo(
        id=task.id,
        conversation=task.conversation,
        payload=task.input["payload"],
        asker=task.owner,
        deadline=getattr(policy, "deadline", None),
        call=task.input.get("call"),
    )
