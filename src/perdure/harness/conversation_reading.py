"""What can be read of a conversation, as published."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.harness.approval import answer_here
from perdure.harness.compaction import COMPACT
from perdure.harness.harness import Settings, overlay
from perdure.harness.question import Question
from perdure.harness.runs import run_of
from perdure.harness.stored import AGENT, FAILURES, LIVE, USAGE, USAGE_BELOW
from perdure.harness.usage import merged, shown
from perdure.harness.watching import Watched
from perdure.records import Conversation, ConversationId, Entry, EntryId, Submission, TaskId
from perdure.session.documents import DocumentToken
from perdure.session.line import Line
from perdure.session.reading import Attached, snapshot, snapshot_as_of
from perdure.tasks.transaction import QUESTION

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


#: What is shown of a compaction in flight.
SHOWN = ("attempt", "text", "retry")


class ConversationReading(Watched):
    """The reading half of a conversation's handle. Compared by id; holds no state (K10)."""

    def __init__(self, harness: Harness, id: ConversationId) -> None:
        self._harness = harness
        self.id = id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConversationReading):
            return NotImplemented
        return other.id == self.id and other._harness.line is self._harness.line

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<conversation {self.id} of session {self._line.session!r}>"

    @property
    def _line(self) -> Line:
        return self._harness.line

    @property
    def busy(self) -> bool:
        """Whether a run is live, as published (K40)."""
        return run_of(self._line.memory.published, self.id) is not None

    async def wait_idle(self, *, background: bool = False) -> None:
        """Wait until no ordinary task of this conversation is live. Starts the scheduler (K41).

        `background` waits for its jobs and background agents, too: until all that there is has ended or rests.
        """
        await self._harness.scheduler.wait_idle(self.id, background=background)

    async def record(self) -> Conversation:
        """The conversation's record. Raises NotFound."""
        return await self._line.memory.conversation(self.id)

    async def entries(self, *, before: EntryId | None = None, limit: int = 100) -> list[Entry]:
        """A page of the entries that this conversation sees, newest first (K16)."""
        return await self._line.memory.entries(await self.record(), before=before, limit=limit)

    async def history(self) -> AsyncIterator[Entry]:
        """Every entry that this conversation sees, newest first, page by page."""
        before: EntryId | None = None
        while page := await self.entries(before=before):
            for entry in page:
                yield entry
            before = page[-1].id

    async def snapshot(self, token: DocumentToken, *, key: str = "") -> Any:
        """A copy of the present value of a document of it, or of the session; None where there is none (K20)."""
        owner = 0 if token.scope == "session" else self.id
        return await snapshot(self._line, token, owner, key)

    async def snapshot_as_of(self, token: DocumentToken, at: EntryId, *, key: str = "") -> Any:
        """A rewindable document as it was after the commit that wrote entry `at` (K20)."""
        return await snapshot_as_of(self._line, token, self.id, key, at)

    async def attach(self, token: DocumentToken, *, key: str = "") -> Attached:
        """A read-only value that follows each commit until it is closed (K43)."""
        owner = 0 if token.scope == "session" else self.id
        return await Attached.open(self._line, token, owner, key)

    async def live(self) -> dict[str, Any] | None:
        """What the live run shows: round, attempt, partial answer, retry, open tool calls. None while idle."""
        run = run_of(self._line.memory.published, self.id)
        return None if run is None else await snapshot(self._line, LIVE, run.id, "")

    async def compactions(self) -> dict[TaskId, dict[str, Any]]:
        """Compactions in flight, by task: the reason, the attempt, the text so far, and the retry it waits for."""
        published = self._line.memory.published
        found: dict[TaskId, dict[str, Any]] = {}
        for task in [task for task in published.ordinary(self.id) if task.kind == COMPACT]:
            shown = await snapshot(self._line, LIVE, task.id, "") or LIVE.initial()
            found[task.id] = {"reason": task.input["reason"], **{name: shown[name] for name in SHOWN}}
        return found

    async def usage(self, *, subtree: bool = False) -> dict[str, Any]:
        """What this conversation used, by model and by tool (H17); with `subtree` also what those below it did.

        Below it are the conversations that its tasks own, and what those own, also when they were deleted.
        """
        own = await self.snapshot(USAGE)
        return shown(merged(own, await self.snapshot(USAGE_BELOW)) if subtree else own)

    async def failures(self) -> dict[str, Any]:
        """What of its extensions failed, by "extension.hook": {"times", "error", "at"}, the newest error (H24)."""
        return await self.snapshot(FAILURES) or {}

    async def settings(self) -> Settings:
        """The settings in force."""
        return overlay(self._harness.defaults.settings, await self.snapshot(AGENT))

    def inbox(self) -> list[Submission]:
        """Queued submissions, oldest first, as published."""
        published = self._line.memory.published
        return [published.submissions[id] for id in published.queued.get(self.id, ())]

    async def questions(self) -> list[Question]:
        """Open questions of this conversation's ordinary work, as published, oldest first (K37)."""
        open = [task for task in self._line.memory.published.ordinary(self.id) if task.kind == QUESTION]
        return [Question(task, partial(answer_here, self._harness)) for task in sorted(open, key=lambda task: task.id)]
