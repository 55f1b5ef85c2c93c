"""Background jobs: they outlive runs and aborts, are limited, end with their process, and are told of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from perdure.app.opening import open_session
from perdure.errors import NotFound, SandboxError, UsageError
from perdure.harness.harness import Settings
from perdure.harness.job import ENDED_KEPT, JOBS
from perdure.messages import text_of
from perdure.records import Aborted, Completed, Failed
from perdure.sandbox import Exit
from perdure.testing.scripted import answer, call, hang, say, wait
from perdure.tools.builtins import BUILTINS

pytestmark = pytest.mark.anyio


class Command:
    """A command that ends when a test says so."""

    def __init__(self, number: int, command: str) -> None:
        self.id = str(number)
        self.command = command
        self.path = f"/scratch/{number}.txt"
        self.exit: Exit | None = None
        self.printed = b""
        self._over: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    @property
    def total_bytes(self) -> int:
        return len(self.printed)

    def end(self, code: int = 0, **more: Any) -> None:
        if self.exit is None:
            self.exit = Exit(code=code, seconds=2.0, **more)
            self._over.set_result(self.exit)

    async def read(self, offset: int = 0, limit: int = 65536) -> tuple[int, bytes]:
        begin = max(0, len(self.printed) + offset) if offset < 0 else offset
        return begin, self.printed[begin : begin + limit]

    async def wait(self) -> Exit:
        return await asyncio.shield(self._over)

    async def stop(self) -> Exit:
        self.end(143)
        return await self.wait()


class Commands:
    """As much of a sandbox as jobs need."""

    id = "test"
    root = "/"

    def __init__(self) -> None:
        self.started: list[Command] = []
        self.limits: list[Any] = []
        self.refuses: str | None = None
        self.ends_at_once: Callable[[Command], None] | None = None

    async def isolation(self) -> str:
        return "test isolation"

    async def interrupted(self, isolation: str) -> str:
        return f"By {isolation}, it was killed."

    async def start(self, command: str, **limits: Any) -> Command:
        if self.refuses is not None:
            raise SandboxError(self.refuses)
        self.limits.append(limits)
        self.started.append(Command(len(self.started) + 1, command))
        if self.ends_at_once is not None:
            self.ends_at_once(self.started[-1])
        return self.started[-1]


@pytest.fixture
def sandbox() -> Commands:
    return Commands()


@pytest.fixture
def world(memory_world: Any) -> Any:
    """Real files and processes are the crash suite's."""
    return memory_world


async def opened(world: Any, sandbox: Commands, script: Any = None, **options: Any) -> Any:
    return await (await world.open(script, *BUILTINS, sandbox=sandbox, **options)).conversation("a")


async def notes(chat: Any) -> list[str]:
    found = [entry async for entry in chat.history() if entry.kind == "perdure.job_ended"]
    return [text_of(entry.messages[0]) for entry in found[::-1]]


async def ended(world: Any, chat: Any, id: int) -> Any:
    async def over() -> bool:
        return not (await chat.jobs.find(id)).live

    await world.until(over)
    return await chat.jobs.find(id)


async def test_a_job_runs_beside_the_conversation_and_is_listed(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)

    job = await world.running(chat.jobs.start("serve"))

    assert (job.state, job.command, job.path) == ("running", "serve", "/scratch/1.txt")
    assert [each.id for each in await chat.jobs.list()] == [job.id]
    await chat.wait_idle()
    assert not chat.busy


@pytest.mark.invariant("HA-51")
async def test_one_that_ends_is_recorded_and_the_conversation_is_told(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("make test"))

    sandbox.started[0].printed = b"1 failed\n"
    sandbox.started[0].end(2)

    found = await ended(world, chat, job.id)
    assert (found.state, found.code, found.seconds, found.bytes, found.tail) == ("ended", 2, 2.0, 9, "1 failed\n")
    assert await notes(chat) == [
        f"[Background job {job.id} ended with exit code 2 after 2.0 s: make test]\nThe end of its output:\n1 failed\n"
    ]
    assert await world.session.wait_task(job.id) == Completed(result={"state": "ended", "code": 2, "bytes": 9})


