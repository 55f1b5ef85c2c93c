"""`perdure show`: the transcript of a conversation, by pages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec

from perdure.commands.looked_at import looking, shown
from perdure.commands.options import Place, as_json_option, named, placed
from perdure.commands.text import as_json, moment, one_line
from perdure.commands.unanswered import Unanswered, unanswered_in
from perdure.commands.visible import visible
from perdure.messages import AssistantMessage, Image, Message, Text, Thinking, ToolCall, ToolMessage
from perdure.records import Entry, EntryId

#: Lines of a tool's result that are shown without --full.
RESULT_LINES = 20
#: And of what was said; and characters of either.
TEXT_LINES, CHARACTERS = 500, 20_000


@click.command()
@click.argument("conversation", required=False, callback=named)
@placed
@click.option(
    "--limit", default=100, show_default=True, metavar="N", type=click.IntRange(1), help="At most so many entries."
)
@click.option("--before", metavar="ENTRY", type=click.IntRange(1), help="The page before this entry.")
@click.option("--all", "everything", is_flag=True, help="The whole transcript.")
@click.option("--full", is_flag=True, help="Long texts and tool results in full, and thinking.")
@as_json_option
def show(
    conversation: str | None, place: Place, limit: int, before: int | None, everything: bool, full: bool, json: bool
) -> int:
    """Show the transcript of CONVERSATION, a key or an id; the root by default. Works beside the session's owner.

    The newest page, oldest entry first; the note at its end says how to get the one before it.
    """
    entries, unanswered, older = asyncio.run(_entries(place, conversation, before, None if everything else limit))
    for entry in entries:
        why = unanswered.get(entry.id)
        for line in [as_json(_object(entry, why))] if json else _lines(entry, why, full=full):
            print(line)
    if older:
        sys.stdout.flush()
        print(f"perdure: there are older entries: --before {entries[0].id}", file=sys.stderr)
    return 0


async def _entries(
    place: Place, name: str | None, before: int | None, limit: int | None
) -> tuple[list[Entry], Mapping[int, Unanswered], bool]:
    """A page, oldest first; which inputs of it were not answered; and whether there is more before it."""
    async with looking(place) as session:
        chat = await session.find(await shown(session, name))
        if limit is None:
            page = [entry async for entry in chat.history() if before is None or entry.id < before]
            limit = len(page)
        else:
            page = await chat.entries(before=None if before is None else EntryId(before), limit=limit + 1)
        return page[:limit][::-1], await unanswered_in(session, page[:limit]), len(page) > limit


def _object(entry: Entry, why: Unanswered | None) -> Any:
    """An entry for a program: as it is, and why it was not answered."""
    return entry if why is None else {**msgspec.to_builtins(entry), "unanswered": msgspec.to_builtins(why)}


def _lines(entry: Entry, why: Unanswered | None, *, full: bool) -> Iterator[str]:
    head = (
        ""
        if entry.head is None
        else ", the model's context starts here"
        if entry.head == entry.id
        else f", heads {entry.head}"
    )
    yield f"[{entry.id}] {entry.kind.removeprefix('perdure.')} {moment(entry.at)}{head}"
    for message in entry.messages:
        for line in _message(message, full=full):
            yield f"    {line}" if line else ""
    if not entry.messages and entry.data is not None:
        yield f"    {one_line(as_json(entry.data), 10_000 if full else 300)}"
    if why is not None:
        yield f"    ({why.line})"
    yield ""


def _message(message: Message, *, full: bool) -> Iterator[str]:
    if isinstance(message, ToolMessage):
        yield f"{message.name} ({message.error})" if message.error else message.name
        yield from _clipped(message.text, None if full else RESULT_LINES)
        return
    for part in message.parts:
        match part:
            case Text(text=text):
                yield from _clipped(text, None if full else TEXT_LINES)
            case ToolCall():
                arguments = as_json(part.arguments) if part.arguments is not None else part.raw or ""
                yield f"-> {part.name} {visible(arguments) if full else one_line(arguments, 300)}"
            case Thinking(text=text):
                if full:
                    yield from (f"~ {line}" for line in visible(text).splitlines())
            case Image(media_type=kind):
                yield f"({kind})"
    if isinstance(message, AssistantMessage) and message.stop not in ("stop", "tool_calls"):
        yield f"({message.stop})"


def _clipped(text: str, most: int | None) -> Iterator[str]:
    if most is not None and len(text) > CHARACTERS:
        cut = len(text) - CHARACTERS
        yield from _clipped(text[:CHARACTERS], most)
        yield f"… {cut:,} more characters (--full)"
        return
    lines = visible(text).splitlines()
    yield from lines[:most]
    if most is not None and len(lines) > most:
        yield f"… {len(lines) - most} more lines (--full)"
