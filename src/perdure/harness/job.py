"""The job task: one command that runs beside the work of its conversation, and what is known of it (R8).

A background task that the conversation owns: it outlives the run that started it and an abort of that run (K30, K32).
The command is held by this process and ends with it: after a crash the task settles as interrupted, with what the
isolation of the sandbox proves (R9). It never runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perdure.errors import InboxFull, SandboxError, StorageRejected, TaskRefused
from perdure.harness.output import clip
from perdure.harness.submissions import submit_input
from perdure.messages import user
from perdure.records import Completed, TaskId
from perdure.sandbox import Background, Exit
from perdure.session.documents import declare
from perdure.session.transaction import EntryKind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import InvocationTransaction, TaskTransaction
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness

JOB = "perdure.job"
#: The entry by which a conversation learns that a job of it has ended.
JOB_ENDED = EntryKind("perdure.job_ended")
#: The jobs of a conversation by task id: those that run, and the newest ENDED_KEPT that ended. A fork has none.
JOBS = declare("perdure.jobs")
ENDED_KEPT = 50

#: How much of the end of its output is committed, in bytes: all that there is of it after a crash.
TAIL = 2000
#: The tail is committed after so many seconds, then in intervals twice as long, up to the longest.
FIRST_TAIL, LONGEST = 1.0, 60.0
#: The reason of an abort that a call asked for. The conversation is not told of what it did itself.
STOPPED_BY_CALL = "stopped by a call"
#: How much of a command is remembered of it, and how much stands in a note, in characters.
MOST_COMMAND, MOST_NOTED = 2000, 200
#: The memo of the isolation that it ran under.
ISOLATION = "perdure.isolation"

JobState = Literal["starting", "running", "ended", "failed", "timed_out", "stopped", "interrupted"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A background job as its conversation knows it.

    It `ended` by itself with `code`; `failed` never started; `interrupted` ended with the process that held it.
    `tail` is the end of its output as it was last committed, `detail` says more about how it ended.
    """

    id: int
    command: str
    state: JobState
    at: float
    seen: float | None = None  #: when it was last committed that it runs
    code: int | None = None
    seconds: float | None = None
    bytes: int = 0
    path: str | None = None  #: the file with its output, while the sandbox that ran it is open
    tail: str = ""
    detail: str = ""

    @property
    def live(self) -> bool:
        return self.state in ("starting", "running")


def jobs_in(value: Mapping[str, Any] | None) -> list[Job]:
    """The jobs of a conversation, oldest first, from a snapshot of its JOBS document."""
    found = [msgspec.convert({**record, "id": int(id)}, Job) for id, record in (value or {}).items()]
    return sorted(found, key=lambda job: job.id)


async def note(tx: TaskTransaction, task: TaskId, conversation: int, **changes: Any) -> None:
    """Change what is known of a job."""
    known = await tx.doc(JOBS, conversation)
    if str(task) in known:
        record = known[str(task)]
        for name, value in changes.items():
            if record.get(name) != value:
                record[name] = value


