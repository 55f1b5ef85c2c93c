"""Code of others under supervision: whatever it does, the run that called it goes on (I24, I39).

It runs in an asyncio task of its own. So a cancellation that it brings on itself is told apart from being told to stop,
what would end the process or the loop becomes an error, and code that ignores its time limit is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from perdure.harness.limits import Limit, Watch

T = TypeVar("T")

#: How long code that was cancelled by its time limit may take to end, in seconds.
GRACE = 5.0


class TimeUp(Exception):
    """The time limit ended it. It may have been left behind, without any right."""


class CancelledWithin(Exception):
    """It was cancelled, and not by anyone who may: it is a failure like any other."""


class Broke(Exception):
    """It raised what is no `Exception`, as `sys.exit()` does."""


class Supervised(Generic[T]):
    """Runs a coroutine. `result()` is its value, or raises what it raised, TimeUp, CancelledWithin or Broke.

    Cancelling `result()` is being told to stop: it cancels the code (and only waits for what is not `stoppable`, as a
    thread) and still returns a value that comes before a second cancellation.
    """

    __slots__ = ("_coroutine", "_limit", "_watch", "child", "expired", "loop", "stoppable", "waiter")

    def __init__(
        self, watch: Watch, coroutine: Coroutine[Any, Any, T], *, seconds: float | None = None, stoppable: bool = True
    ) -> None:
        self._watch = watch
        self._coroutine = coroutine
        #: The time limit was reached.
        self.expired = False
        self.stoppable = stoppable
        self.loop = asyncio.get_running_loop()
        self.waiter: asyncio.Future[None] = self.loop.create_future()
        self.child: asyncio.Task[T] = self.loop.create_task(self._contained(coroutine))
        self._limit: Limit | None = None if seconds is None else watch.limit(seconds, self._expire)

    def extend(self, seconds: float) -> None:
        """Its time is over that long from now. Changes nothing once its time was over."""
        if self._limit is not None and not self.expired:
            self._limit.extend(seconds)

    async def result(self, *, on_stop: Callable[[], Awaitable[None]] | None = None) -> T:
        """See the class. `on_stop` runs when it is told to stop while the code is not stoppable."""
        try:
            await self.waiter
        except asyncio.CancelledError:
            await self._stop(on_stop)
        finally:
            if self._limit is not None:
                self._limit.end()
        return self._outcome()

    async def _stop(self, on_stop: Callable[[], Awaitable[None]] | None) -> None:
        self.waiter = self.loop.create_future()
        if self.child.done():
            self._wake(self.child)
        elif self.stoppable:
            self._cancel()
        elif on_stop is not None:
            await on_stop()
        try:
            await self.waiter
        except asyncio.CancelledError:  # told twice: it is left behind
            self._cancel()
            raise
        if self.child.cancelled() or not self.child.done():
            raise asyncio.CancelledError
        own = asyncio.current_task()
        assert own is not None
        own.uncancel()

    def _outcome(self) -> T:
        child = self.child
        if not child.done():
            raise TimeUp
        if child.cancelled():
            raise TimeUp if self.expired else CancelledWithin
        error = child.exception()
        if error is None:
            return child.result()
        if self.expired:
            raise TimeUp from error
        if isinstance(error, Exception):
            raise error
        raise Broke(f"{type(error).__name__}: {error}") from error

    def _cancel(self) -> None:
        """It may not have begun: then only its end tells."""
        self.child.add_done_callback(self._wake)
        self.child.cancel()

    def _expire(self) -> None:
        self.expired = True
        self._cancel()
        self._limit = self._watch.limit(GRACE, self._give_up)

    def _give_up(self) -> None:
        self._wake(self.child)

    def _wake(self, child: asyncio.Task[T]) -> None:
        if child.done():
            self._coroutine.close()  # it may have been cancelled before it began
        if not self.waiter.done():
            self.waiter.set_result(None)
        elif child.done() and not child.cancelled():
            child.exception()  # it was left behind: nobody asks for it any more

    async def _contained(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return await coroutine
        except SystemExit as error:  # on its way up it would end the loop
            raise Broke(f"SystemExit: {error}") from error
        finally:
            if not self.waiter.done():  # who waits goes on in the next step of the loop: the task has ended then
                self.waiter.set_result(None)
