"""The tools `jobs` and `job_kill`: what became of commands that run in the background."""

from __future__ import annotations

from perdure.errors import NotFound, SandboxError
from perdure.harness.job import Job, how
from perdure.harness.jobs import JobOutput
from perdure.harness.output import LIMIT_BYTES, LIMIT_LINES, clip
from perdure.harness.registry import tool
from perdure.tools.context import ToolContext
from perdure.values import clean_text

#: The longest that a call waits for a job.
MOST_WAIT = 600.0
#: How much of a command stands in the list.
MOST_COMMAND = 100
#: How much of an output is shown at a time.
SHOWN_BYTES, SHOWN_LINES = LIMIT_BYTES - 2048, LIMIT_LINES - 10


@tool(replay="safe", keep="both")
async def jobs(call: ToolContext, id: int = 0, offset: int = -1, wait: float = 0) -> str:
    """List the background jobs of this conversation, or show what one of them printed and whether it still runs.

    Args:
        id: The job to show. Without it, all are listed.
        offset: Show the output from this byte on, as the answer before said. Without it, the newest part is shown.
        wait: Wait so many seconds at most for the job to end, at most 600.
    """
    if not id:
        found = await call.jobs.list()
        call.details({"jobs": [{"id": job.id, "state": job.state, "code": job.code} for job in found]})
        return "\n".join(map(line, reversed(found))) or "[no background jobs]"
    if not wait >= 0:
        raise SandboxError(f"wait must be 0 seconds or more, not {wait}")
    seconds = min(float(wait), MOST_WAIT)
    if seconds:
        call.extend(seconds + 5)
    job = await _found(call, id, seconds)
    printed, output = await printed_by(call, job, offset)
    call.details({"job": job.id, "state": job.state, "code": job.code, "begin": output.begin, "end": output.end})
    notes: list[str] = []
    if offset >= 0 and output.begin > offset:
        notes.append(f"[bytes {offset:,} to {output.begin:,} are not kept any more]")
    if output.end < output.total:
        notes.append(f"[there are {output.total:,} bytes; go on with offset={output.end}]")
    elif job.live:
        notes.append(f"[for what comes next: offset={output.end}]")
    return "\n".join([f"[job {job.id} {how(job)}]", printed or "[no output]", *notes])


@tool(replay="safe")
async def job_kill(call: ToolContext, id: int) -> str:
    """End a background job, with everything that it started.

    Args:
        id: The number of the job.
    """
    call.extend(30)
    before = await _found(call, id, 0)
    job = await call.jobs.stop(id) if before.live else before
    call.details({"job": job.id, "state": job.state, "code": job.code})
    told = f"[job {job.id} {how(job)}]"
    return told if before.live else f"{told}\n[it had ended before]"


async def _found(call: ToolContext, id: int, seconds: float) -> Job:
    try:
        return await call.jobs.wait(id, seconds)
    except NotFound as error:
        raise SandboxError(str(error)) from None


async def printed_by(call: ToolContext, job: Job, offset: int = -1) -> tuple[str, JobOutput]:
    """What a job printed, from a position on or (negative) its newest part, within the limit of outputs."""
    found = await call.jobs.read(job.id, offset=offset if offset >= 0 else -SHOWN_BYTES, limit=SHOWN_BYTES)
    if offset >= 0:
        content = _whole_lines(found)
        return _shown(content), found._replace(content=content, end=found.begin + len(content))
    content = found.content
    if found.begin > 0:  # begin with a whole line
        content = content[content.find(b"\n") + 1 :]
    kept = b"".join(content.splitlines(keepends=True)[-SHOWN_LINES:])
    before = found.end - len(kept)
    return (f"[… {before:,} bytes before]\n" if before else "") + _shown(kept), found


def _whole_lines(found: JobOutput) -> bytes:
    """What is shown of an output that is read from its beginning: what is left out comes with the next offset."""
    lines = found.content.splitlines(keepends=True)
    if len(lines) > SHOWN_LINES:
        return b"".join(lines[:SHOWN_LINES])
    if found.end < found.total and len(lines) > 1:
        return b"".join(lines[:-1])
    return found.content


def _shown(content: bytes) -> str:
    return clean_text(content.decode("utf-8", "replace")).rstrip("\n")


def line(job: Job) -> str:
    """A job in one line."""
    printed = f", {job.bytes:,} bytes printed" if job.bytes else ""
    return f"{job.id}: {how(job)}{printed}: {clip(clean_text(' '.join(job.command.split())), MOST_COMMAND)}"
