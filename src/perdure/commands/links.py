"""What a chat is held over: a session of this process, or the session of another one that is handed things in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, Protocol

from perdure.app.handing_in import HandInSession
from perdure.app.session import Session
from perdure.clock import Clock
from perdure.commands.choosing import Chosen
from perdure.commands.following import first_of
from perdure.commands.remembered import remember
from perdure.commands.sides import LOOK_EVERY, PACE
from perdure.errors import OwnerGone

WhenBusy = Literal["follow_up", "steer"]


class Link(Protocol):
    """One way to a session."""

    #: What becomes of the work when this process leaves.
    afterwards: str

    async def changed(self) -> None:
        """Return when something may have changed. Raises what ended the session, OwnerGone where its owner is gone."""
        ...

    async def submit(self, conversation: str | int, text: str, when_busy: WhenBusy) -> tuple[int, int]:
        """The conversation, by key or id, and the submission."""
        ...

    async def reset(self, conversation: int, handoff: str | None) -> bool:
        """Start the model's context anew; whether that is done, and does not wait for a boundary."""
        ...

    async def compact(self, conversation: int, instructions: str | None) -> int:
        """Have what is older summarised; the task."""
        ...

    async def abort(self, conversation: int) -> None:
        """Stop the conversation's run; what waits in its inbox stays."""
        ...

    async def withdraw(self, submission: int) -> bool:
        """Take a submission back; whether it still waited."""
        ...

    async def answer(self, question: int, value: Any, by: str | None) -> None: ...

    async def retry(self, task: int) -> None: ...

    def close(self) -> None: ...


class Own:
    """In a session of this process."""

    afterwards = "perdure resume goes on with it"

    def __init__(
        self, session: Session, model: Chosen, needs: dict[str, str], clock: Clock, note: Callable[[str], None]
    ) -> None:
        self.session = session
        self.model = model
        self._needs = needs
        self._clock = clock
        self._note = note
        self._moved = asyncio.Event()
        self._full = False
        self._unobserve = session.observe(lambda change: self._moved.set())

    async def changed(self) -> None:
        await first_of(self._moved.wait(), self._clock.sleep(LOOK_EVERY))
        self._moved.clear()
        storage = self.session.inspect().storage
        if storage == "full" and not self._full:
            self._note("the disk is full: the work goes on when there is space again")
        self._full = storage == "full"
        if storage.startswith("stopped"):
            await self.session.wait_idle()  # raises why
        await self._clock.sleep(PACE)

    async def submit(self, conversation: str | int, text: str, when_busy: WhenBusy) -> tuple[int, int]:
        by_key = isinstance(conversation, str)
        chat = await (self.session.conversation(conversation) if by_key else self.session.find(conversation))
        await remember(chat, self.model, self._needs)
        return chat.id, (await chat.submit(text, when_busy=when_busy)).id

    async def reset(self, conversation: int, handoff: str | None) -> bool:
        sent = await (await self.session.find(conversation)).reset(handoff)
        return await sent.status() == "done"

    async def compact(self, conversation: int, instructions: str | None) -> int:
        return await (await self.session.find(conversation)).compact(instructions)

    async def abort(self, conversation: int) -> None:
        await (await self.session.find(conversation)).abort(queue="keep", reason="interrupted")

    async def withdraw(self, submission: int) -> bool:
        return await self.session.submission(submission).abort() == "aborted"

    async def answer(self, question: int, value: Any, by: str | None) -> None:
        await self.session.answer(question, value, by=by)

    async def retry(self, task: int) -> None:
        await self.session.retry(task)

    def close(self) -> None:
        self._unobserve()


class Theirs:
    """In the session of another process, which takes what is handed in."""

    afterwards = "the session's owner goes on with it"

    def __init__(self, reader: HandInSession) -> None:
        self._reader = reader

    async def changed(self) -> None:
        await self._reader.changed()
        if (await self._reader.info()).owner is None:
            raise OwnerGone(f"session {self._reader.key!r} has no live owner any more")

    async def submit(self, conversation: str | int, text: str, when_busy: WhenBusy) -> tuple[int, int]:
        by_key = isinstance(conversation, str)
        chat = await (self._reader.conversation(conversation) if by_key else self._reader.find(conversation))
        answer = await (await chat.submit(text, when_busy=when_busy)).taken()
        return answer["conversation"], answer["submission"]

    async def reset(self, conversation: int, handoff: str | None) -> bool:
        chat = await self._reader.find(conversation)
        answer = await (await chat.reset(handoff)).taken()
        return await self._reader.submission(answer["submission"]).status() == "done"

    async def compact(self, conversation: int, instructions: str | None) -> int:
        chat = await self._reader.find(conversation)
        task: int = (await (await chat.compact(instructions)).taken())["task"]
        return task

    async def abort(self, conversation: int) -> None:
        chat = await self._reader.find(conversation)
        await (await chat.abort(queue="keep", reason="interrupted")).taken()

    async def withdraw(self, submission: int) -> bool:
        return (await (await self._reader.abort_submission(submission)).taken())["withdrawn"] == "aborted"

    async def answer(self, question: int, value: Any, by: str | None) -> None:
        await (await self._reader.answer(question, value, by=by)).taken()

    async def retry(self, task: int) -> None:
        await (await self._reader.retry(task)).taken()

    def close(self) -> None:
        pass
