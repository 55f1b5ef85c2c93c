"""Readers of a session that someone else owns: they look at the store, and tell what differs since the last look (K1a).

A look that sees several commits is one frame. Nothing here runs by itself but the view that has to be up to date
whenever it is asked: a watch looks when it is read, so that a reader that stops reading costs nothing.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any, Generic, Protocol, TypeVar

from perdure.clock import Clock
from perdure.errors import HandleExpired, NotFound, UsageError
from perdure.storage import Storage
from perdure.surface.frames import Ended
from perdure.views.difference import difference
from perdure.views.frame import Moment, Step
from perdure.views.watch import Channel

T = TypeVar("T")

#: Between two looks for a change, and between two looks at the records themselves, in seconds.
HINT_EVERY = 0.1
LOOK_EVERY = 1.0


class Looker(Protocol):
    """Reads one view of a session from its store."""

    @property
    def storage(self) -> Storage: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def session(self) -> str: ...

    async def look(self) -> Moment | None:
        """The view as of one commit; None where commits came too fast to see one. Raises NotFound."""
        ...

    async def ended(self, before: Any, now: Any) -> tuple[Ended, ...]:
        """What became of the records that left the view between two values of it."""
        ...


class Steps:
    """The steps of a view, each found by a look at the store."""

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        self._count = -1
        self._head = (0, 0)
        #: Whether the newest look saw no single commit, so that another is due at once.
        self._blurred = False
        self.moment: Moment | None = None

    async def first(self) -> Moment:
        """The view as it is now. Raises NotFound."""
        while (moment := await self._look()) is None:
            await self._looker.clock.sleep(HINT_EVERY)
        self.moment = moment
        return moment

    async def next(self) -> tuple[Moment, Step, Moment]:
        """Wait for a change of the view, and look at it: what it was, what leads on, what it is. Raises NotFound."""
        while True:
            await self._changed()
            before, now = self.moment, await self._look()
            if before is None or now is None or now.seq == before.seq:
                continue
            ops = tuple(difference(before.value, now.value))
            if ops:
                self.moment = now
                return before, Step(ops, await self._looker.ended(before.value, now.value)), now

    async def _look(self) -> Moment | None:
        looker = self._looker
        self._count = await looker.storage.change_count()
        head = await looker.storage.head(looker.session)
        moment = await looker.look()
        self._head, self._blurred = head, moment is None
        return moment

    async def _changed(self) -> None:
        """Return when there are new commits. The count of changes is a hint that saves looks, the head is the truth."""
        looker, clock = self._looker, self._looker.clock
        looked = clock.monotonic()
        while True:
            await clock.sleep(HINT_EVERY)
            count = await looker.storage.change_count()
            if self._blurred:
                return
            if count == self._count and clock.monotonic() - looked < LOOK_EVERY:
                continue
            self._count, looked = count, clock.monotonic()
            if await looker.storage.head(looker.session) != self._head:
                return


class FollowedWatch(Generic[T]):
    """As `Watch`, for a session that someone else owns. It looks when it is read, so nothing ever waits for it."""

    def __init__(self, looker: Looker, channel: Channel[T]) -> None:
        self._steps = Steps(looker)
        self._channel = channel
        self._owed = True
        self._reading = False
        self.ended: str | None = None

    async def __aenter__(self) -> FollowedWatch[T]:
        await self._steps.first()
        return self

    async def __aexit__(self, *exit: object) -> None:
        self.ended = self.ended or "it was closed"

    def __aiter__(self) -> FollowedWatch[T]:
        return self

    async def __anext__(self) -> T:
        """The next item. Waits for a commit that changes the view."""
        if self._steps.moment is None:
            raise UsageError("a watch is opened with a block: `async with chat.watch() as watch`")
        if self._reading:
            raise UsageError("this watch is read elsewhere: each reader needs a watch of its own")
        self._reading = True
        try:
            while self.ended is None:
                if self._owed:
                    self._owed = False
                    return self._channel.whole(self._steps.moment)
                item = self._channel.step(*await self._steps.next())
                if item is not None:
                    return item
        except NotFound as gone:
            self.ended = str(gone)
        finally:
            self._reading = False
        raise StopAsyncIteration


class FollowedView:
    """As `View`, for a session that someone else owns: it is as new as the last look, which its block repeats."""

    def __init__(self, looker: Looker) -> None:
        self._steps = Steps(looker)
        self._task: asyncio.Task[None] | None = None
        self.ended: str | None = None

    async def __aenter__(self) -> FollowedView:
        await self._steps.first()
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="perdure view")
        return self

    async def __aexit__(self, *exit: object) -> None:
        self.ended = self.ended or "it was closed"
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _follow(self) -> None:
        try:
            while True:
                await self._steps.next()
        except Exception as error:  # whatever it is, there is nothing newer to see
            self.ended = str(error)

    @property
    def seq(self) -> int:
        """The newest commit that a look saw. Raises HandleExpired once it has ended."""
        return self._now().seq

    @property
    def value(self) -> Any:
        """A copy of the state at the newest look, as JSON. Raises HandleExpired once it has ended."""
        return copy.deepcopy(self._now().value)

    def _now(self) -> Moment:
        if self._steps.moment is None:
            raise UsageError("a view is opened with a block: `async with chat.view() as view`")
        if self.ended is not None:
            raise HandleExpired(f"this view has ended: {self.ended}")
        return self._steps.moment
