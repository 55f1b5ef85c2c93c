"""`perdure export`: a whole transcript as Markdown, as JSON lines, or as a page that needs nothing else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import click

from perdure.app.handing_in import HandInSession
from perdure.app.looking import ReadConversation
from perdure.commands.export_html import Html
from perdure.commands.export_jsonl import Jsonl
from perdure.commands.export_markdown import Markdown
from perdure.commands.exported import Head, Writer
from perdure.commands.looked_at import looking, shown
from perdure.commands.options import Place, named, placed
from perdure.commands.progress import Progress
from perdure.commands.unanswered import unanswered_in
from perdure.errors import UsageError
from perdure.records import Entry, EntryId

FORMATS: Mapping[str, Callable[[bool], Writer]] = {"md": Markdown, "jsonl": Jsonl, "html": Html}
#: The formats by the endings of files.
ENDINGS = {".md": "md", ".markdown": "md", ".jsonl": "jsonl", ".ndjson": "jsonl", ".html": "html", ".htm": "html"}

PAGE = 100


@click.command()
@click.argument("conversation", required=False, callback=named)
@placed
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="As FILE ends, else md.")
@click.option(
    "-o", "--output", metavar="FILE", callback=named, help="A new file; standard output without it, or for -."
)
@click.option("--thinking", is_flag=True, help="What the model thought, too.")
def export(conversation: str | None, place: Place, form: str | None, output: str | None, thinking: bool) -> int:
    """Write the whole transcript of CONVERSATION, a key or an id; of the root by default.

    Tool calls and their results are in it, and what was used. Works beside the session's owner.
    """
    file = None if output in (None, "-") else Path(output)
    form = form or form_of(file)

    async def work() -> int:
        async with looking(place) as session:
            return await export_to(session, await shown(session, conversation), form, file, thinking=thinking)

    count = asyncio.run(work())
    if file is not None:
        print(f"{count} entries written to {file}", file=sys.stderr)
    return 0


def form_of(file: Path | None) -> str:
    """The format that a file's ending says."""
    return "md" if file is None else ENDINGS.get(file.suffix.lower(), "md")


async def export_to(session: HandInSession, id: int, form: str, file: Path | None, *, thinking: bool) -> int:
    """Write the transcript to a new file for its owner only, or to standard output. How many entries it has."""
    writer = FORMATS[form](thinking)
    if file is None:
        return await _write(session, id, writer, sys.stdout)
    try:
        stream = open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")  # noqa: ASYNC230, SIM115
    except FileExistsError:
        raise UsageError(f"{file} is there already: name a new file") from None
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from None
    try:
        with stream:
            return await _write(session, id, writer, stream)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(file)
        if isinstance(error, OSError):
            raise UsageError(f"cannot write {file}: {error.strerror or error}") from None
        raise


async def _write(session: HandInSession, id: int, writer: Writer, stream: IO[str]) -> int:
    """Entry by entry: a transcript of any length needs the memory of a page of it."""
    chat = await session.find(id)
    record = await chat.record()
    starts = await _pages(chat)
    usage: dict[str, Any] = await chat.usage()
    head = Head(session=session.key, id=record.id, key=record.key, title=record.title, at=record.at)
    count = 0
    stream.write(writer.begin(head))
    with Progress("exporting", total=len(starts) * PAGE) as progress:
        async for page in _oldest_first(chat, starts):
            unanswered = await unanswered_in(session, page)
            for entry in page:
                stream.write(writer.entry(entry, unanswered.get(entry.id)))
            count += len(page)
            progress.to(count)
    stream.write(writer.end(count, usage))
    stream.flush()
    return count


async def _pages(chat: ReadConversation) -> list[EntryId | None]:
    """Where each page begins that leads from the newest entry to the oldest; what comes after the first is left out."""
    starts: list[EntryId | None] = []
    newest = await chat.entries(limit=1)
    before = EntryId(newest[0].id + 1) if newest else None
    while before is not None and (page := await chat.entries(before=before, limit=PAGE)):
        starts.append(before)
        before = page[-1].id
    return starts


async def _oldest_first(chat: ReadConversation, starts: list[EntryId | None]) -> AsyncGenerator[list[Entry]]:
    """Page by page, each oldest first."""
    for before in reversed(starts):
        yield (await chat.entries(before=before, limit=PAGE))[::-1]
