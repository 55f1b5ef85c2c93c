"""Watching sessions: the task graph of an open one, and the views of one that someone else owns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from perdure.clock import Clock
from perdure.harness.harness import Harness
from perdure.harness.view import conversation_projection
from perdure.records import ConversationId, Seq, SubmissionId, TaskId, decode_submission, decode_task
from perdure.session.line import Line
from perdure.session.opening import load_live
from perdure.storage import Claim, Opened, Storage
from perdure.surface.frames import Ended, Frame
from perdure.telemetry import Telemetry
from perdure.views.frame import FRAMES, Moment, Projection, as_json
from perdure.views.taskgraph import TASKS, task_graph
from perdure.views.watch import Reader, View, Watch

if TYPE_CHECKING:
    from perdure.app.looking import ReadSession

#: A view is read until no commit came in between.
STEADY_TRIES = 10
PAGE = 500


class TaskGraphs:
    """The task graph of an open session."""

    _harness: Harness

    def task_graph(self) -> View:
        """Live tasks, who waits on whom, who owns whom, and owned conversations, following each commit (K38).

        `async with session.task_graph() as graph: graph.value`; `perdure.surface.task_graph` reads it.
        Opening it raises SessionClosed.
        """
        return View(self._join_tasks)

    def watch_task_graph(self) -> Watch[Frame]:
        """The task graph in frames: the newest whole one, then what each commit does to it."""
        return Watch(self._join_tasks, FRAMES)

    async def _join_tasks(self, reader: Reader) -> Any:
        return await self._harness.views.join(TASKS, task_graph, reader)


def line_at_rest(storage: Storage, session: str, clock: Clock, telemetry: Telemetry, epoch: int, head: Seq) -> Line:
    """A line that only reads."""
    opened = Opened(claim=Claim(session, epoch), head=head, next_id=0, clean=True)
    line = Line(storage, opened, clock, telemetry)
    line.closing = True
    return line


class StoreLooker:
    """Reads one view of a session from its store, at one point of the line."""

    def __init__(self, reader: ReadSession) -> None:
        self._reader = reader
        self.storage = reader.storage
        self.clock = reader.clock
        self.session = reader.key

    async def project(self, line: Line) -> Projection:
        """The projection, from a line at rest with its live records. Raises NotFound."""
        raise NotImplementedError

    def left(self, before: Any, now: Any) -> dict[str, TaskId]:
        """The tasks that the view showed before and does not show now, by their path."""
        raise NotImplementedError

    async def look(self) -> Moment | None:
        epoch, head = await self.storage.head(self.session)
        if epoch == 0:
            await self._reader.info()
        for _ in range(STEADY_TRIES):
            line = line_at_rest(self.storage, self.session, self.clock, self._reader.telemetry, epoch, head)
            await load_live(line)
            projection = await self.project(line)
            projection.settle([])
            before, (epoch, head) = (epoch, head), await self.storage.head(self.session)
            if before == (epoch, head):
                return Moment(head, projection.value)
        return None

    async def ended(self, before: Any, now: Any) -> tuple[Ended, ...]:
        paths = {id: path for path, id in self.left(before, now).items()}
        found: list[Ended] = []
        ids = sorted(paths)
        for start in range(0, len(ids), PAGE):
            for body in await self.storage.read_tasks(self.session, ids[start : start + PAGE]):
                task = decode_task(body, self.session)
                if not task.live:
                    found.append(Ended(path=paths[task.id], record=as_json(task)))
        return tuple(found)


class ConversationLooker(StoreLooker):
    """Looks at a conversation. `resolve` says which one it is, once that is known; raises NotFound before."""

    def __init__(self, reader: ReadSession, resolve: Callable[[], Awaitable[ConversationId]]) -> None:
        super().__init__(reader)
        self._resolve = resolve
        self._id: ConversationId | None = None

    async def project(self, line: Line) -> Projection:
        if self._id is None:
            self._id = await self._resolve()
        return await conversation_projection(self._id)(line)

    def left(self, before: Any, now: Any) -> dict[str, TaskId]:
        gone = {f"/questions/{key}": TaskId(int(key)) for key in _missing(before["questions"], now["questions"])}
        if before["run"] is not None and before["run"] != now["run"]:
            gone["/run"] = before["run"]
        return gone

    async def ended(self, before: Any, now: Any) -> tuple[Ended, ...]:
        found = list(await super().ended(before, now))
        for key in _missing(before["inbox"], now["inbox"]):
            body = await self.storage.read_submission(self.session, SubmissionId(int(key)))
            if body is not None:
                found.append(Ended(path=f"/inbox/{key}", record=as_json(decode_submission(body, self.session))))
        return tuple(found)


class TaskGraphLooker(StoreLooker):
    """Looks at the task graph."""

    async def project(self, line: Line) -> Projection:
        return await task_graph(line)

    def left(self, before: Any, now: Any) -> dict[str, TaskId]:
        return {f"/tasks/{key}": TaskId(int(key)) for key in _missing(before["tasks"], now["tasks"])}


def _missing(before: Iterable[str], now: Iterable[str]) -> list[str]:
    kept = dict.fromkeys(now)
    return [key for key in before if key not in kept]
