"""The background jobs of one conversation: start, list, read and stop them, for tools and for people."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.errors import NotFound, SandboxError
from perdure.harness.job import JOB, JOBS, MOST_COMMAND, STOPPED_BY_CALL, Job, jobs_in
from perdure.harness.output import clip
from perdure.records import ConversationId, Held, TaskId
from perdure.sandbox import Background
from perdure.session.line import Commit
from perdure.session.reading import snapshot
from perdure.tasks.transaction import TaskTransaction
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness

#: How long whoever starts a job waits to see it fail at once, in seconds.
GLANCE = 0.3


class JobOutput(NamedTuple):
    """A part of what a job printed. `end` is where to go on; `begin` is where `content` begins: older may be gone."""

    begin: int
    end: int
    total: int
    content: bytes


class Jobs:
    """Background jobs of a conversation. Starting one needs a sandbox, everything else only its record."""

    def __init__(
        self, harness: Harness, conversation: ConversationId, commit: Callable[[], Commit[TaskTransaction]]
    ) -> None:
        self._harness = harness
        self._conversation = conversation
        self._commit = commit

    async def start(
        self, command: str, *, seconds: float | None = None, bytes: int | None = None, cwd: str | None = None
    ) -> Job:
        """Run a shell command in the background; returns when it runs, or has ended already. Its intent is durable.

        It outlives the run and ends with the process that owns the session. `seconds` and `bytes` are its limits of
        time and of output that is kept, by default those of the settings. Raises SandboxError where there are too many.
        """
        harness = self._harness
        if harness.sandbox is None:
            raise SandboxError("this session has no sandbox: open it with a directory")
        if seconds is not None and not seconds > 0:
            raise SandboxError(f"a job's time limit is more than 0 seconds, not {seconds!r}")
        isolation = await harness.sandbox.isolation()
        await self._those_of_the_dead_settled()
        async with self._commit() as tx:
            settings = await harness.settings(tx, self._conversation)
            running = [task.id for task in tx.candidate.scope(self._conversation) if task.kind == JOB]
            if len(running) >= settings.max_jobs:
                raise SandboxError(
                    f"{len(running)} background jobs run, which is the limit: stop one of "
                    f"{', '.join(map(str, running))}, or wait for its end"
                )
            given = {
                "command": clean_text(command),
                "seconds": settings.job_seconds if seconds is None else min(seconds, settings.job_seconds),
                "bytes": settings.job_bytes if bytes is None else min(bytes, settings.job_bytes),
                "cwd": cwd if settings.directory is None else str(PurePosixPath(settings.directory, cwd or "")),
                "isolation": isolation,
            }
            home = await tx.use(self._conversation)
            task = tx.create_task(harness.job_task, given, owner=home, background=True, intent="unsafe")
            known = await tx.doc(JOBS, self._conversation)
            known[str(task.id)] = {
                "command": clip(clean_text(command), MOST_COMMAND),
                "state": "starting",
                "at": tx.now,
            }
        await self._begun(task.id)
        return await self.find(task.id)

    async def _begun(self, id: TaskId) -> None:
        """Until it runs, and a moment longer: what fails at once is told at once."""
        harness = self._harness
        commands, beginning = harness.job_task.commands, harness.job_task.beginning
        published = harness.line.memory
        beginning.add(id)
        try:
            await harness.scheduler.until(lambda: id in commands or id not in published.published.tasks)
        finally:
            beginning.discard(id)
        if id in commands:
            await self._while(commands[id], GLANCE)
        if id in commands and commands[id].exit is not None:
            await harness.scheduler.until(lambda: id not in published.published.tasks, about=id)

    async def _those_of_the_dead_settled(self) -> None:
        """Jobs of a process that died count as running until they are settled, which only a scheduler that runs does.

        A new one is not to be refused for their sake.
        """
        job_task, memory = self._harness.job_task, self._harness.line.memory

        def settled() -> bool:
            return not any(
                task.kind == JOB
                and task.conversation == self._conversation
                and task.id not in job_task.commands
                and task.id not in job_task.beginning
                and not isinstance(task.state, Held)
                for task in memory.published.tasks.values()
            )

        if not settled():
            await self._harness.scheduler.until(settled)

    async def list(self) -> list[Job]:
        """Those that run, and the newest that ended, oldest first."""
        jobs = jobs_in(await snapshot(self._harness.line, JOBS, self._conversation, ""))
        return [self._fresh(job) for job in jobs]

    async def find(self, id: int) -> Job:
        """A job by its id. Raises NotFound naming what there is."""
        jobs = await self.list()
        found = next((job for job in jobs if job.id == id), None)
        if found is None:
            known = ", ".join(str(job.id) for job in jobs) or "none"
            raise NotFound(f"no background job {id} in this conversation; there are: {known}")
        return found

    async def read(self, id: int, *, offset: int = -32768, limit: int = 32768) -> JobOutput:
        """What a job printed from a position on, or (negative) from so far before the end. Raises NotFound.

        Of a job of an earlier process, all that is left is the end that was committed.
        """
        job = await self.find(id)
        command = self._harness.job_task.commands.get(TaskId(id))
        if command is None:
            content = job.tail.encode()
            return JobOutput(max(0, job.bytes - len(content)), job.bytes, job.bytes, content)
        begin, content = await command.read(offset, limit)
        return JobOutput(begin, begin + len(content), command.total_bytes, content)

    async def wait(self, id: int, seconds: float) -> Job:
        """The job once it has ended, or as it is after so many seconds. Raises NotFound."""
        job = await self.find(id)
        command = self._harness.job_task.commands.get(TaskId(id))
        if job.live and command is not None:
            await self._while(command, seconds)
            if command.exit is not None:
                published = self._harness.line.memory
                await self._harness.scheduler.until(lambda: TaskId(id) not in published.published.tasks, about=id)
        return await self.find(id)

    async def stop(self, id: int, reason: str = STOPPED_BY_CALL) -> Job:
        """End a job with all that it started; as it is where it has ended. Raises NotFound."""
        await self.find(id)
        async with self._commit() as tx:
            tx.abort_task(TaskId(id), reason)
        published = self._harness.line.memory
        await self._harness.scheduler.until(lambda: TaskId(id) not in published.published.tasks, about=id)
        return await self.find(id)

    def _fresh(self, job: Job) -> Job:
        """With what was printed since it was last committed."""
        command = self._harness.job_task.commands.get(TaskId(job.id))
        if command is None or not job.live:
            return job
        return msgspec.structs.replace(job, bytes=command.total_bytes)

    async def _while(self, command: Background, seconds: float) -> None:
        """Until it ends, or the time is over."""
        waiting = asyncio.ensure_future(command.wait())
        sleeping = asyncio.ensure_future(self._harness.clock.sleep(seconds))
        try:
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()
