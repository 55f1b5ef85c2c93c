"""`perdure jobs`: the commands that run in the background of conversations."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import click
import msgspec

from perdure.app.handing_in import HandInSession
from perdure.commands.acting import acting
from perdure.commands.looked_at import looking
from perdure.commands.options import Place, as_json_option, id_of, placed
from perdure.commands.text import as_json
from perdure.commands.visible import visible
from perdure.errors import NotFound
from perdure.harness.job import JOBS, Job, jobs_in
from perdure.tools.jobs import line


@click.group()
def jobs() -> None:
    """List, read and end commands that run in the background of conversations, whoever owns the session."""


@jobs.command("list")
@placed
@as_json_option
def list_jobs(place: Place, json: bool) -> int:
    """Those that run, and the newest that ended, of every conversation."""

    async def look() -> tuple[list[tuple[str, Job]], bool]:
        async with looking(place) as session:
            owned = (await session.info()).owner is not None
            return [each async for each in _jobs(session)], owned

    found, owned = asyncio.run(look())
    for name, job in found:
        if json:
            print(as_json({"conversation": name, "owned": owned, "runs": owned and job.live, "job": job}))
        else:
            print(visible(f"{name}  {line(job if owned else _without_owner(job))}"))
    return 0


@jobs.command()
@click.argument("job", callback=id_of("job", "perdure jobs list"))
@placed
def read(job: int, place: Place) -> int:
    """Print what JOB printed: all that its owner keeps of it, or the end of it where the owner is gone."""

    async def look() -> Job:
        async with looking(place) as session:
            return await _job(session, job)

    found = asyncio.run(look())
    try:
        text = Path(found.path or "").read_bytes().decode("utf-8", errors="replace") if found.path else found.tail
    except OSError:
        text = found.tail
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    if text and not text.endswith("\n"):
        sys.stdout.write("\n")
    return 0


@jobs.command()
@click.argument("job", callback=id_of("job", "perdure jobs list"))
@placed
def kill(job: int, place: Place) -> int:
    """End JOB, with everything that it started."""

    async def act() -> bool:
        async with looking(place) as session:
            await _job(session, job)
        async with acting(place, lambda session: session.abort_task(job, "ended from the command line")) as acted:
            return bool(acted.answer["marked"])

    print(f"job {job} is being ended" if asyncio.run(act()) else f"job {job} had ended")
    return 0


def _without_owner(job: Job) -> Job:
    """A job as it is where no process holds it: one that its record has as running is known to have ended."""
    if not job.live:
        return job
    return msgspec.structs.replace(job, state="interrupted", detail="it ended with the process that owned the session")


async def _jobs(session: HandInSession) -> AsyncGenerator[tuple[str, Job]]:
    """Every job that is known, with the name of its conversation."""
    before: int | None = None
    while page := await session.conversations(before=before, limit=100):
        for each in page:
            known = await (await session.find(each.id)).snapshot(JOBS)
            for job in jobs_in(known) if known else ():
                yield each.key or str(each.id), job
        before = page[-1].id


async def _job(session: HandInSession, id: int) -> Job:
    async for _, job in _jobs(session):
        if job.id == id:
            return job
    raise NotFound(f"no job {id} in session {session.key!r}: perdure jobs list shows those that there are")
