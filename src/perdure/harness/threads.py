"""Synchronous user functions in daemon threads of their own: a stuck one cannot hold the process (K31)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call it in a new daemon thread with a copy of the context. Cancelling stops the wait, not the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError(f"the function raised {error!r}"))
        else:
            future.set_exception(error)

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as raised:  # whatever it is belongs to the caller
            error = raised
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:
            return  # the loop was closed: nobody waits any more

    name = getattr(function, "__name__", "function")
    threading.Thread(target=run, name=f"perdure {name}", daemon=True).start()
    return await future
