"""The one thread of a process that writes a store: what waits is committed with one flush (K8).

Work is admitted by putting it into a queue, so the order of the calls is the order of the commits.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import apsw

from perdure.backends.outcomes import again, resolve
from perdure.backends.sqlite_errors import opening_failed
from perdure.backends.sqlite_groups import Groups, Work
from perdure.errors import PerdureError
from perdure.records import Seq
from perdure.storage import Batch, Claim
from perdure.telemetry import Telemetry

T = TypeVar("T")

#: Works of one transaction at most, so that the first is not acknowledged much later than it could be.
GROUP = 1000


class Writer:
    """Admits from any thread; the thread of its own has the connection."""

    def __init__(
        self,
        path: str,
        *,
        connect: Callable[[], apsw.Connection],
        blocked: Callable[[], str],
        on_failure: Callable[[], None],
        telemetry: Telemetry,
    ) -> None:
        #: Set once, when the file is in doubt: whatever comes then raises it.
        self.failure: PerdureError | None = None
        #: Works that were carried out and may have written, of all who share this writer.
        self.finished = 0
        self._path = path
        self._connect = connect
        self._blocked = blocked
        self._on_failure = on_failure
        self._telemetry = telemetry
        #: Belongs to the thread.
        self._groups: Groups | None = None
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"perdure-writer {path}", daemon=True).start()

    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]:
        return self._admit(Work(asyncio.get_running_loop().create_future(), "group", claim, batch))

    def together(self, function: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Run in the transaction of the next group. An exception undoes what the function wrote."""
        return self._admit(Work(asyncio.get_running_loop().create_future(), "group", function=function))

    def alone(
        self, function: Callable[[apsw.Connection], T], *, writes: bool = True, flush: bool = True
    ) -> asyncio.Future[T]:
        """Run between two groups, in transactions of its own. Without `flush` the next group makes them durable."""
        done = asyncio.get_running_loop().create_future()
        return self._admit(Work(done, "alone", function=function, counted=writes, flushed=flush))

    def stop(self) -> asyncio.Future[None]:
        """Close the connection once all that was admitted is done. Nothing may be admitted after it."""
        last = Work(asyncio.get_running_loop().create_future(), "end")
        self._queue.put(last)
        return last.done

    def _admit(self, work: Work) -> asyncio.Future[Any]:
        if self.failure is not None:
            work.done.set_exception(again(self.failure))
        else:
            self._queue.put(work)
        return work.done

    # -- the thread

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            group: list[Work] = []
            while work.place == "group":
                group.append(work)
                if len(group) == GROUP or self._queue.empty():
                    break
                work = self._queue.get_nowait()
            if group:
                self._carry_out(group)
            if work.place == "alone":
                self._carry_out([work])
            elif work.place == "end":
                if self._groups is not None:
                    self._groups.close()
                resolve([work.done], [None])
                return

    def _carry_out(self, works: list[Work]) -> None:
        """Do it, tell everyone, and only then tidy up."""
        try:
            groups = self._connected()
        except Exception as error:
            failure = opening_failed(error, self._path)
            resolve([work.done for work in works], [again(failure) for _ in works])
            return
        outcomes = groups.together(works) if works[0].place == "group" else [groups.alone(works[0])]
        self.finished += len(works) if works[0].counted else 0
        self._notice(groups)
        loop = works[0].done.get_loop()
        resolve([work.done for work in works], outcomes)
        pages = groups.tidy()
        if pages is not None:
            self._notice(groups)
            with suppress(RuntimeError):  # as in `resolve`
                loop.call_soon_threadsafe(self._telemetry.emit, "perdure.storage.log", {"pages": pages})

    def _connected(self) -> Groups:
        """The first work opens the file. Where that fails the next one tries again: nothing is in doubt yet."""
        if self.failure is not None:
            raise again(self.failure)
        if self._groups is None:
            self._groups = Groups(self._connect(), self._path, self._blocked)
        return self._groups

    def _notice(self, groups: Groups) -> None:
        if groups.failure is not None and self.failure is None:
            self.failure = groups.failure
            self._on_failure()
