"""The tool `bash`: one shell command, its output and its exit code."""

from __future__ import annotations

from perdure.errors import SandboxError
from perdure.harness.output import LIMIT_BYTES, LIMIT_LINES, Output
from perdure.harness.registry import tool
from perdure.sandbox import Exit
from perdure.tools.context import ToolContext

#: The longest time limit that a model may ask for, and what ending a command may take on top.
MOST_SECONDS = 600.0
ENDING = 5.0
#: So much of a text is what cannot be decoded: then it is no text.
BINARY_SHARE = 0.1


@tool(keep="both", runs_commands=True)
async def bash(call: ToolContext, command: str, timeout: float = 30) -> str:
    """Run a shell command. The answer is what it printed (standard output and error together) and its exit code.

    Nobody can answer it: standard input is empty, there is no terminal. Use flags that avoid questions and editors.
    What it leaves running in the background is ended with it.

    Args:
        command: The command, for bash, run in the working directory.
        timeout: Time limit in seconds, at most 600.
    """
    if not timeout > 0:
        raise SandboxError(f"timeout must be more than 0 seconds, not {timeout}")
    seconds = min(float(timeout), MOST_SECONDS)
    call.extend(seconds + ENDING)
    output = Output(LIMIT_BYTES - 1024, LIMIT_LINES - 10, keep="both")

    def show(chunk: bytes) -> None:
        output.feed(chunk)
        call.output(chunk)

    ended = await call.sandbox.run(command, timeout=seconds, output=show)
    output.close()
    call.details(
        {
            "code": ended.code,
            "timed_out": ended.timed_out,
            "running": list(ended.running),
            "stuck": list(ended.stuck),
            "bytes": output.total_bytes,
        }
    )
    if ended.timed_out:  # what it had printed was shown: the harness adds it
        stuck = f", but for {_processes(list(ended.stuck))}, which cannot be ended" if ended.stuck else ""
        raise TimeoutError(f"it was ended after {seconds:g} s, with everything that it had started{stuck}")
    return report(output.text(), ended)


def report(printed: str, ended: Exit) -> str:
    """What the model is told of a command that ended by itself."""
    notes: list[str] = []
    if printed and sum(printed.count(sign) for sign in "\ufffd\u2400") > len(printed) * BINARY_SHARE:
        notes.append("[the output is binary: what is no text is shown as \ufffd and \u2400]")
    if ended.running:
        notes.append(f"[still running after the command, and ended with it: {', '.join(ended.running)}]")
    if ended.held:
        notes.append("[a background process still holds the output: what it prints is not seen]")
    if ended.stuck:
        notes.append(f"[could not be ended and may still run: {_processes(list(ended.stuck))}]")
    notes.append(f"[exit code {ended.code}]")
    if not printed:
        printed = "[no output]"
    return "\n".join([printed.removesuffix("\n"), *notes])


def _processes(pids: list[int]) -> str:
    more = f" and {len(pids) - 10} more" if len(pids) > 10 else ""
    return f"process {', '.join(str(pid) for pid in pids[:10])}{more}"
