"""What is seen of a conversation (H30): entries, live run, inbox, questions, settings, usage, jobs, as one JSON value.

`ConversationView` of `perdure.surface` describes it. It is read once, and from then on kept up from commits alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from perdure.harness.job import JOBS
from perdure.harness.runs import run_of
from perdure.harness.stored import AGENT, GENERATION, LIVE, USAGE
from perdure.records import Conversation, ConversationId, Document, Entry, Submission, Task, TaskId
from perdure.session.change import Change
from perdure.session.documents import DocumentToken
from perdure.session.line import Line
from perdure.session.reading import snapshot
from perdure.settle.state import State
from perdure.tasks.inspection import question_info
from perdure.tasks.transaction import QUESTION
from perdure.views.frame import Composition, Step, as_json, entry_json
from perdure.views.taskgraph import TASKS

#: So many of the newest entries are in a view; older ones are read in pages.
TAIL = 100

#: The documents of a conversation that are parts of its view. Another one needs a line here, and one in
#: `ConversationView`.
DOCUMENTS: Mapping[str, DocumentToken] = {"agent": AGENT, "usage": USAGE, "jobs": JOBS}
_PARTS = {token.kind: part for part, token in DOCUMENTS.items()}


def conversation_projection(id: ConversationId) -> Callable[[Line], Awaitable[ConversationProjection]]:
    """How to read the projection of a conversation."""

    async def read(line: Line) -> ConversationProjection:
        memory = line.memory
        record = await memory.conversation(id)
        entries = await memory.entries(record, limit=TAIL + 1)
        parts = {part: await snapshot(line, token, id, "") for part, token in DOCUMENTS.items()}
        run = run_of(memory.published, id)
        lives = {} if run is None else {run.id: await snapshot(line, LIVE, run.id, "")}
        return ConversationProjection(memory.published, record, entries[::-1], parts, lives)

    return read


class ConversationProjection:
    """Invariant: once settled, `value` is what published state says of the conversation."""

    def __init__(
        self,
        state: State,
        record: Conversation,
        entries: list[Entry],
        parts: dict[str, Any],
        lives: dict[TaskId, Any],
    ) -> None:
        self._state = state
        self._id = record.id
        self._record = record
        self._entries = entries
        self._lives = lives
        self.gone: str | None = None
        self.value: dict[str, Any] = {
            part: token.initial() if parts[part] is None else parts[part] for part, token in DOCUMENTS.items()
        }

    # -- beginning --------------------------------------------------------------------------

    def settle(self, late: list[Change]) -> None:
        """What was read, what came meanwhile, and what is in memory anyway."""
        for change in late:
            self._catch_up(change)
        state, id, entries = self._state, self._id, self._entries
        run = run_of(state, id)
        submissions = [*state.queued.get(id, ()), *(() if run is None else state.runs.get(run.id, ()))]
        questions = [task for task in state.ordinary(id) if task.kind == QUESTION]
        self.value = {
            "conversation": as_json(self._record),
            "entries": [entry_json(entry) for entry in entries[-TAIL:]],
            "older": len(entries) > TAIL,
            "run": None if run is None else run.id,
            "live": None if run is None else self._lives.get(run.id) or LIVE.initial(),
            "inbox": {str(each): as_json(state.submissions[each]) for each in sorted(submissions)},
            "questions": {str(each.id): _question(each) for each in sorted(questions, key=lambda each: each.id)},
            **self.value,
        }
        self._entries = []
        self._lives = {}

    def _catch_up(self, change: Change) -> None:
        self._note_record(change)
        newest = self._entries[-1].id if self._entries else 0
        self._entries += [entry for entry in change.entries if entry.conversation == self._id and entry.id > newest]
        for document in change.documents:
            record = document.record
            part = self._part(record)
            if part is not None:
                self.value[part] = DOCUMENTS[part].initial() if document.retired else document.value
            elif record.scope == "task" and record.kind == LIVE.kind and not document.retired:
                self._lives[TaskId(record.owner)] = document.value

    def _note_record(self, change: Change) -> None:
        record = change.conversations.get(self._id)
        if record is not None:
            self._record = record
            if record.deleted:
                self.gone = f"conversation {self._id} was deleted"

    def _part(self, record: Document) -> str | None:
        """The part that shows a document."""
        own = record.scope == "conversation" and record.owner == self._id and not record.key
        return _PARTS.get(record.kind) if own else None

    # -- going on ---------------------------------------------------------------------------

    def advance(self, change: Change) -> Step | None:
        composition = Composition(self.value)
        if change.conversations:
            self._note_record(change)
            if self.gone is not None:
                return None
            composition.put("conversation", as_json(self._record))
        entries = tuple([entry for entry in change.entries if entry.conversation == self._id])
        if entries:
            self._add_entries(composition, entries)
        self._follow_tasks(composition, change)
        for item in change.submissions.values():
            if item.conversation == self._id:
                _show_submission(composition, item)
        for document in change.documents:
            part = self._part(document.record)
            if part is not None and document.retired:
                composition.put(part, DOCUMENTS[part].initial())
            elif part is not None:
                composition.follow(part, document)
        self.value = composition.value
        return composition.step(entries)

    def _add_entries(self, composition: Composition, entries: Sequence[Entry]) -> None:
        for entry in entries:
            composition.push("entries", entry_json(entry))
        if len(composition.value["entries"]) > TAIL:
            composition.truncate("entries", TAIL)
            composition.put("older", True)

    def _follow_tasks(self, composition: Composition, change: Change) -> None:
        before: TaskId | None = self.value["run"]
        run = before
        ended = None if before is None else change.tasks.get(before)
        if ended is not None and not ended.live:
            run = None
            composition.end("/run", ended)
        for task in change.tasks.values():
            if task.kind == GENERATION:
                if task.conversation == self._id and task.live:
                    run = task.id
            elif task.kind == QUESTION:
                self._show_question(composition, task)
        shown = [
            document
            for document in change.documents
            if document.record.owner == run and document.record.kind == LIVE.kind and document.record.scope == "task"
        ]
        if run != before:
            composition.put("run", run)
            value = None if run is None else shown[-1].value if shown else LIVE.initial()
            composition.put("live", value)
            return
        for document in shown:
            composition.follow("live", document)

    def _show_question(self, composition: Composition, task: Task) -> None:
        key = str(task.id)
        if not task.live:
            composition.drop_from("questions", key, task)
        elif key in composition.value["questions"] or self._id in homes(self._state, {}, task):
            composition.put_in("questions", key, _question(task))


def _show_submission(composition: Composition, item: Submission) -> None:
    if item.live:
        composition.put_in("inbox", str(item.id), as_json(item))
    else:
        composition.drop_from("inbox", str(item.id), item)


def _question(task: Task) -> Any:
    return as_json(question_info(task))


def homes(state: State, ended: Mapping[TaskId, Task], task: Task) -> Iterator[ConversationId]:
    """The conversations whose ordinary work a task is part of, nearest first. `ended` has tasks that just ended."""
    at: Task | None = task
    while at is not None:
        if at.owner is not None:
            at = state.tasks.get(at.owner) or ended.get(at.owner)
        elif at.background:
            return
        else:
            yield at.conversation
            home = state.conversations.get(at.conversation)
            owner = None if home is None else home.owner
            at = None if owner is None else state.tasks.get(owner) or ended.get(owner)


def route(line: Line, change: Change) -> Iterable[Hashable]:
    """The views that a commit concerns: of conversations by their id, and the task graph."""
    state = line.memory.published
    if change.tasks or change.conversations:
        yield TASKS
    for entry in change.entries:
        yield entry.conversation
    for item in change.submissions.values():
        yield item.conversation
    yield from change.conversations
    for task in change.tasks.values():
        if task.kind == GENERATION:
            yield task.conversation
        elif task.kind == QUESTION:
            yield from homes(state, change.tasks, task)
    for document in change.documents:
        record = document.record
        if record.scope == "conversation":
            yield ConversationId(record.owner)
        elif record.kind == LIVE.kind and record.scope == "task":
            run = state.tasks.get(TaskId(record.owner)) or change.tasks.get(record.owner)
            if run is not None:
                yield run.conversation
