"""Waiting for something to be so in published state, at a cost that does not grow with who else waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.errors import PerdureError
from perdure.session.change import Change
from perdure.settle.members import Ordered


class Conditions:
    """Who waits, by the record it waits for: that one is looked at when it changes; the others after each commit.

    Ids of tasks and submissions come from one counter, so an id alone names the record (K4).
    """

    def __init__(self) -> None:
        #: Conditions about one record, by its id; None: about anything.
        self._waiting: dict[int | None, Ordered[Condition]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    async def wait(self, done: Callable[[], bool], about: int | None) -> None:
        """Wait until `done` says so. What it raises is raised here."""
        condition = Condition(done)
        self._waiting.setdefault(about, {})[condition] = None
        try:
            await condition.future
        finally:
            members = self._waiting[about]
            del members[condition]
            if not members:
                del self._waiting[about]

    def look(self, change: Change) -> None:
        """Let those look that the change may concern."""
        waiting = self._waiting
        if not waiting:
            return
        for about in (None, *change.tasks, *change.submissions):
            for condition in tuple(waiting.get(about, ())):
                condition.look()

    def fail(self, error: PerdureError) -> None:
        """Nothing changes any more."""
        for members in list(self._waiting.values()):
            for condition in tuple(members):
                condition.fail(error)


class Condition:
    """Somebody waits for something to be so in published state."""

    __slots__ = ("_done", "future")

    def __init__(self, done: Callable[[], bool]) -> None:
        self._done = done
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(self) -> None:
        if self.future.done():
            return
        try:
            if self._done():
                self.future.set_result(None)
        except Exception as error:  # it belongs to who waits, not to who commits
            self.future.set_exception(error)

    def fail(self, error: PerdureError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
