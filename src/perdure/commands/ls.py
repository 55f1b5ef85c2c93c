"""`perdure ls`: the newest conversations, or the sessions of a store."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.app.handing_in import HandInSession, described
from perdure.app.opening import store
from perdure.commands.asking import asked
from perdure.commands.looked_at import looking
from perdure.commands.options import Place, as_json_option, placed
from perdure.commands.text import as_json, moment, one_line
from perdure.commands.unanswered import last_unanswered
from perdure.records import Conversation
from perdure.storage import SessionInfo
from perdure.tasks.inspection import Inspection

PAGE = 20


@click.command()
@placed
@click.option("--sessions", is_flag=True, help="List the sessions of the store, with their owners.")
@click.option(
    "--limit", default=PAGE, show_default=True, metavar="N", type=click.IntRange(1, 1000), help="At most so many."
)
@click.option("--before", metavar="ID", type=click.IntRange(1), help="Older ones: those below this conversation's id.")
@as_json_option
def ls(place: Place, sessions: bool, limit: int, before: int | None, json: bool) -> int:
    """List the newest conversations, newest first. Works beside the session's owner."""
    rows = asyncio.run(_sessions(place) if sessions else _conversations(place, before, limit))
    for line in [as_json(row) for row in rows] if json else _table(rows):
        print(line)
    return 0


async def _sessions(place: Place) -> list[dict[str, Any]]:
    async with store(place.store, mode="read") as opened:
        return [_session(info) for info in await opened.sessions()]


def _session(info: SessionInfo) -> dict[str, Any]:
    return {"session": info.key, "commits": info.head, "owner": described(info.owner) if info.owner else None}


async def _conversations(place: Place, before: int | None, limit: int) -> list[dict[str, Any]]:
    async with looking(place) as session:
        owned = (await session.info()).owner is not None
        inspection = await session.inspect()
        page = await session.conversations(before=before, limit=limit)
        rows = [await _conversation(session, each, _state(each.id, inspection, owned)) for each in page]
        return [{**row, "asks": _asks(row["id"], inspection)} for row in rows]


async def _conversation(session: HandInSession, one: Conversation, state: str) -> dict[str, Any]:
    chat = await session.find(one.id)
    newest = await chat.entries(limit=1)
    if state == "idle" and await last_unanswered(session, chat) is not None:
        state = "unanswered"
    return {
        "id": one.id,
        "key": one.key,
        "state": state,
        "changed": newest[0].at if newest else one.at,
        "made": one.at,
        "title": one.title,
        "forked": one.parent,
    }


def _state(id: int, inspection: Inspection, owned: bool) -> str:
    """The first of these that holds: held, asks, busy (where nobody works: unfinished), queued, idle.

    An idle one whose last input got no answer is shown as unanswered.
    """
    tasks = [task for task in inspection.tasks if task.conversation == id]
    if any(task.state == "held" for task in tasks):
        return "held"
    if any(question.conversation == id for question in inspection.questions):
        return "asks"
    if tasks:
        return "busy" if owned else "unfinished"
    return "queued" if any(item.conversation == id for item in inspection.submissions) else "idle"


def _asks(id: int, inspection: Inspection) -> list[dict[str, Any]]:
    """Its open questions; of an approval the call with its arguments."""
    found = [question for question in inspection.questions if question.conversation == id]
    return [{"question": each.id, "about": asked(each.call, each.payload)} for each in found]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Columns as wide as they have to be; times for people."""
    if not rows:
        return []
    shown = {name: [_cell(name, row[name]) for row in rows] for name in rows[0] if name not in ("made", "forked")}
    shown = {name: cells for name, cells in shown.items() if name not in ("title", "asks") or any(cells)}
    widths = {name: max(len(name), *map(len, cells)) for name, cells in shown.items()}
    lines = ["  ".join(name.upper().ljust(widths[name]) for name in shown)]
    lines += ["  ".join(shown[name][at].ljust(widths[name]) for name in shown) for at in range(len(rows))]
    return [line.rstrip() for line in lines]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "asks":
        return one_line("; ".join(f"{each['question']}: {each['about']}" for each in value), 80)
    return moment(value) if name == "changed" else one_line(str(value), 80)
