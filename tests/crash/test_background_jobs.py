"""The owner of a background job is killed, or closes: nothing of the job is left, and the next start tells it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.sandbox.scenarios import Numbers, glance

import perdure
from perdure.harness.job import Job
from perdure.messages import text_of
from perdure.records import Failed
from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.probing import try_out
from perdure.sandboxes.strategies import NAMES, named
from perdure.testing.crash import Point, count_points
from perdure.testing.processes import Child, run_child

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
OWNER = Path(__file__).with_name("job_owner.py")
#: Unlike the numbers of any other test that runs now.
FIRST = 20_000_000 + os.getpid() * 1000
#: It says "ready", holds the output, leaves its session, drops its environment, and ignores what would end it.
MANY = "env -i setsid -f sleep {n}; trap '' TERM HUP; setsid sleep {n} & sleep {n} & echo ready; sleep {n}"
#: As much as a process group can be held to.
GROUPED = "trap '' TERM HUP; sleep {n} & echo ready; sleep {n}"


class Owner:
    """See job_owner.py."""

    def __init__(self, child: Child, directory: Path, strategy: str, number: str) -> None:
        self.child = child
        self.directory = directory
        self.strategy = strategy
        self.number = number
        self.job = int(child.read_line().split()[1])

    def left(self, seconds: float = 5.0) -> list[int]:
        """What lives of the job, once some time was given to the kernel."""
        until = time.monotonic() + seconds
        while (alive := self.alive()) and time.monotonic() < until:
            glance()
        return alive

    def alive(self) -> list[int]:
        return Numbers(0).alive({self.number: ""}).get(self.number, [])

    async def next_start(self) -> tuple[Job, str]:
        """What the next owner makes of the job; and what the conversation is told."""
        sandbox = LocalSandbox(self.directory / "work", isolation=self.strategy)
        async with perdure.open(str(self.directory / "store.db"), model=None, sandbox=sandbox) as session:
            assert isinstance(await session.wait_task(self.job), Failed)
            chat = await session.root()
            (told,) = [entry async for entry in chat.history() if entry.kind == "perdure.job_ended"]
            job = await chat.jobs.find(self.job)
        await sandbox.close()
        return job, text_of(told.messages[0])


@pytest.fixture
def owner(place: Callable[[], Path]) -> Iterator[Callable[[str], Owner]]:
    numbers = itertools.count(FIRST)
    with contextlib.ExitStack() as stack:

        def start(strategy: str) -> Owner:
            known = named(strategy)
            assert known is not None
            finding = try_out(known)
            if not finding.works:
                pytest.skip(f"{strategy} does not work here: {finding.reason}")
            number, directory = str(next(numbers)), place()
            directory.mkdir(parents=True)
            stack.callback(shutil.rmtree, directory)
            command = (GROUPED if strategy == "pgroup" else MANY).replace("{n}", number)
            child = stack.enter_context(Child([sys.executable, str(OWNER), str(directory), strategy, command]))
            return Owner(child, directory, strategy, number)

        yield start


@pytest.mark.invariant("HA-50", "HA-52")
@pytest.mark.parametrize("strategy", NAMES)
async def test_when_its_owner_is_killed_nothing_of_a_job_is_left_and_the_next_start_says_that_it_was_interrupted(
    owner: Callable[[str], Owner], strategy: str
) -> None:
    one = owner(strategy)
    assert one.alive()

    os.kill(one.child.pid, signal.SIGKILL)

    assert one.left() == []
    assert one.child.wait().killed
    job, told = await one.next_start()
    assert (job.state, job.tail) == ("interrupted", "ready\n")
    assert job.detail.startswith(
        "The process that held it ended while it ran. What it had started may still be running."
        if strategy == "pgroup"
        else "The process that held it ended while it ran. The command and everything it had started were killed with"
    )
    assert told.startswith(f"[Background job {job.id} was interrupted (The process that held it ended")


@pytest.mark.parametrize("strategy", NAMES)
async def test_a_session_that_closes_ends_its_jobs_and_the_next_start_says_so(
    owner: Callable[[str], Owner], strategy: str
) -> None:
    one = owner(strategy)

    one.child.write_line("close")
    assert one.child.read_line() == "closed"

    assert one.left(0.5) == []
    assert one.child.wait().code == 0
    job, _ = await one.next_start()
    assert job.state == "interrupted"


async def judged(directory: Path, started: list[int]) -> None:
    """The next start settles every job that was told to have been started, once, and none ran twice."""
    sandbox = LocalSandbox(directory / "work")
    async with perdure.open(str(directory / "store.db"), model=None, sandbox=sandbox) as session:
        await session.resume()
        await session.until(lambda: not session.inspect().tasks)
        chat = await session.root()
        jobs = await chat.jobs.list()
        told = [entry.data["job"] async for entry in chat.history() if entry.kind == "perdure.job_ended"]
    await sandbox.close()
    assert {job.state for job in jobs} <= {"ended", "stopped", "interrupted"}
    assert set(started) <= {job.id for job in jobs}
    assert sorted(told) == [job.id for job in jobs if job.state != "stopped"]
    ran = (directory / "work/ran").read_text().splitlines() if (directory / "work/ran").exists() else []
    assert len(ran) == len(set(ran)) <= len(jobs)


@pytest.mark.timeout(600)
@pytest.mark.invariant("HA-50", "HA-51")
async def test_wherever_the_owner_is_killed_each_job_runs_at_most_once_and_its_end_is_told_once(
    place: Callable[[], Path], crash_form: str, record_property: Callable[[str, object], None]
) -> None:
    number = str(FIRST + 500)
    base = place()

    def argv(directory: Path) -> list[str]:
        directory.mkdir(parents=True, exist_ok=True)
        return [sys.executable, str(OWNER), str(directory), "life", number]

    writes = count_points(argv(base / "whole")).writes
    every = 1 if crash_form == "full" else max(1, writes // 8)
    points = [Point("write", at) for at in range(1, writes + 1, every)]
    points += [Point(f"perdure.job.{event}", at) for event in ("begun", "ended") for at in (1, 2)]
    kills = 0
    for point in points:
        directory = base / point.slug
        exit = run_child(argv(directory), point.environment())
        kills += exit.killed
        assert exit.left == ()
        if (directory / "store.db").exists():
            await judged(directory, [int(line.split()[1]) for line in exit.lines])
    record_property("crash: points", kills)
    assert kills >= 5
    shutil.rmtree(base)
