"""Readers of a session's views (K43, H30): they are told after each commit, and never waited for.

One source keeps one view up for all of its readers, and is there only while it has some: with no reader nothing is
computed, and nothing is called. A reader that is forgotten is forgotten here too.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from perdure.errors import HandleExpired, NotFound, SessionClosed, StorageError, UsageError
from perdure.session.change import Change
from perdure.session.line import Line, forbid_inside_commit
from perdure.views.frame import Moment, Projection, Step

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: So many frames wait for a reader; one more, and the newest whole view replaces them all.
MOST_PENDING = 100

#: So many sources are quicker told of every commit than found by what it concerns.
FEW = 2

CLOSED = "the session was closed"


class Channel(Protocol[T_co]):
    """A way to tell of a view: what a reader is given first, and what it is given of each step; None for nothing."""

    def whole(self, now: Moment) -> T_co: ...

    def step(self, before: Moment, step: Step, now: Moment) -> T_co | None: ...


#: Reads what a projection begins with, from a line. Raises NotFound.
Project = Callable[[Line], "asyncio.Future[Projection] | Any"]


class Views:
    """The sources of one session. Invariant: the line calls `_published` exactly while there is a source."""

    def __init__(self, line: Line, route: Callable[[Line, Change], Iterable[Hashable]]) -> None:
        """`route` says which sources a commit concerns, by their keys."""
        self._line = line
        self._route = route
        self._sources: dict[Hashable, Source] = {}

    async def join(self, key: Hashable, project: Project, reader: Reader) -> Source:
        """Tell a reader of a view from now on. Raises NotFound, SessionClosed, StorageError."""
        self._line.check()
        source = self._sources.get(key)
        if source is None:
            source = self._open(key, project)
        source.joining += 1
        try:
            async with source.lock:
                if source.projection is None and source.ended is None:
                    await source.load()
            if source.ended is not None:
                raise NotFound(source.ended) if source.deleted else SessionClosed(source.ended)
            source.add(reader)
        finally:
            source.joining -= 1
            source.check_used()
        return source

    def _open(self, key: Hashable, project: Project) -> Source:
        if not self._sources:
            self._line.observers.append(self._published)
            self._line.on_end.append(self._ended)
        source = self._sources[key] = Source(self._line, project, lambda: self._discard(key, source))
        return source

    def _discard(self, key: Hashable, source: Source) -> None:
        if self._sources.get(key) is not source:
            return
        del self._sources[key]
        if not self._sources:
            if self._published in self._line.observers:
                self._line.observers.remove(self._published)
            if self._ended in self._line.on_end:
                self._line.on_end.remove(self._ended)

    def _published(self, change: Change) -> None:
        if len(self._sources) <= FEW:
            for source in list(self._sources.values()):
                self._tell(source, change)
            return
        for key in dict.fromkeys(self._route(self._line, change)):
            source = self._sources.get(key)
            if source is not None:
                self._tell(source, change)

    def _tell(self, source: Source, change: Change) -> None:
        try:
            source.published(change)
        except Exception as error:  # a view that breaks takes neither the line nor the other views with it
            self._line.telemetry.emit("perdure.view.broke", metadata={"error": repr(error)})
            source.end(f"the view broke: {error!r}")

    def _ended(self, fault: StorageError | None) -> None:
        reason = CLOSED if fault is None else f"the session stopped: {fault}"
        for source in list(self._sources.values()):
            source.end(reason)


class Source:
    """One view, and its readers.

    Invariant: `moment` is the view as of the newest commit that changed it; each reader on a channel was told of each
    step since it joined, or is owed the whole.
    """

    def __init__(self, line: Line, project: Project, unused: Callable[[], None]) -> None:
        self._line = line
        self._project = project
        self._unused = unused
        self.lock = asyncio.Lock()
        self.joining = 0
        self.projection: Projection | None = None
        self.moment: Moment | None = None
        #: Commits that concern it and came while it was read.
        self._late: list[Change] = []
        self.ended: str | None = None
        self.deleted = False
        #: Readers by channel (None: those who look by themselves) and by identity. They may be gone at any time.
        self._readers: dict[Channel[Any] | None, dict[int, ref[Reader]]] = {}
        #: The newest whole that was made for a channel.
        self._wholes: dict[Channel[Any], tuple[Moment, Any]] = {}

    async def load(self) -> None:
        projection = await self._project(self._line)
        if self.ended is not None:
            return
        late, self._late = self._late, []
        projection.settle(late)
        self.projection = projection
        self.moment = Moment(self._line.memory.published_seq, projection.value)
        self._check_gone()

    def add(self, reader: Reader) -> None:
        channel, id_ = reader.channel, id(reader)
        self._readers.setdefault(channel, {})[id_] = ref(reader, lambda _: self._forget(channel, id_))
        if channel is not None:
            reader.told(self.whole(channel))

    def remove(self, reader: Reader) -> None:
        self._forget(reader.channel, id(reader))

    def _forget(self, channel: Channel[Any] | None, id_: int) -> None:
        readers = self._readers.get(channel, {})
        readers.pop(id_, None)
        if not readers:
            self._readers.pop(channel, None)
            if channel is not None:
                self._wholes.pop(channel, None)
        self.check_used()

    def check_used(self) -> None:
        """Without a reader there is no source."""
        if not self._readers and not self.joining:
            self._unused()

    def whole(self, channel: Channel[T]) -> T | None:
        """The newest whole view for a reader of this channel, made once; None where there is nothing to see."""
        now = self.moment
        if now is None or self.deleted:
            return None
        known = self._wholes.get(channel)
        if known is None or known[0] is not now:
            known = self._wholes[channel] = (now, channel.whole(now))
        return known[1]

    def published(self, change: Change) -> None:
        """A commit that may concern this view."""
        projection, before = self.projection, self.moment
        if projection is None or before is None:
            self._late.append(change)
            return
        step = projection.advance(change)
        if step is not None:
            now = self.moment = Moment(change.seq, projection.value)
            for channel, readers in list(self._readers.items()):
                item = None if channel is None else channel.step(before, step, now)
                for found in list(readers.values()):
                    reader = found()
                    if reader is not None:
                        reader.told(item)
        self._check_gone()

    def _check_gone(self) -> None:
        if self.projection is not None and self.projection.gone is not None:
            self.deleted = True
            self.end(self.projection.gone)

    def end(self, reason: str) -> None:
        """There is nothing more to tell."""
        if self.ended is None:
            self.ended = reason
            for readers in list(self._readers.values()):
                for found in list(readers.values()):
                    reader = found()
                    if reader is not None:
                        reader.over(reason)
            self._readers.clear()
            self._wholes.clear()
            self._late.clear()
            self._unused()


class Reader:
    """Whoever is told of a source. `told` and `over` must not wait."""

    channel: Channel[Any] | None = None

    def __init__(self, join: Callable[[Reader], Any]) -> None:
        self._join = join
        self._source: Source | None = None
        #: Why there is nothing more to tell; None while there is.
        self.ended: str | None = None

    def told(self, item: Any) -> None:
        """The view took a step."""

    def over(self, reason: str) -> None:
        """It will not take another."""
        self.ended = reason

    async def _attach(self) -> None:
        if self._source is not None or self.ended is not None:
            raise UsageError("this was opened before: each use needs another one")
        self._source = await self._join(self)

    def close(self) -> None:
        """Stop following. Closing again does nothing."""
        if self.ended is None:
            self.over("it was closed")
        if self._source is not None:
            self._source.remove(self)


class View(Reader):
    """A read-only value that follows each commit, until its block is left, the session closes or what it shows is gone.

    `async with chat.view() as view: … view.value`
    """

    async def __aenter__(self) -> View:
        await self._attach()
        return self

    async def __aexit__(self, *exit: object) -> None:
        self.close()

    @property
    def seq(self) -> int:
        """The commit that changed it last, or before which it was attached. Raises HandleExpired once it has ended."""
        return self._now().seq

    @property
    def value(self) -> Any:
        """A copy of the newest committed state, as JSON. Raises HandleExpired once it has ended."""
        return copy.deepcopy(self._now().value)

    def _now(self) -> Moment:
        if self.ended is not None:
            raise HandleExpired(f"this view has ended: {self.ended}")
        if self._source is None or self._source.moment is None:
            raise UsageError("a view is opened with a block: `async with chat.view() as view`")
        return self._source.moment


class Watch(Reader, Generic[T]):
    """Told of a view as it changes: the newest whole of it first, then one item a commit, in order.

    Use it with a block and read it with `async for`, from one place at a time. At most 100 items wait to be read;
    one more, and the newest whole view comes instead of them all. It ends when the session closes or what it shows is
    deleted, and `ended` says why. Leaving it, or never reading it, is felt by nobody.
    """

    def __init__(self, join: Callable[[Reader], Any], channel: Channel[T]) -> None:
        super().__init__(join)
        self.channel = channel
        self._pending: deque[T] = deque()
        #: The reader was too slow, and is owed the newest whole view as of when it reads; nothing waits meanwhile.
        self._owed = False
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Watch[T]:
        await self._attach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching. What waits is dropped."""
        super().close()
        self._pending.clear()
        self._owed = False

    def __aiter__(self) -> Watch[T]:
        return self

    async def __anext__(self) -> T:
        """The next item. Waits for a commit that changes the view, and starts no work (K39)."""
        while True:
            if self._pending:
                return self._pending.popleft()
            if self._owed and (whole := self._newest()) is not None:
                return whole
            if self.ended is not None:
                raise StopAsyncIteration
            await self._wait()

    def _newest(self) -> T | None:
        self._owed = False
        return None if self._source is None or self.channel is None else self._source.whole(self.channel)

    async def _wait(self) -> None:
        forbid_inside_commit("watching")
        if self._source is None:
            raise UsageError("a watch is opened with a block: `async with chat.watch() as watch`")
        if self._waiter is not None:
            raise UsageError("this watch is read elsewhere: each reader needs a watch of its own")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def told(self, item: T | None) -> None:
        if self._owed or item is None:
            return
        if len(self._pending) == MOST_PENDING:
            self._pending.clear()
            self._owed = True
            return
        self._pending.append(item)
        self._wake()

    def over(self, reason: str) -> None:
        super().over(reason)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
