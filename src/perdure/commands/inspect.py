"""`perdure inspect`: what is going on in a session, from its records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from perdure.app.handing_in import HandInSession, described
from perdure.commands.asking import asked
from perdure.commands.following import remedy_of
from perdure.commands.looked_at import looking
from perdure.commands.options import Place, as_json_option, placed
from perdure.commands.text import as_json, moment, one_line
from perdure.commands.unanswered import Unanswered, last_unanswered
from perdure.records import Inbound, decode_inbound
from perdure.storage import SessionInfo
from perdure.surface.frames import QuestionInfo, TaskInfo
from perdure.tasks.inspection import Inspection, SubmissionInfo

#: Conversations that are looked at for a last input that was not answered.
PAGE = 20


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A session at one point of its line, its owner, and what was handed in and not taken yet."""

    info: SessionInfo
    inspection: Inspection
    handed_in: list[Inbound]
    #: Conversations where nothing goes on and the last input was not answered, of the newest ones.
    unanswered: dict[int, Unanswered]


@click.command()
@placed
@as_json_option
def inspect(place: Place, json: bool) -> int:
    """Show live tasks, waiting inputs, open questions, held reasons, and who owns the session."""
    seen = asyncio.run(_look(place))
    for line in [as_json(_object(seen))] if json else _lines(seen):
        print(line)
    return 0


async def _look(place: Place) -> Seen:
    async with looking(place) as session:
        waiting = await session.storage.scan_inbound(session.key)
        inspection = await session.inspect()
        return Seen(
            info=await session.info(),
            inspection=inspection,
            unanswered=await _unanswered(session, inspection),
            handed_in=[decode_inbound(body, session.key) for body in waiting],
        )


async def _unanswered(session: HandInSession, inspection: Inspection) -> dict[int, Unanswered]:
    busy = {each.conversation for each in (*inspection.tasks, *inspection.submissions)}
    found: dict[int, Unanswered] = {}
    for each in await session.conversations(limit=PAGE):
        if each.id in busy:
            continue
        if (last := await last_unanswered(session, await session.find(each.id))) is not None:
            found[each.id] = last
    return found


def _object(seen: Seen) -> dict[str, Any]:
    parts: dict[str, Any] = msgspec.to_builtins(seen.inspection)
    for name in ("detached", "storage"):  # what only the owner itself knows
        del parts[name]
    return {
        **parts,
        "owner": msgspec.to_builtins(seen.info.owner),
        "handed_in": msgspec.to_builtins(seen.handed_in),
        "unanswered": [{"conversation": id, **msgspec.to_builtins(each)} for id, each in seen.unanswered.items()],
    }


def _lines(seen: Seen) -> Iterator[str]:
    inspection, owner = seen.inspection, seen.info.owner
    yield f"session {inspection.session!r} at commit {inspection.seq}, " + (
        f"owned by {described(owner)}" if owner is not None else "no live owner"
    )
    for task in inspection.tasks:
        yield _task(task)
    for item in inspection.submissions:
        yield _submission(item)
    for question in inspection.questions:
        yield _question(question)
    for item in seen.handed_in:
        yield f"handed in {item.id}: {item.kind}, not taken yet"
    if not (inspection.tasks or inspection.submissions or seen.handed_in):
        yield "nothing is going on"
    for id, each in seen.unanswered.items():
        yield f"the last input of conversation {id} was {each.line}"


def _task(task: TaskInfo) -> str:
    words = [f"task {task.id}", task.label or task.kind, f"in conversation {task.conversation}:", task.state]
    if task.phase is not None:
        words.append(f"at {task.phase}")
    words += [
        word for word, so in (("begun", task.begun), ("background", task.background), ("aborting", task.aborting)) if so
    ]
    if task.on:
        words.append(f"on {', '.join(map(str, task.on))}")
    if task.reason is not None:
        words.append(f"({task.reason}): {task.detail}; {remedy_of(task)}")
    return one_line(" ".join(words), 500)


def _submission(item: SubmissionInfo) -> str:
    request = f", request id {item.request_id}" if item.request_id is not None else ""
    return one_line(
        f"{item.type} {item.id} in conversation {item.conversation}: {item.state} ({item.mode}){request}", 500
    )


def _question(question: QuestionInfo) -> str:
    until = f", until {moment(question.deadline)}" if question.deadline is not None else ""
    about = asked(question.call, question.payload)
    value = "VALUE" if question.call is None else "allow|always|deny|edit JSON"
    where = f"question {question.id} in conversation {question.conversation}{until}"
    return f"{where}: {about}; perdure answer {question.id} {value}"
