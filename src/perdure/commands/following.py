"""Following a submission to its end: what is read of it becomes events, wherever the session is worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import msgspec

from perdure.app.looking import ReadSession
from perdure.app.session import Session
from perdure.commands.asking import question_event
from perdure.commands.sinks import Sink
from perdure.commands.trail import Event, Trail, call_entry, facts
from perdure.messages import ToolMessage
from perdure.records import Done, Entry, Placed, Submission, Unanswered
from perdure.surface.frames import TaskInfo
from perdure.surface.settled import Answered, Settled
from perdure.tasks.inspection import Inspection
from perdure.tasks.transaction import QUESTION, TIMER

#: Reads until nothing is committed in between; a session that never rests is shown as it was read.
STEADY_TRIES = 10


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a submission at one point of the line."""

    submission: Submission
    entries: list[Entry]
    live: dict[str, Any] | None
    settled: Settled | None
    waits: list[Event]


class Following:
    """Follows one submission, through a change of the session's owner too."""

    def __init__(self, reader: ReadSession, sink: Sink) -> None:
        self._reader = reader
        self._sink = sink
        self._trail = Trail()
        #: The newest entry that was looked at, and the run that answers; both from the submission once it is placed.
        self._last: int | None = None
        self._run: int | None = None
        self._queued = False

    async def look(self, id: int) -> Look:
        """Read, and tell what is new."""
        storage, key = self._reader.storage, self._reader.key
        before, found = await storage.head(key), await self._read(id)
        for _ in range(STEADY_TRIES):
            after = await storage.head(key)
            if after == before:
                break
            before, found = after, await self._read(id)
        for event in self._events(found):
            self._sink.emit(event)
        return found

    async def _read(self, id: int) -> Look:
        view = await self._reader.glance(live=True)
        handle = self._reader.submission(id)
        submission = await handle.record()
        settled = await handle.settled()
        self._place(submission, settled)
        chat = await view.find(submission.conversation)
        inspection = view.inspect()
        running = any(task.id == self._run for task in inspection.tasks)
        return Look(
            submission=submission,
            entries=await self._new_entries(chat.entries),
            live=await chat.live() if running else None,
            settled=settled,
            waits=waits_of(view, inspection, submission.conversation) if settled is None else [],
        )

    def _place(self, submission: Submission, settled: Settled | None) -> None:
        """Where the submission's run is."""
        match submission.state:
            case Placed(entry=entry, run=run):
                self._run = run
            case Done(entry=entry):
                answer = settled.answer if isinstance(settled, Answered) else None
                if self._run is None and answer is not None:
                    self._run = facts(answer).get("run")
            case Unanswered(entry=int() as entry):
                pass
            case _:
                return
        if self._last is None:
            self._last = entry - 1

    async def _new_entries(self, page: Callable[..., Awaitable[list[Entry]]]) -> list[Entry]:
        """Entries after the last one looked at, oldest first."""
        if self._last is None:
            return []
        found: list[Entry] = []
        before: Any = None
        while entries := await page(before=before, limit=50):
            found.extend(entry for entry in entries if entry.id > self._last)
            if entries[-1].id <= self._last:
                break
            before = entries[-1].id
        return found[::-1]

    def _events(self, look: Look) -> Iterator[Event]:
        if self._last is None and look.settled is None and not self._queued:
            self._queued = True
            yield {"type": "note", "text": "it waits in the inbox until the work before it is done"}
        for entry in look.entries:
            self._last = entry.id
            if self._concerns(entry, look.submission.id):
                yield from self._trail.entry(entry)
        if look.live is not None:
            yield from self._trail.live(look.live)

    def _concerns(self, entry: Entry, submission: int) -> bool:
        """Whether an entry is the submission's own, or belongs to the run that answers it."""
        data = facts(entry)
        if data.get("submission") == submission:
            return True
        run = data.get("run")
        if run is not None:
            if self._run is None:
                self._run = run
            return run == self._run
        results = [message for message in entry.messages if isinstance(message, ToolMessage)]
        return any(call_entry(result.call) in self._trail.answers for result in results)


def waits_of(view: Session, inspection: Inspection, conversation: int | None) -> list[Event]:
    """What a conversation's work waits for, where nothing of it can go on by itself; of the whole session without one.

    Each says `what` waits, and the `remedy`.
    """
    tasks = {task.id: task for task in inspection.tasks}
    asked = {question.id: question for question in inspection.questions}
    waits: list[Event] = []
    for task in _concerned(view, tasks, conversation):
        if task.state in ("pending", "running") or task.kind == TIMER:
            return []
        if task.kind == QUESTION:
            waits.append(question_event(asked[task.id]))
        elif task.state == "held":
            name = task.label or task.kind
            what = f"task {task.id} ({name}) is held ({task.reason}): {task.detail}"
            waits.append({"task": task.id, "reason": task.reason, "what": what, "remedy": remedy_of(task)})
    return waits


def asks_of(inspection: Inspection, conversation: int | None) -> list[Event]:
    """Every open question of a conversation, or of the session, oldest first: whatever else goes on, and who asks."""
    return [question_event(each) for each in inspection.questions if conversation in (None, each.conversation)]


def remedy_of(task: TaskInfo) -> str:
    """What lets a held task go on."""
    if task.reason in ("definition", "migration"):
        way = "perdure resume --tools MODULE:NAME with its code lets it go on"
    else:
        way = f"perdure retry {task.id} lets it go on"
    return f"{way}, perdure abort --task {task.id} ends it"


def going_on(view: Session, inspection: Inspection) -> bool:
    """Whether ordinary work of the session is live, held work included."""
    return any(_concerned(view, {task.id: task for task in inspection.tasks}, None))


def moving(view: Session, inspection: Inspection, conversation: int) -> bool:
    """Whether ordinary work of a conversation goes on without anybody's doing."""
    tasks = {task.id: task for task in inspection.tasks}
    return any(_concerned(view, tasks, conversation)) and not waits_of(view, inspection, conversation)


def _concerned(view: Session, tasks: dict[int, TaskInfo], conversation: int | None) -> Iterator[TaskInfo]:
    """Ordinary live tasks of a conversation (or of all), what they own, and what any of these waits for."""
    seen: dict[int, None] = {}
    beside = {id for task in tasks.values() if task.background for id in (task.id, *view.subtree(task.id))}
    todo = [
        task.id
        for task in tasks.values()
        if task.owner is None and task.id not in beside and conversation in (None, task.conversation)
    ]
    while todo:
        id = todo.pop()
        task = tasks.get(id)
        if task is None or id in seen:
            continue
        seen[id] = None
        yield task
        todo += [*view.subtree(id), *task.on]


async def first_of(*waited: Awaitable[Any]) -> None:
    """Wait until one of them is done; raises what it raised. Futures that are given stay, coroutines are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waited]
    try:
        for done in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            done.result()
    finally:
        for task, given in zip(tasks, waited, strict=True):
            if task is not given:
                task.cancel()


def beside(work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    """Start something whose failure counts only if somebody still waits for it."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    return task
