"""How a conversation's work was started, so that it is gone on with in the same way: its model, and the tools it needs.

What code to load is never taken from a store: a person says it again, and is told what to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.app.looking import ReadSession
from perdure.commands.choosing import DEMO, Chosen, Remembered
from perdure.commands.settings import GUARDED
from perdure.errors import NotFound, UsageError
from perdure.harness.conversation import ConversationHandle
from perdure.harness.registry import Registry
from perdure.harness.stored import GENERATION, TOOL
from perdure.records import ROOT
from perdure.session.documents import declare
from perdure.tasks.inspection import Inspection

#: `needs` maps each tool that was offered beyond `read` to the option that brought it.
#: `by` is how the model was chosen.
STARTED = declare("perdure.command", initial=lambda: {"model": DEMO, "by": "demo", "needs": {}})


async def remember(chat: ConversationHandle, model: Chosen, needs: Mapping[str, str]) -> None:
    """Durable on return; writes nothing where it is so already."""
    value = {"model": model.name, "by": model.by, "needs": dict(needs)}
    if await chat.snapshot(STARTED) != value:
        async with chat.commit() as tx:
            (await tx.doc(STARTED)).update(value)


async def model_of_conversation(reader: ReadSession, key: str | None, id: int | None = None) -> Remembered | None:
    """The model that a conversation, by key or id, was worked on with last; the root where neither is given."""
    try:
        chat = await (reader.find(ROOT if id is None else id) if key is None else reader.conversation(key))
        started: dict[str, Any] | None = await chat.snapshot(STARTED)
    except NotFound:
        return None
    return None if started is None else remembered(started)


def remembered(started: Mapping[str, Any]) -> Remembered:
    """What the document says; before it said how a model was chosen, a demo was what there was."""
    model = started["model"]
    return Remembered(model=model, by=started.get("by", "demo" if model == DEMO else "flag"))


async def model_of_session(reader: ReadSession) -> Chosen | None:
    """The model that unfinished work was started with; None without any. Raises UsageError where there are several."""
    unfinished = await _unfinished(reader, await reader.inspect())
    models = {started["model"]: id for id, started in unfinished.items() if started}
    if len(models) > 1:
        listed = ", ".join(f"{model} in {id}" for model, id in models.items())
        raise UsageError(f"unfinished conversations were started with different models ({listed}): choose with --model")
    for model, id in models.items():
        started = unfinished[id]
        assert started is not None
        why = f"as the unfinished work of conversation {id} was started"
        return Chosen(name=model, why=why, by=remembered(started).by)
    return None


async def refuse_missing_tools(reader: ReadSession, inspection: Inspection, registry: Registry) -> None:
    """Raise UsageError where unfinished work needs tools that are not here: it would go on without them."""
    for id, started in (await _unfinished(reader, inspection)).items():
        needs: Mapping[str, str] = started["needs"] if started else {}
        missing = dict.fromkeys(option for name, option in needs.items() if name not in registry.tools)
        if missing:
            raise UsageError(
                f"conversation {id} has unfinished work that was started with {' '.join(missing)}: "
                f"add that, or stop it with perdure abort {id}"
            )
    for task in inspection.tasks:
        name = task.label
        if task.kind == TOOL and not task.aborting and name is not None and name not in registry.tools:
            option = option_of(name, "MODULE:NAME")
            raise UsageError(
                f"task {task.id} has to run the tool {name!r}, which is not here: add {option}, "
                f"or stop it with perdure abort --task {task.id}"
            )


async def check_before_taking_over(reader: ReadSession, registry: Registry) -> None:
    """Raise UsageError as `refuse_missing_tools` does, while the owner still works: it is not ended for nothing."""
    try:
        inspection = await reader.inspect()
    except NotFound:
        return  # nobody opened the session yet
    await refuse_missing_tools(reader, inspection, registry)


def taken_over(session: str, owner: str | None, prompt: int | None) -> str:
    """What a process says whose session was taken over by another one while it worked."""
    where = f"by {owner}" if owner is not None else "by another process that has left again"
    kept = "its work" if prompt is None else f"its work, this prompt (input {prompt}) too,"
    goes_on = "goes on there" if owner is not None else "goes on with perdure resume"
    return f"session {session!r} was taken over {where}: {kept} {goes_on}; perdure resume follows it"


def option_of(tool: str, spec: str, *, ask: bool = False) -> str:
    """The option that brings a tool."""
    if tool in GUARDED:
        return f"{'--ask' if ask else '--allow'} {tool}"
    return f"--tools {spec}"


async def asked_before(reader: ReadSession) -> list[str]:
    """Tools that unfinished work was started with, to be asked about: so it can go on, and nothing runs unasked."""
    unfinished = await _unfinished(reader, await reader.inspect())
    needs = [started["needs"] for started in unfinished.values() if started]
    return list(dict.fromkeys(name for each in needs for name in each if each[name].endswith(f"--ask {name}")))


async def _unfinished(reader: ReadSession, inspection: Inspection) -> dict[int, dict[str, Any] | None]:
    """How the conversations with a live run were started, by id."""
    ids = dict.fromkeys(t.conversation for t in inspection.tasks if t.kind == GENERATION and not t.aborting)
    return {id: await (await reader.find(id)).snapshot(STARTED) for id in ids}
