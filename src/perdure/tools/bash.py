"""The tool `bash`: one shell command, its output and its exit code; or one that goes on in the background."""

from __future__ import annotations

import signal

from perdure.errors import SandboxError
from perdure.harness.job import how
from perdure.harness.output import LIMIT_BYTES, LIMIT_LINES, Output
from perdure.harness.registry import tool
from perdure.sandbox import Exit, Spill
from perdure.tools.context import ToolContext
from perdure.tools.jobs import printed_by

#: The longest time limit that a model may ask for, and what ending a command may take on top.
MOST_SECONDS = 600.0
ENDING = 5.0
#: So much of a text is what cannot be decoded: then it is no text.
BINARY_SHARE = 0.1
#: What of an output the model is shown; the notes about it have their place within the limit of all outputs.
SHOWN_BYTES, SHOWN_LINES = LIMIT_BYTES - 2048, LIMIT_LINES - 10


@tool(keep="both", runs_commands=True)
async def bash(call: ToolContext, command: str, timeout: float = 30, background: bool = False) -> str:
    """Run a shell command. The answer is what it printed (standard output and error together) and its exit code.

    Nobody can answer it: standard input is empty, there is no terminal. Use flags that avoid questions and editors.
    What it leaves running with `&` is ended with it. For a server, a watcher or what takes long, use background=true:
    the answer then has the number of the job, which `jobs` and `job_kill` take, and comes at once.

    Args:
        command: The command, for bash, run in the working directory.
        timeout: Time limit in seconds, at most 600. Not for what runs in the background.
        background: Let it run on while you do other things.
    """
    if not timeout > 0:
        raise SandboxError(f"timeout must be more than 0 seconds, not {timeout}")
    if background:
        return await _in_background(call, command)
    seconds = min(float(timeout), MOST_SECONDS)
    call.extend(seconds + ENDING)
    output = Output(SHOWN_BYTES, SHOWN_LINES, keep="both")

    def show(chunk: bytes) -> None:
        output.feed(chunk)
        call.output(chunk)

    spill = Spill(bytes=SHOWN_BYTES, lines=SHOWN_LINES)
    ended = await call.sandbox.run(command, timeout=seconds, output=show, spill=spill)
    output.close()
    call.details(
        {
            "code": ended.code,
            "signal": ended.signal,
            "timed_out": ended.timed_out,
            "seconds": round(ended.seconds, 3),
            "strategy": ended.strategy,
            "running": list(ended.running),
            "stuck": list(ended.stuck),
            "bytes": output.total_bytes,
            "spill": ended.spill,
        }
    )
    if ended.timed_out:  # what it had printed was shown: the harness adds it
        stuck = f", but for {_processes(ended.stuck)}, which cannot be ended" if ended.stuck else ""
        what = "what was found of all" if ended.strategy == "pgroup" else "everything"
        told = f"it was ended after {seconds:g} s, with {what} that it had started{stuck}"
        raise TimeoutError("\n".join([told, *_whole(ended)]))
    return report(output.text(), ended)


async def _in_background(call: ToolContext, command: str) -> str:
    job = await call.jobs.start(command)
    call.details({"job": job.id, "state": job.state, "code": job.code, "path": job.path})
    head = f"[background job {job.id} {how(job)}]"
    printed, _ = await printed_by(call, job)
    notes = [f"[see its output with jobs(id={job.id}), end it with job_kill(id={job.id})]"] if job.live else []
    if job.live and job.path:
        notes.append(f"[its output goes to {job.path}]")
    return "\n".join([head, *([printed] if printed else []), *notes])


def report(printed: str, ended: Exit) -> str:
    """What the model is told of a command that ended by itself."""
    notes: list[str] = []
    if printed and sum(printed.count(sign) for sign in "\ufffd\u2400") > len(printed) * BINARY_SHARE:
        notes.append("[the output is binary: what is no text is shown as \ufffd and \u2400]")
    notes += _whole(ended)
    if ended.capped:
        notes.append("[it printed more than it may, and was ended for that]")
    if ended.running:
        left = ", ".join(ended.running)
        notes.append(f"[still running after the command, and ended with it: {left}; background=true lets one run on]")
    if ended.held:
        notes.append("[a background process still holds the output: what it prints is not seen]")
    if ended.stuck:
        notes.append(f"[could not be ended and may still run: {_processes(ended.stuck)}]")
    notes.append(f"[exit code {ended.code}{_signal(ended)}]")
    if not printed:
        printed = "[no output]"
    return "\n".join([printed.removesuffix("\n"), *notes])


def _whole(ended: Exit) -> list[str]:
    """Where the output is that is too long to be shown."""
    if ended.spill is None:
        return []
    what = "all of the output" if ended.spilled == ended.total_bytes else f"its first {ended.spilled:,} bytes"
    return [f"[{what} can be read and searched in {ended.spill}]"]


def _signal(ended: Exit) -> str:
    """The name of the signal that a code above 128 stands for."""
    if ended.signal is None:
        return ""
    try:
        return f": {signal.Signals(ended.signal).name}"
    except ValueError:
        return ""


def _processes(pids: tuple[int, ...]) -> str:
    more = f" and {len(pids) - 10} more" if len(pids) > 10 else ""
    return f"process {', '.join(str(pid) for pid in pids[:10])}{more}"
