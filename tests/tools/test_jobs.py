"""The tools `jobs` and `job_kill`, and `bash` in the background with a real command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import NotFound, SandboxError
from perdure.harness.job import Job
from perdure.harness.jobs import JobOutput
from perdure.harness.registry import Extension, Registry
from perdure.messages import text_of
from perdure.sandboxes.local import LocalSandbox
from perdure.testing.scripted import ScriptedModel, call, say
from perdure.tools.builtins import BUILTINS
from perdure.tools.jobs import job_kill, jobs

pytestmark = pytest.mark.anyio


class Known:
    """Jobs of a conversation, as they are said to be."""

    def __init__(self, printed: bytes = b"", *, kept_from: int = 0, **about: Any) -> None:
        self.job = Job(id=7, command="make\nall", at=0, **{"state": "running", **about})
        self.printed = printed
        self.kept_from = kept_from
        self.waited: float | None = None

    async def list(self) -> list[Job]:
        return [self.job, Job(id=9, command="x" * 500, state="ended", code=1, seconds=2.0, at=0, bytes=5)]

    async def wait(self, id: int, seconds: float) -> Job:
        if id != self.job.id:
            raise NotFound(f"no background job {id} in this conversation; there are: 7, 9")
        self.waited = seconds
        return self.job

    async def read(self, id: int, *, offset: int, limit: int) -> JobOutput:
        begin = max(self.kept_from, len(self.printed) + offset if offset < 0 else offset)
        content = self.printed[begin : begin + limit]
        return JobOutput(begin, begin + len(content), len(self.printed), content)

    async def stop(self, id: int) -> Job:
        return Job(id=id, command="make", state="stopped", code=143, seconds=1.5, at=0, detail="stopped by a call")


async def test_jobs_are_listed_the_newest_first_in_a_line_each(call: Any) -> None:
    call.jobs = Known()

    assert (await jobs(call)).split("\n") == [
        f"9: ended with exit code 1 after 2.0 s, 5 bytes printed: {'x' * 100}[… 400 more characters]",
        "7: runs: make all",
    ]


async def test_one_is_shown_with_its_output_and_where_to_go_on(call: Any) -> None:
    call.jobs = Known(b"one\ntwo\n")

    assert await jobs(call, id=7) == "[job 7 runs]\none\ntwo\n[for what comes next: offset=8]"
    assert await jobs(call, id=7, offset=4) == "[job 7 runs]\ntwo\n[for what comes next: offset=8]"
    assert await jobs(call, id=7, offset=8) == "[job 7 runs]\n[no output]\n[for what comes next: offset=8]"


async def test_of_much_output_the_newest_whole_lines_are_shown_and_the_rest_is_reached_by_offset(call: Any) -> None:
    call.jobs = Known(b"".join(b"%07d\n" % n for n in range(100_000)), state="ended", code=0)

    newest = await jobs(call, id=7)
    assert re.match(r"\[job 7 ended with exit code 0\]\n\[… [\d,]+ (lines|bytes)", newest)
    assert newest.endswith("\n0099998\n0099999")

    shown, offset = "", "0"
    while offset:
        text = await jobs(call, id=7, offset=int(offset))
        page, _, offset = text.partition("\n")[2].partition("\n[there are 800,000 bytes; go on with offset=")
        shown, offset = f"{shown}{page}\n", offset.rstrip("]")
    assert shown.encode() == call.jobs.printed


async def test_output_that_is_not_kept_any_more_is_said_to_be_gone(call: Any) -> None:
    call.jobs = Known(b"x" * 100 + b"\n", kept_from=50)

    assert "[bytes 10 to 50 are not kept any more]" in await jobs(call, id=7, offset=10)


async def test_a_wait_gives_the_call_the_time_for_it(call: Any) -> None:
    call.jobs = Known()

    await jobs(call, id=7, wait=10_000)

    assert (call.jobs.waited, call.seconds) == (600, 605)
    with pytest.raises(SandboxError, match="wait must be 0 seconds or more"):
        await jobs(call, id=7, wait=-1)


@pytest.mark.parametrize("tool", [jobs, job_kill])
async def test_a_job_that_is_none_is_an_error_that_names_those_there_are(call: Any, tool: Any) -> None:
    call.jobs = Known()

    with pytest.raises(SandboxError, match="no background job 8 in this conversation; there are: 7, 9"):
        await tool(call, id=8)


async def test_one_is_ended_and_one_that_had_ended_is_said_to_have(call: Any) -> None:
    call.jobs = Known()
    assert await job_kill(call, id=7) == "[job 7 was stopped after 1.5 s (stopped by a call)]"

    call.jobs = Known(state="ended", code=0)
    assert await job_kill(call, id=7) == "[job 7 ended with exit code 0]\n[it had ended before]"


@pytest.mark.slow
async def test_a_real_command_goes_on_beside_the_calls_and_its_output_can_be_read(root: Path) -> None:
    told: list[Any] = []

    def then(name: str, arguments: Any) -> Any:
        def script(request: Any) -> Any:
            told.append(request.messages[-1].text)
            (number,) = re.findall(r"background job (\d+)", told[0])
            (path,) = re.findall(r"its output goes to (.*)\]", told[0])
            return call(name, arguments(int(number), path))

        return script

    script = [
        call(
            "bash",
            {"command": "echo ready; touch here; while [ -e here ]; do sleep 0.05; done; exit 3", "background": True},
        ),
        then("read", lambda number, path: {"path": path}),
        then("bash", lambda number, path: {"command": f"cat {path}; rm here"}),
        then("jobs", lambda number, path: {"id": number, "wait": 20}),
        say("done"),
    ]
    sandbox = LocalSandbox(root)
    registry = Registry([Extension(name="tools", tools=BUILTINS)])
    async with perdure.open("memory:", model=ScriptedModel(script), registry=registry, sandbox=sandbox) as session:
        chat = await session.root()
        await (await chat.submit("go")).wait()
        results = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"][::-1]
    await sandbox.close()

    texts = [text_of(message) for message in results]
    assert "ready" in texts[0]
    assert texts[1:3] == ["ready\n", "ready\n[exit code 0]"]
    assert re.fullmatch(r"\[job \d+ ended with exit code 3 after [\d.]+ s\]\nready", texts[3])
