"""Threads of a JSONL storage: one that writes, in the order of the calls and many at once; one that reads.

Work is admitted by putting it into a queue, so the order of the calls is the order of the commits.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from perdure.backends.outcomes import again, resolve
from perdure.errors import PerdureError
from perdure.records import Inbound
from perdure.storage import Batch, Claim

T = TypeVar("T")

#: Works of one group at most, so that the first is not acknowledged much later than it could be.
GROUP = 1000


class Commit(msgspec.Struct, frozen=True):
    claim: Claim
    batch: Batch


class Release(msgspec.Struct, frozen=True):
    claim: Claim


class HandIn(msgspec.Struct, frozen=True):
    session: str
    item: Inbound


class Alone(msgspec.Struct, frozen=True):
    """A function between two groups."""

    function: Callable[[], Any]


class End(msgspec.Struct, frozen=True):
    """Nothing is admitted after it."""


Grouped = Commit | Release | HandIn
Work = Grouped | Alone | End
Waiting = tuple[asyncio.Future[Any], Work]
Carry = Callable[[Sequence[tuple[asyncio.Future[Any], Grouped]]], None]


class Thread:
    """Carries works out, one after another; those that may be grouped together with those that wait with them."""

    def __init__(self, name: str, carry_out: Carry | None = None) -> None:
        #: Set once the store is in doubt: whatever comes then raises it.
        self.failure: PerdureError | None = None
        self._carry_out = carry_out
        self._queue: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        self._name = name
        self._started = False

    def admit(self, work: Work) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.failure is not None and not isinstance(work, End):
            done.set_exception(again(self.failure))
        else:
            self._queue.put((done, work))
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return done

    def ask(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return self.admit(Alone(function))

    def stop(self) -> asyncio.Future[None]:
        """Done when all that was admitted is done."""
        return self.admit(End())

    def _run(self) -> None:
        while True:
            done, work = self._queue.get()
            group: list[tuple[asyncio.Future[Any], Grouped]] = []
            while isinstance(work, Commit | Release | HandIn):
                group.append((done, work))
                if len(group) == GROUP or self._queue.empty():
                    break
                done, work = self._queue.get_nowait()
            if group:
                self._carry_out_group(group)
            if isinstance(work, Alone):
                resolve([done], [self._outcome(work.function)])
            elif isinstance(work, End):
                resolve([done], [None])
                return

    def _carry_out_group(self, group: Sequence[tuple[asyncio.Future[Any], Grouped]]) -> None:
        assert self._carry_out is not None
        if self.failure is not None:
            resolve([done for done, _ in group], [again(self.failure) for _ in group])
            return
        self._carry_out(group)

    def _outcome(self, function: Callable[[], Any]) -> Any:
        if self.failure is not None:
            return again(self.failure)
        try:
            return function()
        except Exception as error:
            return error
