"""Blocking calls in daemon threads: one that is stuck holds neither the loop nor the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def start(function: Callable[[], T], name: str, *, or_here: bool = True) -> asyncio.Future[T]:
    """Run it in a thread of its own. Cancelling the future leaves the thread running: nothing can stop it.

    A command may have used up all the processes that this user may have. Then it is run here, where it holds the loop:
    what ends such a command needs no thread. `or_here=False` is for what waits, and raises RuntimeError instead.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    thread = threading.Thread(target=_run, args=(function, future, loop), name=f"perdure-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        if not or_here:
            raise
        _run(function, future, loop)
    return future


def _run(function: Callable[[], T], future: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    try:
        outcome = function()
        settle = partial(_succeed, future, outcome)
    except BaseException as error:
        settle = partial(_fail, future, error)
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, and with it whoever waited
        loop.call_soon_threadsafe(settle)


def _succeed(future: asyncio.Future[T], outcome: T) -> None:
    if not future.done():
        future.set_result(outcome)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # which a future cannot carry
        error = RuntimeError(f"StopIteration: {error}")
    future.set_exception(error)


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Do all of it, also when cancelled meanwhile: that is delivered then."""
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await joined(doing)
        raise


async def joined(*awaited: asyncio.Future[Any]) -> None:
    """Wait until all are done, also when cancelled meanwhile: that is delivered then. Raises nothing of theirs."""
    cancelled: asyncio.CancelledError | None = None
    while not all(each.done() for each in awaited):
        try:
            await asyncio.wait(awaited)
        except asyncio.CancelledError as error:
            cancelled = error
    for each in awaited:
        if not each.cancelled():
            each.exception()  # seen, so that nobody is told it was not
    if cancelled is not None:
        raise cancelled


class Worker:
    """Runs functions one after another in one daemon thread, which begins with the first and ends when told.

    It belongs to no loop: whoever asks is answered on the loop that runs when it asks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[[], object], then: Callable[[], None] | None = None) -> None:
        """Run it; then call `then` on the loop. An error of it is nobody's: it should raise none."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                function()
            finally:
                if then is not None:
                    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                        loop.call_soon_threadsafe(then)

        self._put(run)

    async def call(self, function: Callable[[], T]) -> T:
        """What it returns, or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(lambda: _run(function, future, loop))
        return await future

    def stop(self) -> None:
        """End when all that was asked is done. It can be asked again."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None

    def _put(self, item: Callable[[], None]) -> None:
        if self._thread is None:
            items: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
            thread = threading.Thread(target=_work, args=(items,), name=f"perdure-{self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # as in `start`; without a thread, nothing waits before it
                with contextlib.suppress(Exception):
                    item()
                return
            self._queue, self._thread = items, thread
        self._queue.put(item)


def _work(items: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (item := items.get()) is not None:
        with contextlib.suppress(Exception):
            item()