class JobTask(TaskDefinition, reserved=True):
    """One command. Its intent is committed with the task."""

    kind = JOB

    def __init__(self, harness: Harness | None = None) -> None:
        self._harness = harness
        #: Commands that run or ran in this process: their output can be read until the sandbox is closed.
        self.commands: dict[TaskId, Background] = {}
        #: Jobs of this process whose command is about to be there.
        self.beginning: set[TaskId] = set()

    @property
    def harness(self) -> Harness:
        assert self._harness is not None
        return self._harness

    @phase(first=True)
    async def work(self, invocation: Invocation) -> None:
        """Run the command, once."""
        if invocation.uncertain:
            detail = await self._proved(invocation)
            await self._finish(invocation, state="interrupted", detail=detail)
            return
        given = invocation.input
        try:
            sandbox = self.harness.sandbox
            if sandbox is None:
                raise SandboxError("this session has no sandbox: open it with a directory")
            await self._note_isolation(invocation, await sandbox.isolation())
            command = await sandbox.start(
                given["command"], timeout=given["seconds"], keep=given["bytes"], cwd=given["cwd"]
            )
        except SandboxError as error:
            await self._finish(invocation, state="failed", detail=clip(clean_text(str(error)), TAIL))
            return
        except asyncio.CancelledError:  # the sandbox ended what had begun
            invocation.late = Completed(result={"seconds": 0.0})
            raise
        self._keep(invocation.id, command)
        telemetry, about = self.harness.telemetry, {"task": invocation.id}
        telemetry.emit("perdure.job.begun", metadata=about)
        try:
            ended = await self._until_end(invocation, command)
        except BaseException:  # told to stop, or there is no line any more: the command ends with its task
            ended = await command.stop()
            invocation.late = Completed(result=await _facts(command, ended))
            raise
        telemetry.emit("perdure.job.ended", metadata={**about, "code": ended.code})
        state = "timed_out" if ended.timed_out else "ended"
        await self._finish(invocation, state=state, **await _facts(command, ended))

    def _keep(self, id: TaskId, command: Background) -> None:
        self.commands[id] = command
        over = [each for each, known in self.commands.items() if known.exit is not None]
        for each in over[:-ENDED_KEPT]:
            del self.commands[each]

    async def _note_isolation(self, invocation: Invocation, isolation: str) -> None:
        """The intent may be another process's, which died before it could begin."""
        if isolation != invocation.input["isolation"]:
            async with invocation.commit() as tx:
                tx.memo(ISOLATION, isolation)

    async def _until_end(self, invocation: Invocation, command: Background) -> Exit:
        """Wait for it, and commit the end of its output now and then.

        Also when nothing was printed: an owner that lost its session learns of it by a commit.
        """
        await self._progress(invocation, command)
        waiting = asyncio.ensure_future(command.wait())
        interval = FIRST_TAIL
        try:
            while True:
                sleeping = asyncio.ensure_future(self.harness.clock.sleep(interval))
                try:
                    await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    sleeping.cancel()
                if waiting.done():
                    return waiting.result()
                interval = min(interval * 2, LONGEST)
                await self._progress(invocation, command)
        finally:
            waiting.cancel()

    async def _progress(self, invocation: Invocation, command: Background) -> None:
        tail = await _tail(command)
        try:
            async with invocation.commit() as tx:
                about = {"state": "running", "path": command.path, "bytes": command.total_bytes, "tail": tail}
                await note(tx, invocation.id, invocation.conversation, seen=tx.now, **about)
                tx.progress()
        except StorageRejected:  # a full disk is no reason to end it: the next time may be better
            return

    async def _proved(self, invocation: Invocation) -> str:
        """What is known of a command that nobody saw the end of (R9)."""
        sandbox = self.harness.sandbox
        told = "The process that held it ended while it ran."
        if sandbox is None:
            return f"{told} Whether anything of it still runs is not known."
        task = self.harness.line.memory.tip.tasks.get(invocation.id)
        memos = {} if task is None else task.memos
        try:
            return f"{told} {await sandbox.interrupted(memos.get(ISOLATION, invocation.input['isolation']))}"
        except SandboxError as error:
            return f"{told} {error}"

    async def _finish(self, invocation: Invocation, *, state: JobState, **facts: Any) -> None:
        """The one outcome commit: what is known of it, and the conversation is told."""

        async def body(tx: InvocationTransaction) -> None:
            job = await _settled(tx, invocation, state, facts)
            await self._tell(tx, job)
            if state in ("interrupted", "failed"):
                tx.fail(f"{state}: {facts['detail']}")
            else:
                tx.complete({"state": state, "code": job.code, "bytes": job.bytes})

        await invocation.record(body)

    async def _tell(self, tx: InvocationTransaction, job: Job) -> None:
        """The model is told: by an entry that the next request shows, or, where the setting says so, by an input.

        Both are in the commit of the outcome, so it is told once, whatever happens (I71).
        """
        conversation = tx.own.conversation
        text = f"[Background job {job.id} {how(job)}: {clip(job.command, MOST_NOTED)}]"
        if job.tail:
            text += f"\nThe end of its output:\n{job.tail}"
        settings = await self.harness.settings(tx, conversation)
        if settings.job_wakes and job.state != "stopped":
            with suppress(InboxFull, TaskRefused):
                await submit_input(self.harness, tx, conversation, text, request_id=None, when_busy="steer")
                return
        data = {"job": job.id, "state": job.state, "code": job.code}
        tx.append(conversation, JOB_ENDED, messages=(user(text),), data=data, task=tx.own.id)

    async def abort(self, invocation: Invocation) -> None:
        """It was stopped: with its exit where this process held it, else with what is proved of it."""
        late = invocation.late
        facts: dict[str, Any] = dict(late.result) if isinstance(late, Completed) and late.result else {}
        if not facts and invocation.begun is not None and invocation.begun.attempt != invocation.attempt:
            facts = {"detail": await self._proved(invocation)}

        async def body(tx: InvocationTransaction) -> None:
            mark = tx.own.abort
            reason = "aborted" if mark is None else mark.reason
            job = await _settled(tx, invocation, "stopped", {"detail": reason, **facts})
            if reason != STOPPED_BY_CALL:
                await self._tell(tx, job)
            tx.aborted({"state": "stopped", "code": job.code, "bytes": job.bytes})

        await invocation.record(body)


async def _settled(tx: InvocationTransaction, invocation: Invocation, state: JobState, facts: dict[str, Any]) -> Job:
    """Record how it ended, and forget the oldest of those that ended."""
    await note(tx, invocation.id, invocation.conversation, state=state, **facts)
    jobs = jobs_in(await tx.snapshot(JOBS, invocation.conversation))
    over = [job.id for job in jobs if not job.live and job.id != invocation.id]
    known = await tx.doc(JOBS, invocation.conversation)
    for id in over[: max(0, len(over) + 1 - ENDED_KEPT)]:
        del known[str(id)]
    return next(job for job in jobs if job.id == invocation.id)


def how(job: Job) -> str:
    """How it is, or how it ended, in a few words."""
    lasted = "" if job.seconds is None else f" after {job.seconds:.1f} s"
    match job.state:
        case "starting" | "running":
            return "runs" if job.state == "running" else "starts"
        case "ended":
            return f"ended with exit code {job.code}{lasted}"
        case "timed_out":
            return f"was ended at its time limit{lasted}"
        case "failed":
            return f"could not be started ({job.detail})"
        case "stopped":
            return f"was stopped{lasted}" + (f" ({job.detail})" if job.detail else "")
        case "interrupted":
            return f"was interrupted ({job.detail})"


async def _tail(command: Background) -> str:
    _, content = await command.read(offset=-TAIL, limit=TAIL)
    return clean_text(content.decode("utf-8", "replace")).lstrip("\ufffd")


async def _facts(command: Background, ended: Exit) -> dict[str, Any]:
    """What is recorded of a command that ended."""
    stuck = ", ".join(map(str, ended.stuck))
    return {
        "code": ended.code,
        "seconds": round(ended.seconds, 3),
        "bytes": command.total_bytes,
        "tail": await _tail(command),
        "path": command.path,
        **({"detail": f"processes {stuck} could not be ended and may still run"} if stuck else {}),
    }
