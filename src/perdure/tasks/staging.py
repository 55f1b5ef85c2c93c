"""Phases that only stage, as parts of the commits that make them due: what they decide costs no commit of its own.

A part that raises, or that does not move its task, is taken back. Its task stays reserved, and the phase runs once more
in a commit of its own: that tells what is wrong with it, and what was to be committed here never depends on it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from perdure.records import Running, TaskId
from perdure.session.line import enter_body
from perdure.session.steps import in_context
from perdure.session.transaction import Transaction
from perdure.tasks.definition import TaskDefinition, start
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import InvocationTransaction

#: Parts of one commit at most: they hold the line. What is due beyond them runs in commits of its own.
MOST_PARTS = 8


class Part(InvocationTransaction):
    """What a phase is given that runs as a part of a commit: all that the commit has staged, and its own task."""

    def __init__(self, whole: Transaction, invocation: Invocation) -> None:
        vars(self).update(vars(whole))
        del self.next_id  # the commit counts
        self._whole = whole
        self.conversation = invocation.conversation
        self.task_id = invocation.id
        self.invocation = invocation
        self.moved = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def mint(self) -> int:
        return self._whole.mint()


async def stage_parts(
    tx: Transaction,
    find: Callable[[str], TaskDefinition | None],
    context: contextvars.Context,
) -> bool:
    """Run the phases that the commit has just reserved tasks for, which stage. Whether one of them moved its task."""
    reserved, tx.candidate.reserved = tx.candidate.reserved, []
    moved = False
    for id in reserved:
        if tx.parts < MOST_PARTS:
            invocation = _invocation(tx, id, find)
            if invocation is not None:
                tx.parts += 1
                own = context.copy()
                own.run(enter_body, tx)
                moved = await in_context(own, _stage(tx, invocation)) or moved
    return moved


def _invocation(tx: Transaction, id: TaskId, find: Callable[[str], TaskDefinition | None]) -> Invocation | None:
    """The invocation, unless the task was marked after it was reserved."""
    task = tx.task(id)
    if task is None or not isinstance(task.state, Running) or task.abort is not None:
        return None
    definition, checkpoint = find(task.kind), task.state.checkpoint
    assert definition is not None
    return Invocation(tx.line, task, definition, checkpoint.phase, checkpoint.data, task.input, None)


async def _stage(tx: Transaction, invocation: Invocation) -> bool:
    restore = tx.save()
    part = Part(tx, invocation)
    try:
        await start(invocation.definition, invocation.phase, part, invocation.data)
        if part.unfinished is not None:
            await part.unfinished
    except Exception:
        part.moved = False
    finally:
        invocation.over = True
        part.open = False
        if not part.moved:
            restore()
    return part.moved
