"""The intents of the calls of an answer, staged in the commit of that answer (H14, H18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.harness.gate import Passed, Refused
from perdure.harness.installed import Installed
from perdure.harness.loadout import pinned, uses_of
from perdure.harness.registry import Tool
from perdure.harness.stored import TOOL_RESULT
from perdure.harness.usage import UNKNOWN_TOOL, count_call
from perdure.messages import ToolCall, ToolMessage, call_key
from perdure.records import EntryId, Task
from perdure.tasks.transaction import InvocationTransaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


async def start_calls(
    harness: Harness,
    tx: InvocationTransaction,
    entry: EntryId,
    calls: list[ToolCall],
    verdicts: list[Passed | Refused],
    installed: Installed,
    isolation: str,
    pin: dict[str, Any],
    live: Any,
) -> list[Task]:
    """The intents of the calls that passed the gate, and bounded error results for the others (H14, H18)."""
    conversation = tx.invocation.conversation
    tasks: list[Task] = []
    elder: Task | None = None
    uses = uses_of(pin)
    gated = bool(installed.loadout(uses).hooks("before_tool"))
    for index, (call, verdict) in enumerate(zip(calls, verdicts, strict=True)):
        key = call_key(entry, index)
        if isinstance(verdict, Refused):
            result = ToolMessage(call=key, name=call.name, text=verdict.text, error=verdict.code)
            tx.append(conversation, TOOL_RESULT, messages=(result,), data={"call": key}, task=tx.invocation.id)
            counted = call.name if call.name in installed.tools else UNKNOWN_TOOL
            await count_call(tx, conversation, counted, error=True)
            continue
        tool = installed.tools[call.name]
        sequential = tool.sequential or pin.get("sequential", False)
        data = {
            "arguments": verdict.arguments,
            "replay": tool.replay,
            "isolation": isolation,
            **pinned(uses),
        }
        task = _start_call(harness, tx, key, tool, data, gated, elder if sequential else None)
        elder = task if sequential else elder
        live["tools"][str(task.id)] = {"name": call.name, "call": key, "output": ""}
        tasks.append(task)
    return tasks


def _start_call(
    harness: Harness,
    tx: InvocationTransaction,
    key: str,
    tool: Tool,
    data: dict[str, Any],
    gated: bool,
    after: Task | None,
) -> Task:
    """Without hooks the intent is committed here; with hooks the call starts at its gate."""
    input = {"call": key, "name": tool.name}
    if gated:
        return tx.create_task(harness.tool_task, input, owner=tx.invocation, phase="gate", data=data, after=after)
    return tx.create_task(
        harness.tool_task, input, owner=tx.invocation, phase="execute", data=data, intent=tool.replay, after=after
    )
