"""Walks over live tasks, along owners: through tasks and the conversations that they own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perdure.records import ConversationId, Task, TaskId

if TYPE_CHECKING:
    from perdure.settle.state import State


def traverse(state: State, conversation: ConversationId, *, background: bool) -> Iterator[Task]:
    """Live tasks reachable from a conversation, owners before what they own; `background` also crosses boundaries."""
    return _walk(state, _scope(state, conversation, background=background), background=background)


def below(state: State, id: TaskId, *, background: bool) -> Iterator[Task]:
    """Live tasks that a task owns, through tasks and conversations."""
    return _walk(state, _level(state, id, background=background), background=background)


def _walk(state: State, start: Iterator[Task], *, background: bool) -> Iterator[Task]:
    """Depth first, without recursion: owners may be nested deeper than Python's stack."""
    stack = [start]
    while stack:
        task = next(stack[-1], None)
        if task is None:
            stack.pop()
        else:
            yield task
            stack.append(_level(state, task.id, background=background))


def _level(state: State, id: TaskId, *, background: bool) -> Iterator[Task]:
    for child in state.children.get(id, ()):
        yield state.tasks[child]
    for conversation in state.owned.get(id, ()):
        yield from _scope(state, conversation, background=background)


def _scope(state: State, conversation: ConversationId, *, background: bool) -> Iterator[Task]:
    for id in state.scopes.get(conversation, ()):
        task = state.tasks[id]
        if background or not task.background:
            yield task
