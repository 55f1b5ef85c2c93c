"""Telling whoever waits what came of it, from a thread that works for several loops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from perdure.errors import PerdureError

#: What a work came to: its result, or the exception to raise.
Outcome = Any


def resolve(waiting: Sequence[asyncio.Future[Any]], outcomes: Sequence[Outcome]) -> None:
    """Tell each loop once."""
    settled = list(zip(waiting, outcomes, strict=True))
    for loop in dict.fromkeys(each.get_loop() for each in waiting):
        mine = [each for each in settled if each[0].get_loop() is loop]
        with suppress(RuntimeError):  # that loop is closed: nobody is left to hear of it
            loop.call_soon_threadsafe(_settle, mine)


def _settle(settled: Sequence[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for done, outcome in settled:
        if done.done():
            continue  # whoever waited was cancelled: the commit stands
        if isinstance(outcome, BaseException):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)


def again(error: PerdureError) -> PerdureError:
    """The same error, to be raised once more: an exception belongs to whoever raised it."""
    return type(error)(*error.args)
