"""Results for calls whose task could not write one: a round ends only when each call of it has a result."""

from __future__ import annotations

from typing import Any

from perdure.harness.gate import MOST_TOLD
from perdure.harness.output import clip
from perdure.harness.stored import LIVE, TOOL_RESULT
from perdure.harness.usage import count_call
from perdure.messages import ToolErrorCode, ToolMessage
from perdure.records import Aborted, Faulted, Outcome, TaskId, decode_task
from perdure.tasks.transaction import InvocationTransaction


async def fill_in(tx: InvocationTransaction) -> None:
    """Results for calls whose task could not write one: stopped before it began, faulted, orphaned."""
    run = tx.invocation.id
    shown: dict[str, Any] = await tx.snapshot(LIVE, run) or LIVE.initial()
    slots: dict[str, dict[str, Any]] = shown["tools"]
    if not slots:
        return
    conversation = tx.invocation.conversation
    ids = [TaskId(int(id)) for id in slots]
    ended = [task for id in ids if (task := tx.candidate.tasks.get(id)) is not None]  # by this very commit
    if len(ended) < len(ids):
        await tx.line.flushed()
        bodies = await tx.line.storage.read_tasks(tx.line.session, ids)
        ended = [*(decode_task(body, tx.line.session) for body in bodies), *ended]
    outcomes = {task.id: task.outcome for task in ended}
    for id, slot in slots.items():
        code, text = unwritten(outcomes.get(TaskId(int(id))))
        output = slot.get("output")
        text = f"{text}\nOutput until then:\n{output}" if output else text
        result = ToolMessage(call=slot["call"], name=slot["name"], error=code, text=text)
        tx.append(conversation, TOOL_RESULT, messages=(result,), data={"call": slot["call"]}, task=run)
        await count_call(tx, conversation, slot["name"], error=True)


def unwritten(outcome: Outcome | None) -> tuple[ToolErrorCode, str]:
    """What a model is told of a call whose task could not write its result."""
    match outcome:
        case Aborted(begun=False):
            return "aborted", "Aborted. It had not begun."
        case Aborted():
            return "aborted", "Aborted. It had begun: its effect may have happened."
        case Faulted(error=error):
            told = clip(f"{error.type}: {error.message}", MOST_TOLD)
            return "tool_error", f"The runtime failed around this call ({told}). Its outcome is unknown."
        case _:
            return "interrupted", "The call ended without a result. Its outcome is unknown: it may have happened."