async def test_the_next_request_has_what_the_conversation_was_told(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox, [say("well")])
    job = await world.running(chat.jobs.start("make"))
    sandbox.started[0].end()
    await ended(world, chat, job.id)

    await world.running((await chat.submit("go on")).wait())

    (request,) = world.strict[-1].inner.requests
    assert [text_of(message) for message in request.messages] == [
        f"[Background job {job.id} ended with exit code 0 after 2.0 s: make]",
        "go on",
    ]


async def test_one_that_fails_at_once_is_known_when_start_returns(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    sandbox.ends_at_once = lambda command: command.end(127)

    job = await world.running(chat.jobs.start("nonsense"))

    assert (job.state, job.code) == ("ended", 127)


async def test_one_that_cannot_be_started_says_why(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    sandbox.refuses = "no directory of that name"

    job = await world.running(chat.jobs.start("x"))

    assert (job.state, job.detail) == ("failed", "no directory of that name")
    assert isinstance(await world.session.wait_task(job.id), Failed)


@pytest.mark.invariant("HA-52")
async def test_an_abort_of_the_run_leaves_jobs_alone(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox, hang())
    job = await world.running(chat.jobs.start("serve"))
    await chat.submit("x")

    await world.running(chat.abort())

    assert (await chat.jobs.find(job.id)).live
    assert sandbox.started[0].exit is None


async def test_an_abort_across_the_background_ends_them_and_tells_why(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("serve"))

    await world.running(chat.abort(background=True, reason="enough"))

    found = await chat.jobs.find(job.id)
    assert (found.state, found.code, found.detail) == ("stopped", 143, "enough")
    assert sandbox.started[0].exit is not None
    assert await notes(chat) == [f"[Background job {job.id} was stopped after 2.0 s (enough): serve]"]
    assert isinstance(await world.session.wait_task(job.id), Aborted)


async def test_one_that_is_stopped_while_it_starts_is_stopped(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    never: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
    sandbox.start = lambda command, **limits: never  # type: ignore[method-assign]
    starting = asyncio.ensure_future(chat.jobs.start("serve"))

    async def known() -> bool:
        return bool(await chat.jobs.list())

    await world.until(known)
    await world.running(chat.abort(background=True, reason="enough"))

    job = await world.running(starting)
    assert (job.state, job.detail) == ("stopped", "enough")


async def test_a_job_that_a_call_stopped_is_no_news(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("serve"))

    stopped = await world.running(chat.jobs.stop(job.id))

    assert (stopped.state, stopped.code) == ("stopped", 143)
    assert await notes(chat) == []
    assert await world.running(chat.jobs.stop(job.id)) == stopped


async def test_no_more_run_than_the_setting_says(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox, settings=Settings(max_jobs=2))
    one, two = [await world.running(chat.jobs.start("x")) for _ in range(2)]

    with pytest.raises(
        SandboxError, match=f"2 background jobs run, which is the limit: stop one of {one.id}, {two.id}"
    ):
        await world.running(chat.jobs.start("x"))

    sandbox.started[0].end()
    await ended(world, chat, one.id)
    await world.running(chat.jobs.start("x"))


async def test_those_of_a_process_that_died_do_not_count_as_running(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox, settings=Settings(max_jobs=2))
    for _ in range(2):
        await world.running(chat.jobs.start("x"))

    chat = await (await world.restart()).conversation("a")
    three, four = [await world.running(chat.jobs.start("x")) for _ in range(2)]

    assert [job.state for job in await chat.jobs.list()] == ["interrupted", "interrupted", "running", "running"]
    with pytest.raises(SandboxError, match=f"stop one of {three.id}, {four.id}"):
        await world.running(chat.jobs.start("x"))


async def test_time_and_output_are_limited_by_settings(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox, settings=Settings(job_seconds=100, job_bytes=8192))

    await world.running(chat.jobs.start("x"))
    await world.running(chat.jobs.start("x", seconds=5, bytes=4096))
    await world.running(chat.jobs.start("x", seconds=500, bytes=10**9))

    assert [(each["timeout"], each["keep"]) for each in sandbox.limits] == [(100, 8192), (5, 4096), (100, 8192)]


async def test_one_that_its_time_limit_ended_says_so(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("serve"))

    sandbox.started[0].end(143, timed_out=True)

    assert (await ended(world, chat, job.id)).state == "timed_out"
    assert "was ended at its time limit" in (await notes(chat))[0]


@pytest.mark.parametrize("setting, value", [("max_jobs", -1), ("job_seconds", 0), ("job_bytes", 10)])
async def test_a_limit_that_is_none_is_refused(world: Any, sandbox: Commands, setting: str, value: int):
    chat = await opened(world, sandbox)

    with pytest.raises(UsageError, match=f"setting {setting}={value}: it must be at least"):
        await chat.configure(**{setting: value})


async def test_output_is_read_from_where_one_left_off(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("serve"))
    sandbox.started[0].printed = b"one\n"
    first = await chat.jobs.read(job.id)

    sandbox.started[0].printed += b"two\n"

    assert first.content == b"one\n"
    assert await chat.jobs.read(job.id, offset=first.end) == (4, 8, 8, b"two\n")
    assert (await chat.jobs.find(job.id)).bytes == 8


async def test_a_wait_ends_with_the_job_or_with_its_time(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("make"))

    assert (await world.running(chat.jobs.wait(job.id, 5))).live
    waiting = asyncio.ensure_future(chat.jobs.wait(job.id, 10_000))
    sandbox.started[0].end()

    assert (await world.running(waiting)).state == "ended"
    assert world.clock.now() < 1100


async def test_a_job_that_is_none_names_those_there_are(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("x"))
    other = await world.session.conversation("b")

    with pytest.raises(NotFound, match=f"no background job 999 in this conversation; there are: {job.id}"):
        await chat.jobs.find(999)
    with pytest.raises(NotFound, match="there are: none"):
        await other.jobs.stop(job.id)


async def test_of_those_that_ended_the_newest_are_remembered(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    serves = await world.running(chat.jobs.start("serve"))
    sandbox.ends_at_once = lambda command: command.end()

    for _ in range(ENDED_KEPT + 5):
        await world.running(chat.jobs.start("x"))

    jobs = await chat.jobs.list()
    assert len(jobs) == ENDED_KEPT + 1
    assert jobs[0].id == serves.id


async def test_a_fork_has_no_jobs(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox, [say("well")])
    await world.running(chat.jobs.start("serve"))
    settled = await world.running((await chat.submit("x")).wait())

    fork = await chat.fork(settled.answer.id)

    assert await fork.jobs.list() == []


# -- the process ends ---------------------------------------------------------------------------


@pytest.mark.invariant("HA-50")
async def test_after_a_crash_a_job_is_interrupted_with_what_is_proved_and_does_not_run_again(
    world: Any, sandbox: Commands
):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("serve"))
    sandbox.started[0].printed = b"listening\n"
    await world.clock.advance(5)

    session = await world.restart()
    chat = await session.conversation("a")
    assert (await chat.jobs.find(job.id)).state == "running"  # nothing looked yet
    await session.resume()

    found = await ended(world, chat, job.id)
    assert (found.state, found.tail) == ("interrupted", "listening\n")
    assert found.detail == "The process that held it ended while it ran. By test isolation, it was killed."
    assert len(sandbox.started) == 1
    assert (await chat.jobs.read(job.id)).content == b"listening\n"
    (told,) = await notes(chat)
    assert told.startswith(f"[Background job {job.id} was interrupted (The process that held it ended while it ran.")


async def test_a_close_ends_jobs_and_the_next_start_says_so(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("serve"))

    await world.running(world.close())

    assert sandbox.started[0].exit is not None
    session = await world.reopen()
    await session.resume()
    assert (await ended(world, await session.conversation("a"), job.id)).state == "interrupted"


async def test_an_owner_that_lost_its_session_ends_its_jobs_as_soon_as_it_learns_of_it(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    await world.running(chat.jobs.start("serve"))
    storage = world.memory.reopened()
    other = await open_session(
        storage, "main", clock=world.clock, telemetry=world.telemetry, model=None, take_over=True
    )

    await world.running(sandbox.started[0].wait())

    assert sandbox.started[0].exit is not None
    await other.close()
    await storage.close()


async def test_one_that_was_marked_before_a_crash_is_stopped_afterwards(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("serve"))
    async with chat.commit() as tx:
        tx.abort_task(job.id, "enough")

    session = await world.restart()
    await session.resume()

    chat = await session.conversation("a")
    found = await ended(world, chat, job.id)
    assert found.state == "stopped"


# -- waking the conversation --------------------------------------------------------------------


@pytest.mark.invariant("HA-51")
async def test_where_the_setting_says_so_one_that_ends_asks_the_model_once(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox, [say("I see")], settings=Settings(job_wakes=True))
    job = await world.running(chat.jobs.start("make"))

    sandbox.started[0].end(2)
    await ended(world, chat, job.id)
    await world.running(chat.wait_idle())

    found = [text_of(message) async for entry in chat.history() for message in entry.messages][::-1]
    assert found == [f"[Background job {job.id} ended with exit code 2 after 2.0 s: make]", "I see"]
    assert await notes(chat) == []


async def test_one_that_ends_during_a_run_joins_it_after_the_round(world: Any, sandbox: Commands):
    asked = asyncio.Event()
    chat = await opened(
        world,
        sandbox,
        [answer(wait(asked), call("jobs", {})), say("all seen")],
        settings=Settings(job_wakes=True),
    )
    job = await world.running(chat.jobs.start("make"))
    await chat.submit("go on")

    sandbox.started[0].end()
    await ended(world, chat, job.id)
    asked.set()
    await world.running(chat.wait_idle())

    assert len(world.strict[-1].inner.requests) == 2
    assert text_of(world.strict[-1].inner.requests[-1].messages[-1]).startswith(f"[Background job {job.id} ended")


async def test_one_that_ended_with_its_process_asks_at_the_next_start(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox, [say("I see")], settings=Settings(job_wakes=True))
    await world.running(chat.jobs.start("make"))

    session = await world.restart()
    await session.resume()
    chat = await session.conversation("a")
    await world.until(lambda: not session.inspect().tasks)
    session = await world.restart()
    await session.resume()

    found = [
        text_of(message) async for entry in (await session.conversation("a")).history() for message in entry.messages
    ]
    assert [text.split(" (")[0] for text in found] == [
        "I see",
        f"[Background job {found[1].split()[2]} was interrupted",
    ]


async def test_one_that_somebody_stopped_wakes_nobody(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox, settings=Settings(job_wakes=True))
    job = await world.running(chat.jobs.start("make"))

    await world.running(chat.jobs.stop(job.id, "enough"))

    assert not chat.busy
    assert len(await notes(chat)) == 1


# -- as tools -----------------------------------------------------------------------------------


async def test_a_model_starts_looks_at_and_ends_a_job(world: Any, sandbox: Commands):
    number = 0

    def started(request: Any) -> Any:
        sandbox.started[0].printed = b"listening\n"
        return call("jobs", {})

    async def first_id() -> int:
        nonlocal number
        number = next((job.id for job in await chat.jobs.list()), 0)
        return number

    look = lambda request: call("jobs", {"id": number})  # noqa: E731
    kill = lambda request: call("job_kill", {"id": number})  # noqa: E731
    script = [call("bash", {"command": "serve", "background": True}), started, look, kill, say("done")]
    chat = await opened(world, sandbox, script)

    submission = await chat.submit("x")
    await world.until(first_id)
    await world.running(submission.wait())

    found = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"][::-1]
    assert [message.text for message in found] == [
        f"[background job {number} runs]\n[see its output with jobs(id={number}), end it with job_kill(id={number})]\n"
        "[its output goes to /scratch/1.txt]",
        f"{number}: runs, 10 bytes printed: serve",
        f"[job {number} runs]\nlistening\n[for what comes next: offset=10]",
        f"[job {number} was stopped after 2.0 s (stopped by a call)]",
    ]
    assert await notes(chat) == []


async def test_the_document_is_what_other_processes_read(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)
    job = await world.running(chat.jobs.start("serve"))

    value = await chat.snapshot(JOBS)

    assert value[str(job.id)]["state"] == "running"
    assert msgspec.to_builtins(job)["command"] == value[str(job.id)]["command"]


async def test_of_a_long_command_only_the_beginning_is_remembered(world: Any, sandbox: Commands):
    chat = await opened(world, sandbox)

    job = await world.running(chat.jobs.start("x" * 100_000))

    assert job.command == "x" * 2000 + "[… 98,000 more characters]"
    assert sandbox.started[0].command == "x" * 100_000
