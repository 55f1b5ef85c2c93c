"""Looking at a session without owning it (K1a): beside a live owner, or where there is none.

Nothing here starts work, writes or makes a file. Each call reads the records anew, through the same code as an open
session, from a line at rest that takes no commits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from perdure.app.adapters import LazySchema
from perdure.app.models import ModelFinder
from perdure.app.session import Session
from perdure.app.watching import ConversationLooker, TaskGraphLooker, line_at_rest
from perdure.clock import Clock
from perdure.errors import NotFound, UsageError
from perdure.harness.conversation import ConversationHandle
from perdure.harness.feed import EVENTS
from perdure.harness.harness import Defaults, Harness
from perdure.harness.question import Question
from perdure.harness.registry import Registry
from perdure.harness.tree import Branch
from perdure.records import (
    ROOT,
    Conversation,
    ConversationId,
    Done,
    Entry,
    EntryId,
    Inbound,
    Seq,
    Submission,
    SubmissionId,
    Task,
    TaskId,
    Unanswered,
    decode_conversation,
    decode_entry,
    decode_inbound,
    decode_submission,
    decode_task,
)
from perdure.session.documents import DocumentToken
from perdure.session.line import Line
from perdure.session.opening import load_live
from perdure.session.retention import Pruned
from perdure.storage import SessionInfo, Storage
from perdure.surface.events import Events
from perdure.surface.frames import Frame
from perdure.surface.settled import Answered, NotAnswered, Settled
from perdure.tasks.inspection import Inspection
from perdure.telemetry import Telemetry
from perdure.values import clean_text
from perdure.views.following import FollowedView, FollowedWatch
from perdure.views.frame import FRAMES

#: Between two looks for a change, and between two looks at the records themselves, in seconds.
HINT_EVERY = 0.1
LOOK_EVERY = 1.0
#: Live records are read until no commit came in between; a session that never rests is shown as it was read.
STEADY_TRIES = 10


class ReadSession:
    """A session that is only looked at. Made by `perdure.open(url, mode="read")`."""

    def __init__(self, storage: Storage, key: str, clock: Clock, telemetry: Telemetry) -> None:
        self.storage = storage
        self.key = clean_text(key)
        self.clock = clock
        self.telemetry = telemetry
        #: The storage's change count when `changed` looked last.
        self._seen = 0

    # -- the session ------------------------------------------------------------------------

    async def info(self) -> SessionInfo:
        """Epoch, head, and the live worker that owns the session, if one does. Raises NotFound for an unknown one."""
        for found in await self.storage.sessions(after=_just_before(self.key), limit=2):
            if found.key == self.key:
                return found
        known = [each.key for each in await self.storage.sessions(limit=10)]
        raise NotFound(f"no session {self.key!r} in this store; there is {', '.join(map(repr, known)) or 'none yet'}")

    async def inspect(self) -> Inspection:
        """Live tasks, queued and placed submissions, open questions, held reasons, at one point of the line (K38)."""
        return (await self.glance(live=True)).inspect()

    async def usage(self) -> dict[str, Any]:
        """What all conversations used together (H17), those that were deleted included."""
        return await (await self.glance()).usage()

    async def tree(self, *, limit: int = 1000) -> list[Branch]:
        """The conversations as trees: see `Session.tree`."""
        return await (await self.glance()).tree(limit=limit)

    async def prunable(self, *, older_than: float) -> Pruned:
        """What `Session.prune` would forget now."""
        return await (await self.glance(live=True)).prunable(older_than=older_than)

    def task_graph(self) -> FollowedView:
        """The task graph, as new as the last look; as `Session.task_graph`. Opening it raises NotFound."""
        return FollowedView(TaskGraphLooker(self))

    def watch_task_graph(self) -> FollowedWatch[Frame]:
        """The task graph in frames, one for all commits between two looks."""
        return FollowedWatch(TaskGraphLooker(self), FRAMES)

    async def snapshot(self, token: DocumentToken, *, key: str = "") -> Any:
        """The present value of a session document; None where there is none."""
        return await (await self.glance()).snapshot(token, key=key)

    # -- conversations ----------------------------------------------------------------------

    async def conversations(self, *, before: int | None = None, limit: int = 20) -> list[Conversation]:
        """The newest conversations, newest first."""
        return await (await self.glance()).conversations(before=before, limit=limit)

    async def root(self) -> ReadConversation:
        """The conversation that every session has. Raises NotFound before its first use."""
        return await self.find(ROOT)

    async def conversation(self, key: str) -> ReadConversation:
        """A conversation by your own key. Raises NotFound: looking makes none."""
        return ReadConversation(self, (await self.find_key(key)).id)

    async def find(self, id: int) -> ReadConversation:
        """A conversation by id. Raises NotFound."""
        return ReadConversation(self, (await (await self.glance()).find(id)).id)

    async def find_key(self, key: str) -> Conversation:
        """The record of the conversation with that key. Raises NotFound."""
        body = await self.storage.find_conversation(self.key, clean_text(key))
        if body is None:
            raise NotFound(f"no conversation with key {key!r} in session {self.key!r}")
        return decode_conversation(body, self.key)

    # -- single records ---------------------------------------------------------------------

    def submission(self, id: int) -> ReadSubmission:
        """A submission by id; an unknown id raises NotFound when it is asked for."""
        return ReadSubmission(self, SubmissionId(id))

    async def task(self, id: int) -> Task:
        """A task, live or ended. Raises NotFound."""
        for body in await self.storage.read_tasks(self.key, [TaskId(id)]):
            return decode_task(body, self.key)
        raise NotFound(f"no task {id} in session {self.key!r}")

    async def inbound(self, id: str) -> Inbound:
        """What was handed in under that id, with the owner's answer once it was taken. Raises NotFound."""
        body = await self.storage.read_inbound(self.key, id)
        if body is None:
            raise NotFound(f"nothing was handed in to session {self.key!r} under {id!r}")
        return decode_inbound(body, self.key)

    # -- reading ----------------------------------------------------------------------------

    async def glance(self, *, live: bool = False) -> Session:
        """The session at rest as of now, with its live records where `live`. It takes no commits and is not kept."""
        epoch, head = await self.storage.head(self.key)
        for _ in range(STEADY_TRIES if live else 0):
            line = self._at(epoch, head)
            await load_live(line)
            before, (epoch, head) = (epoch, head), await self.storage.head(self.key)
            if before == (epoch, head):
                return _at_rest(line)
        line = self._at(epoch, head)
        if live:
            await load_live(line)
        return _at_rest(line)

    def _at(self, epoch: int, head: Seq) -> Line:
        return line_at_rest(self.storage, self.key, self.clock, self.telemetry, epoch, head)

    async def changed(self) -> None:
        """Return when something may have changed: at a hint of the storage, at the latest after a while."""
        began = self.clock.monotonic()
        while True:
            await self.clock.sleep(HINT_EVERY)
            count, seen = await self.storage.change_count(), self._seen
            self._seen = count
            if count != seen or self.clock.monotonic() - began >= LOOK_EVERY:
                return


