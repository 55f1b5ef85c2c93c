"""Blocking calls in daemon threads: one that is stuck holds neither the loop nor the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def start(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run it in a thread of its own. Cancelling the future leaves the thread running: nothing can stop it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            outcome = function()
        except BaseException as error:
            report(_fail, future, error)
        else:
            report(_succeed, future, outcome)

    def report(settle: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, and with it whoever waited
            loop.call_soon_threadsafe(settle, *arguments)

    threading.Thread(target=run, name=f"perdure-{name}", daemon=True).start()
    return future


def _succeed(future: asyncio.Future[T], outcome: T) -> None:
    if not future.done():
        future.set_result(outcome)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # which a future cannot carry
        error = RuntimeError(f"StopIteration: {error}")
    future.set_exception(error)


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
