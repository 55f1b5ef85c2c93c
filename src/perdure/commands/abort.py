"""`perdure abort`: stop work, or take an input back."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.app.handing_in import HandedIn, HandInSession
from perdure.commands.acting import Acted, acting
from perdure.commands.installed import install
from perdure.commands.looked_at import found
from perdure.commands.options import Place, as_json_option, id_of, named, placed
from perdure.commands.text import as_json
from perdure.errors import NotFound, OwnerGone
from perdure.records import Outcome

REASON = "aborted from the command line"


@click.command()
@click.argument("conversation", required=False, callback=named)
@placed
@click.option("--task", metavar="ID", callback=id_of("task"), help="This task, a background one too, and what it owns.")
@click.option(
    "--submission", metavar="ID", callback=id_of("submission"), help="Take this input back while it is queued."
)
@click.option("--background", is_flag=True, help="The conversation's background work, too.")
@click.option("--keep-queue", is_flag=True, help="Leave the conversation's queued inputs in its inbox.")
@click.option("--tools", multiple=True, metavar="MODULE:NAME", help="Code that the work's tasks need to stop in order.")
@as_json_option
def abort(
    conversation: str | None,
    place: Place,
    task: int | None,
    submission: int | None,
    background: bool,
    keep_queue: bool,
    tools: tuple[str, ...],
    json: bool,
) -> int:
    """Stop the work of CONVERSATION (a key or an id), one task, or take one input back.

    Where another process works in the session, it is told; else the work is stopped from here.
    """
    if sum(each is not None for each in (conversation, task, submission)) != 1:
        raise click.UsageError("name one of CONVERSATION, --task ID and --submission ID")

    async def hand_in(session: HandInSession) -> HandedIn:
        if task is not None:
            await session.task(task)
            return await session.abort_task(task, REASON)
        if submission is not None:
            await session.submission(submission).record()
            return await session.abort_submission(submission)
        chat = await session.find(await found(session, conversation or ""))
        return await chat.abort(background=background, queue="keep" if keep_queue else "withdraw", reason=REASON)

    async def act() -> dict[str, Any]:
        async with acting(place, hand_in, install(tools, ()).registry) as acted:
            return acted.answer if submission is not None else await _ended(acted)

    report = asyncio.run(act())
    for line in [as_json(report)] if json else _lines(report, submission):
        print(line)
    return 1 if report.get("withdrawn", "aborted") != "aborted" else 0


async def _ended(acted: Acted) -> dict[str, Any]:
    """How the tasks ended that were marked; those that end only when their session is worked on are left out."""
    marked: list[int] = acted.answer["marked"]
    if acted.own is not None:
        live = acted.own.inspect().tasks
        if all(each.aborting for each in live):  # else starting the scheduler would start other work, too
            await acted.own.wait_idle()
            for id in marked:
                await acted.own.wait_task(id)
        return {"marked": marked, "ended": await _outcomes(acted.reader, marked)}
    while True:
        ended = await _outcomes(acted.reader, marked)
        if len(ended) == len(marked):
            return {"marked": marked, "ended": ended}
        try:
            if (await acted.reader.info()).owner is None:
                raise OwnerGone("it ended")
            await acted.reader.changed()
        except OwnerGone:
            return {"marked": marked, "ended": await _outcomes(acted.reader, marked)}


async def _outcomes(reader: HandInSession, ids: list[int]) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for id in ids:
        try:
            outcome = (await reader.task(id)).outcome
        except NotFound:  # pruned since
            continue
        if outcome is not None:
            found[str(id)] = outcome
    return found


def _lines(report: dict[str, Any], submission: int | None) -> list[str]:
    if "withdrawn" in report:
        says = {
            "aborted": "was taken back",
            "already_placed": "is being answered: perdure abort CONVERSATION stops that",
            "settled": "is settled already",
        }
        return [f"input {submission} {says[report['withdrawn']]}"]
    marked, ended = report["marked"], report["ended"]
    if not marked:
        return ["nothing was running"]
    lines = [f"task {id}: {type(outcome).__name__.lower()}" for id, outcome in ended.items()]
    left = [str(id) for id in marked if str(id) not in ended]
    if left:
        lines.append(
            f"marked to stop: {', '.join(left)}. They end when the session is worked on next (perdure resume), "
            "since other work of it would start with them"
        )
    return lines