class ReadConversation:
    """A conversation that is only looked at. Each call reads anew."""

    def __init__(self, session: ReadSession, id: ConversationId) -> None:
        self._session = session
        self.id = id

    async def handle(self, *, live: bool = False) -> ConversationHandle:
        """The conversation of a session at rest."""
        return await (await self._session.glance(live=live)).find(self.id)

    def view(self) -> FollowedView:
        """Its committed state, as new as the last look; as `Conversation.view`. Opening it raises NotFound."""
        return FollowedView(ConversationLooker(self._session, self._resolve))

    def watch(self) -> FollowedWatch[Frame]:
        """Its newest whole state, then what changes, one frame for all commits between two looks.

        It looks when it is read, at most ten times a second. Opening it raises NotFound.
        """
        return FollowedWatch(ConversationLooker(self._session, self._resolve), FRAMES)

    def events(self) -> FollowedWatch[Events]:
        """What happens in it, as far as looks can tell, after a snapshot. Opening it raises NotFound."""
        return FollowedWatch(ConversationLooker(self._session, self._resolve), EVENTS)

    async def _resolve(self) -> ConversationId:
        return (await self.record()).id

    async def record(self) -> Conversation:
        """The conversation's record."""
        return await (await self.handle()).record()

    async def entries(self, *, before: EntryId | None = None, limit: int = 100) -> list[Entry]:
        """A page of the entries that this conversation sees, newest first (K16)."""
        return await (await self.handle()).entries(before=before, limit=limit)

    async def history(self) -> AsyncIterator[Entry]:
        """Every entry that this conversation sees, newest first, page by page."""
        async for entry in (await self.handle()).history():
            yield entry

    async def snapshot(self, token: DocumentToken, *, key: str = "") -> Any:
        """The present value of a document of this conversation or of the session; None where there is none (K20)."""
        return await (await self.handle()).snapshot(token, key=key)

    async def snapshot_as_of(self, token: DocumentToken, at: EntryId, *, key: str = "") -> Any:
        """A rewindable document as it was after the commit that wrote entry `at` (K20)."""
        return await (await self.handle()).snapshot_as_of(token, at, key=key)

    async def live(self) -> dict[str, Any] | None:
        """What the live run shows. None while idle."""
        return await (await self.handle(live=True)).live()

    async def request(self, request_id: str) -> ReadSubmission:
        """The submission that was made under this request id. Raises NotFound."""
        chat = await self.record()
        body = await self._session.storage.find_submission(self._session.key, chat.id, clean_text(request_id))
        if body is None:
            raise NotFound(f"no submission with request id {request_id!r} in conversation {chat.id}")
        return ReadSubmission(self._session, decode_submission(body, self._session.key).id)

    async def usage(self, *, subtree: bool = False) -> dict[str, Any]:
        """What this conversation used, by model and by tool; with `subtree` also what those below it did (H17)."""
        return await (await self.handle()).usage(subtree=subtree)

    async def busy(self) -> bool:
        """Whether a run is live (K40)."""
        return (await self.handle(live=True)).busy

    async def inbox(self) -> list[Submission]:
        """Queued submissions, oldest first."""
        return (await self.handle(live=True)).inbox()

    async def questions(self) -> list[Question]:
        """Open questions of this conversation's ordinary work, oldest first (K37). Only looked at: see `answer`."""
        handle = await self.handle(live=True)
        return [question.answered_by(self._answer) for question in await handle.questions()]

    async def _answer(self, question: TaskId, value: Any, by: str | None) -> Any:
        raise UsageError(f"question {question} was found by looking: open with mode='hand-in' to answer it")


