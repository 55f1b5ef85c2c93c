"""The one thread of a process that writes a store: what waits is committed with one flush (K8).

Work is admitted by putting it into a queue, so the order of the calls is the order of the commits.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from perdure.backends.sqlite_errors import again, opening_failed
from perdure.backends.sqlite_groups import Groups, Outcome, Place, Work
from perdure.errors import PerdureError
from perdure.records import Seq
from perdure.storage import Batch, Claim
from perdure.telemetry import Telemetry

T = TypeVar("T")

#: Works of one transaction at most, so that the first is not acknowledged much later than it could be.
GROUP = 1000


class Admitted(Work):
    """A work and who waits for it."""

    __slots__ = ("done", "loop")

    def __init__(
        self,
        place: Place,
        function: Callable[[apsw.Connection], Any] | None = None,
        *,
        claim: Claim | None = None,
        batch: Batch | None = None,
        counted: bool = True,
    ) -> None:
        super().__init__(place, function, claim=claim, batch=batch, counted=counted)
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self.loop.create_future()


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
        #: Set once, when the file is in doubt or could not be opened: whatever comes then raises it.
        self.failure: PerdureError | None = None
        #: Works that were carried out and may have written, of all who share this writer.
        self.finished = 0
        self._path = path
        self._connect = connect
        self._blocked = blocked
        self._on_failure = on_failure
        self._telemetry = telemetry
        self._queue: queue.SimpleQueue[Admitted] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"perdure-writer {path}", daemon=True).start()

    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]:
        return self._admit(Admitted("group", claim=claim, batch=batch))

    def together(self, function: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Run in the transaction of the next group. An exception undoes what the function wrote."""
        return self._admit(Admitted("group", function))

    def alone(self, function: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Run between two groups, in transactions of its own."""
        return self._admit(Admitted("alone", function))

    def ask(self, function: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Run between two groups something that writes nothing."""
        return self._admit(Admitted("alone", function, counted=False))

    def stop(self) -> asyncio.Future[None]:
        """Close the connection once all that was admitted is done. Nothing may be admitted after it."""
        last = Admitted("end", counted=False)
        self._queue.put(last)
        return last.done

    def _admit(self, work: Admitted) -> asyncio.Future[Any]:
        if self.failure is not None:
            work.done.set_exception(again(self.failure))
        else:
            self._queue.put(work)
        return work.done

    # -- the thread

    def _run(self) -> None:
        groups: Groups | None = None
        try:
            groups = Groups(self._connect(), self._path, self._blocked)
        except Exception as error:
            self._fail(opening_failed(error, self._path))
        running = True
        while running:
            works = [self._queue.get()]
            works += [self._queue.get_nowait() for _ in range(min(self._queue.qsize(), GROUP - 1))]
            for group in runs(works):
                self._resolve(group, self._carry_out(groups, group))
                running = group[0].place != "end"
                if running and groups is not None and self.failure is None:
                    groups.tidy()
                    self._notice(groups)

    def _carry_out(self, groups: Groups | None, works: Sequence[Admitted]) -> list[Outcome]:
        if works[0].place == "end":
            if groups is not None:
                groups.close()
            return [None]
        if groups is None or self.failure is not None:
            assert self.failure is not None
            return [again(self.failure) for _ in works]
        outcomes = groups.carry_out(works)
        self.finished += sum(work.counted for work in works)
        self._notice(groups)
        return outcomes

    def _notice(self, groups: Groups) -> None:
        if groups.failure is not None:
            self._fail(groups.failure)

    def _fail(self, failure: PerdureError) -> None:
        self.failure = failure
        self._on_failure()

    def _resolve(self, works: Sequence[Admitted], outcomes: Sequence[Outcome]) -> None:
        """Tell each loop once."""
        settled: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = {}
        for work, outcome in zip(works, outcomes, strict=True):
            settled.setdefault(work.loop, []).append((work.done, outcome))
        for loop, mine in settled.items():
            try:
                loop.call_soon_threadsafe(settle, mine)
            except RuntimeError:
                continue  # that loop is closed: nobody is left to hear of it


def runs(works: Sequence[Admitted]) -> list[Sequence[Admitted]]:
    """Neighbours that share a transaction; others by themselves."""
    found: list[Sequence[Admitted]] = []
    start = 0
    for position, work in enumerate(works):
        if work.place != "group":
            found += [works[start:position], works[position : position + 1]]
            start = position + 1
    found.append(works[start:])
    return [each for each in found if each]


def settle(outcomes: Sequence[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for done, outcome in outcomes:
        if done.done():
            continue  # whoever waited was cancelled: the commit stands
        if isinstance(outcome, BaseException):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)
