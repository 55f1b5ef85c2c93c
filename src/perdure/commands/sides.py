"""Where work is done: in a session of this process, or in its owner's. Both are followed alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from perdure.app.handing_in import HandInSession
from perdure.app.session import Session
from perdure.clock import Clock
from perdure.commands.following import beside, first_of
from perdure.errors import OwnerGone

#: Between two looks at a session that changes all the time, in seconds.
PACE = 0.02
#: Between two looks at one that does not, to see whether its disk is full.
LOOK_EVERY = 1.0


class Side(Protocol):
    """Who does the work, as seen from here."""

    #: What becomes of the work when this process leaves.
    afterwards: str

    async def changed(self) -> None:
        """Return when something may have changed. Raises what ended the session, OwnerGone where its owner is gone."""
        ...

    async def abort(self, submission: int, reason: str) -> None:
        """Take a submission back, or stop the run that answers it; what else waits in the inbox stays there."""
        ...

    def close(self) -> None: ...


class Here:
    """In a session of this process. `submission` is waited for, or else that the session is idle."""

    afterwards = "perdure resume goes on with it"

    def __init__(self, session: Session, submission: int | None, clock: Clock, note: Callable[[str], None]) -> None:
        self._session = session
        self._clock = clock
        self.note = note
        self._moved = asyncio.Event()
        self._full = False
        self._unobserve = session.observe(lambda change: self._moved.set())
        waited = session.wait_idle() if submission is None else session.submission(submission).wait()
        #: Raises when the session ends under us: taken over, or its storage failed.
        self._done: asyncio.Future[Any] = beside(waited)

    async def changed(self) -> None:
        await first_of(self._moved.wait(), self._done, self._clock.sleep(LOOK_EVERY))
        self._moved.clear()
        full = self._session.inspect().storage == "full"
        if full and not self._full:
            self.note("the disk is full: the work goes on when there is space again")
        self._full = full
        await self._clock.sleep(PACE)

    async def abort(self, submission: int, reason: str) -> None:
        if await self._session.submission(submission).abort() == "already_placed":
            for item in self._session.inspect().submissions:
                if item.id == submission:
                    chat = await self._session.find(item.conversation)
                    await chat.abort(queue="keep", reason=reason)

    def close(self) -> None:
        self._unobserve()
        self._done.cancel()


class There:
    """In the session of another process, which takes what is handed in."""

    afterwards = "the session's owner goes on with it"

    def __init__(self, session: HandInSession) -> None:
        self._session = session

    async def changed(self) -> None:
        await self._session.changed()
        if (await self._session.info()).owner is None:
            raise OwnerGone(f"session {self._session.key!r} has no live owner any more")

    async def abort(self, submission: int, reason: str) -> None:
        handed = await self._session.abort_submission(submission)
        if (await handed.taken())["withdrawn"] == "already_placed":
            record = await self._session.submission(submission).record()
            chat = await self._session.find(record.conversation)
            await (await chat.abort(queue="keep", reason=reason)).taken()

    def close(self) -> None:
        pass
