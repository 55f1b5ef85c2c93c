"""What results ask for besides being told to the model (H23): more tools, the end of the run, a handoff."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidValue
from perdure.harness.hooks import ResultOfRound
from perdure.harness.registry import Registry, ToolResult
from perdure.harness.stored import AGENT, LIVE, RESET
from perdure.messages import ToolMessage, user
from perdure.records import ConversationId, EntryId, TaskId
from perdure.session.transaction import Transaction
from perdure.tasks.transaction import InvocationTransaction
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness

#: Later than any entry.
NEWEST = 2**62


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What one result asks for, checked."""

    add_tools: tuple[str, ...] = ()
    terminate: bool = False
    handoff: str | None = None


def wants_of(result: ToolResult) -> Asked:
    """What a tool's result asks for. Raises InvalidValue for what is none of it."""
    names, handoff = result.add_tools, result.handoff
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):  # type: ignore[reportUnnecessaryIsInstance]
        raise InvalidValue(f"add_tools is a list of names of tools, not {names!r:.100}")
    if handoff is not None and (not isinstance(handoff, str) or not handoff.strip()):  # type: ignore[reportUnnecessaryIsInstance]
        raise InvalidValue(f"handoff is the text to go on with, not {handoff!r:.100}")
    return Asked(
        add_tools=tuple(dict.fromkeys(map(clean_text, names))),
        terminate=bool(result.terminate),
        handoff=None if handoff is None else clean_text(handoff),
    )


async def stage_asked(tx: InvocationTransaction, wants: Asked, run: TaskId, registry: Registry) -> None:
    """Stage it with the result's commit: tools are added at once, the rest waits for the end of the round."""
    if wants.add_tools:
        await add_tools(tx, [name for name in wants.add_tools if name in registry.tools])
    if not wants.terminate and wants.handoff is None:
        return
    live = await tx.doc(LIVE, run)
    known: dict[str, Any] = live.get("asks") or {}
    asks = {"terminate": known.get("terminate", 0) + wants.terminate, "handoff": known.get("handoff") or wants.handoff}
    live["asks"] = asks


async def add_tools(tx: Transaction, names: list[str]) -> None:
    """Offer more of the installed tools in this commit's conversation, from its next request on."""
    own = await tx.doc(AGENT)
    known: list[str] = list(own.get("added_tools") or ())
    fresh = [name for name in names if name not in known]
    if fresh:
        own["added_tools"] = [*known, *fresh]


def hand_off(tx: InvocationTransaction, text: str) -> None:
    """From here on the conversation goes on with this text and nothing older (H8)."""
    own = tx.own
    data = {"run": own.id}
    tx.append(own.conversation, RESET, messages=(user(text),), data=data, heads_itself=True, task=own.id)


async def results_of(harness: Harness, conversation: ConversationId, answer: int) -> tuple[ResultOfRound, ...]:
    """The stored results of the calls of an answer, in call order."""
    found: dict[int, ResultOfRound] = {}
    for entry in reversed(await harness.transcript(conversation, EntryId(NEWEST))):
        if entry.id <= answer:
            break
        for message in entry.messages:
            of, _, index = message.call.partition(".") if isinstance(message, ToolMessage) else ("", "", "")
            if isinstance(message, ToolMessage) and of == str(answer) and int(index) not in found:
                found[int(index)] = ResultOfRound(
                    call=message.call, name=message.name, text=message.text, error=message.error
                )
    return tuple(found[index] for index in sorted(found))
