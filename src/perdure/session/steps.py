"""Coroutines that are driven by hand: most of them end without waiting for anything, and so cost no task."""

from __future__ import annotations

import contextvars
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def rest(work: Coroutine[Any, Any, T], waits_for: Any) -> T:
    """What is left of a coroutine that was begun by hand, and that waits for what it gave then."""
    return await _continued(work, waits_for)


@types.coroutine
def _continued(work: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    try:
        yield waits_for
    except BaseException:
        work.close()
        raise
    return (yield from work.__await__())


@types.coroutine
def in_context(context: contextvars.Context, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await a coroutine in a context that is not the task's."""
    while True:
        try:
            waits_for = context.run(work.send, None)
        except StopIteration as done:
            return done.value
        try:
            yield waits_for
        except BaseException:
            context.run(work.close)
            raise
