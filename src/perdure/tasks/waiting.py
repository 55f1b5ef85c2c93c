"""Staging a wait: what it may name, by which policy, and what it still has to read (K28)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Literal

from perdure.errors import TaskRefused
from perdure.records import AllSettled, FailFast, First, Task, TaskId, Waiting, WaitPolicy
from perdure.settle.owners import ordinary_below
from perdure.settle.state import Candidate

PolicyName = Literal["all_settled", "fail_fast"]


class Staged(Awaitable[None]):
    """A wait that is staged, or that is staged by whoever awaits it, at the latest by its commit.

    Only what ended in earlier commits has to be read first.
    """

    __slots__ = ("_left",)

    def __init__(self, left: Callable[[], Awaitable[None]] | None = None) -> None:
        self._left = left

    def __await__(self) -> Generator[Any, Any, None]:
        left, self._left = self._left, None
        if left is not None:
            yield from left().__await__()


def policy_of(name: PolicyName, first: int | None, count: int) -> WaitPolicy:
    """Raises TaskRefused for what is none."""
    if first is not None:
        if name != "all_settled" or not 1 <= first <= count:
            raise TaskRefused(f"first={first!r} of {count} tasks with policy {name!r}: give a number from 1 to {count}")
        return First(n=first)
    if name not in ("all_settled", "fail_fast"):
        raise TaskRefused(f"no wait policy {name!r}: 'all_settled', 'fail_fast', or first=n")
    return FailFast() if name == "fail_fast" else AllSettled()


def check_target(candidate: Candidate, own: TaskId, target: Task, *, stops: bool) -> None:
    """Raise TaskRefused where the wait could never end, or may stop what is not the waiter's."""
    if target.outcome is not None:
        candidate.outcomes[target.id] = target.outcome
    if target.id == own or _reaches(candidate, target.id, own):
        why = "itself" if target.id == own else f"task {target.id}, which cannot end before it"
        raise TaskRefused(f"task {own} cannot wait for {why}")
    if stops and candidate.owner(target) != own:
        raise TaskRefused(f"task {own} waits with a policy that stops tasks: task {target.id} is not its own child")


def stops(state: Waiting) -> bool:
    """Whether the wait can stop what it names: by its policy, or at its deadline."""
    return state.deadline is not None or not isinstance(state.policy, AllSettled)


def _reaches(candidate: Candidate, start: TaskId, goal: TaskId) -> bool:
    """Whether `start` cannot end before `goal` does: it waits for it or owns it, through others or directly."""
    seen: dict[TaskId, None] = {start: None}
    todo = [start]
    while todo:
        task = candidate.task(todo.pop())
        if task is None or not task.live:
            continue
        needs = [child.id for child in ordinary_below(candidate, task.id)]
        if isinstance(task.state, Waiting):
            needs.extend(task.state.on)
        for id in needs:
            if id == goal:
                return True
            if id not in seen:
                seen[id] = None
                todo.append(id)
    return False
