"""`perdure jobs`, beside an owner and after it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import perdure
from perdure.cli import cli
from perdure.tools.builtins import BUILTINS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def invoke(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["jobs", *args])
    return done.exit_code, done.output


def read_until(job: str, text: str) -> None:
    """Its output comes when it comes; the test ends by its time limit where it never does."""
    while invoke("read", job) != (0, text):
        pass


async def test_a_job_is_listed_read_and_ended_from_another_place(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    registry = perdure.Registry([perdure.Extension(name="all", tools=list(BUILTINS))])
    async with perdure.open(".perdure/store.db", registry=registry, directory=str(tmp_path)) as session:
        chat = await session.conversation("till")
        job = await chat.jobs.start("echo begun; sleep 60")
        await asyncio.to_thread(read_until, str(job.id), "begun\n")
        code, listed = await asyncio.to_thread(invoke, "list")
        assert (code, listed.startswith(f"till  {job.id}: ")) == (0, True)
        assert "the owner of the session is gone" not in listed
        _, lines = await asyncio.to_thread(invoke, "list", "--json")
        assert msgspec.json.decode(lines)["job"]["command"] == "echo begun; sleep 60"
        assert (await asyncio.to_thread(invoke, "kill", str(job.id)))[1] == f"job {job.id} is being ended\n"
        await session.wait_task(job.id)
    assert "begun" in (await asyncio.to_thread(invoke, "read", str(job.id)))[1]
    code, said = await asyncio.to_thread(invoke, "kill", "999")
    assert (code, "no job 999" in said) == (2, True)


async def test_a_job_that_ended_with_its_session_is_not_listed_as_one_that_runs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    registry = perdure.Registry([perdure.Extension(name="all", tools=list(BUILTINS))])
    async with perdure.open(".perdure/store.db", registry=registry, directory=str(tmp_path)) as session:
        job = await (await session.conversation("till")).jobs.start("sleep 60")
    _, listed = await asyncio.to_thread(invoke, "list")
    assert listed == (f"till  {job.id}: was interrupted (it ended with the process that owned the session): sleep 60\n")
    assert msgspec.json.decode((await asyncio.to_thread(invoke, "list", "--json"))[1])["runs"] is False
    assert "a number, see perdure jobs list" in invoke("kill", "x")[1]
