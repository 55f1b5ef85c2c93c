"""`perdure compact`: summarise what is older in a conversation."""

from __future__ import annotations

import asyncio

import click

from perdure.app.handing_in import HandedIn, HandInSession
from perdure.clock import SystemClock
from perdure.commands.acting import Acted, acting
from perdure.commands.chosen import check_model
from perdure.commands.looked_at import found
from perdure.commands.options import Place, as_json_option, configuration, named, placed
from perdure.commands.picking import pick
from perdure.commands.private import hide_secrets
from perdure.commands.text import argument, as_json
from perdure.errors import OwnerGone
from perdure.records import Completed, Failed, Outcome


@click.command()
@click.argument("conversation", callback=named)
@click.argument("instructions", required=False)
@placed
@click.option("--model", metavar="NAME", callback=named, help="Who writes the summary, where no other process does.")
@as_json_option
def compact(conversation: str, instructions: str | None, place: Place, model: str | None, json: bool) -> int:
    """Summarise what is older in CONVERSATION (a key or an id); INSTRUCTIONS say what the summary must keep.

    No entry is removed. Where another process works in the session, it does it.
    """
    hide_secrets()
    text = None if instructions is None else argument(instructions)

    async def hand_in(session: HandInSession) -> HandedIn:
        chat = await session.find(await found(session, conversation))
        return await chat.compact(text)

    async def who(session: HandInSession) -> str:
        number = await found(session, conversation)
        picked = await pick(session, model, configuration(), None, number)
        check_model(picked.name, SystemClock())
        return picked.name

    async def act() -> tuple[int, Outcome | None]:
        async with acting(place, hand_in, model=who) as acted:
            return acted.answer["task"], await _outcome(acted)

    task, outcome = asyncio.run(act())
    how = "waiting" if outcome is None else type(outcome).__name__.lower()
    line = as_json({"task": task, "state": how, "outcome": outcome}) if json else _line(conversation, task, outcome)
    print(line)
    return 0 if outcome is None or isinstance(outcome, Completed) else 1


async def _outcome(acted: Acted) -> Outcome | None:
    """How it ended; None where that needs this session's other work to go on, too."""
    task = acted.answer["task"]
    if acted.own is not None:
        alone = all(each.id == task for each in acted.own.inspect().tasks)
        return await acted.own.wait_task(task) if alone else None
    while (outcome := (await acted.reader.task(task)).outcome) is None:
        if (await acted.reader.info()).owner is None:
            raise OwnerGone(f"the session's owner ended before task {task} did: perdure resume goes on with it")
        await acted.reader.changed()
    return outcome


def _line(conversation: str, task: int, outcome: Outcome | None) -> str:
    match outcome:
        case None:
            return f"task {task} summarises it when the session is worked on next (perdure resume)"
        case Completed(result={"submission": int()}):
            return f"conversation {conversation} is summarised; perdure show has all that was said"
        case Completed(result={"why": str(why)}):
            return f"conversation {conversation} is as it was: {why}"
        case Failed(error=error):
            return f"conversation {conversation} is as it was: {error.type}: {error.message}"
        case _:
            return f"conversation {conversation} is as it was: the task {type(outcome).__name__.lower()}"