class ReadSubmission:
    """A submission that is only looked at."""

    def __init__(self, session: ReadSession, id: SubmissionId) -> None:
        self._session = session
        self.id = id

    async def record(self) -> Submission:
        """The record. Raises NotFound."""
        body = await self._session.storage.read_submission(self._session.key, self.id)
        if body is None:
            raise NotFound(f"no submission {self.id} in session {self._session.key!r}")
        return decode_submission(body, self._session.key)

    async def status(self) -> str:
        """`queued`, `running`, `held(reason)`, `done` or `unanswered(reason)`. Raises NotFound."""
        return await (await self._session.glance(live=True)).submission(self.id).status()

    async def settled(self) -> Settled | None:
        """How it was settled, None while it is not. Raises NotFound."""
        match (await self.record()).state:
            case Done(entry=entry, answer=answer):
                if answer is None:
                    return Answered(entry=entry, answer=None)
                body = await self._session.storage.read_entry(self._session.key, answer)
                return Answered(entry=entry, answer=None if body is None else decode_entry(body, self._session.key))
            case Unanswered(reason=reason, detail=detail, entry=entry):
                return NotAnswered(reason=reason, detail=detail, entry=entry)
            case _:
                return None


def _at_rest(line: Line) -> Session:
    models = ModelFinder({}, None, line.clock)
    harness = Harness(line, Registry(), models=models, schema=LazySchema(), sandbox=None, defaults=Defaults())
    return Session(line, harness, models)


def _just_before(key: str) -> str:
    """A text that sorts before `key`, with hardly any key in between: after it a listing begins with `key`."""
    if not key:
        return ""
    last = ord(key[-1]) - 1
    return key[:-1] + chr(0xD7FF if 0xD800 <= last <= 0xDFFF else last) + "\U0010ffff"
