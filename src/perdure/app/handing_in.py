"""Handing something in to a session that another process owns (K1a): durable at once, and answered by the owner."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from perdure import errors
from perdure.app.adapters import adapter
from perdure.app.looking import ReadConversation, ReadSession
from perdure.errors import NotTaken, OwnerGone, PerdureError, UsageError
from perdure.harness.conversation import ConversationHandle
from perdure.harness.decisions import Allow, Deny, Edit, stored
from perdure.messages import UserMessage
from perdure.messages import user as user_text
from perdure.records import ROOT, ConversationId, EntryId, Inbound, TaskId, decode_inbound
from perdure.session.transaction import EntryKind
from perdure.storage import Worker
from perdure.surface.settled import Settled, WhenBusy
from perdure.values import clean, clean_text

#: How long an item may lie untaken beside a live owner before that is reported, in seconds (K1a).
PATIENCE = 10.0

Verb = Literal["input", "write", "reset", "compact", "abort", "fork", "delete", "answer", "retry"]


class HandInSession(ReadSession):
    """A session that is looked at and handed things in. Made by `perdure.open(url, mode="hand-in")`.

    What a method hands in is durable when it returns, whatever becomes of this process; its owner acts on it.
    """

    async def root(self) -> HandInConversation:
        """The conversation that every session has; its owner makes it on first use."""
        return HandInConversation(self, {}, ROOT)

    async def conversation(self, key: str) -> HandInConversation:
        """A conversation by your own key; its owner makes it on first use."""
        if not isinstance(key, str) or not key:  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a conversation key is a text that is not empty, not {key!r}")
        return HandInConversation(self, {"key": key}, key)

    async def find(self, id: int) -> HandInConversation:
        """A conversation by id. Raises NotFound."""
        found = (await super().find(id)).id
        return HandInConversation(self, {"id": found}, found)

    async def abort_task(self, id: int, reason: str = "aborted by the user") -> HandedIn:
        """Mark a task for abort, a background one too (K32)."""
        return await self.hand_in("abort", {"task": id, "reason": reason})

    async def abort_submission(self, id: int) -> HandedIn:
        """Withdraw a submission while it is queued (H7)."""
        return await self.hand_in("abort", {"submission": id})

    async def retry(self, id: int) -> HandedIn:
        """Let a held task go on (H44)."""
        return await self.hand_in("retry", {"task": id})

    async def answer(self, question: int, value: Any, *, by: str | None = None) -> HandedIn:
        """Answer a question; the owner judges who was first, and whether it fits (K37)."""
        decision = stored(value) if isinstance(value, Allow | Deny | Edit) else value
        return await self.hand_in("answer", {"question": question, "value": decision, "by": by})

    async def hand_in(self, kind: Verb, body: Mapping[str, Any]) -> HandedIn:
        """Insert an item under a new UUIDv7; durable on return. Raises NotFound for a session that nobody opened."""
        await self.info()
        item = Inbound(id=self.clock.uuid7(), kind=kind, body=clean(body), at=self.clock.now())
        return HandedIn(self, await self.storage.hand_in(self.key, item))

    async def check_owner(self, item: Inbound, waited: float) -> None:
        """Raise OwnerGone where no worker lives, NotTaken where one lives and leaves the item for too long."""
        owner = (await self.info()).owner
        if owner is None:
            raise OwnerGone(
                f"session {self.key!r} has no live owner any more: what was handed in (item {item.id}) stays there; "
                "open the session to go on with it"
            )
        if item.taken is None and waited >= PATIENCE:
            raise NotTaken(
                f"session {self.key!r} is owned by {described(owner)}, which did not take item {item.id} "
                f"in {waited:.0f} s. It stays handed in. If that process hangs, take the session over with "
                "take_over=True (with kill=True too, that process is ended first)"
            )


class HandInConversation(ReadConversation):
    """A conversation of a session that another process owns. `address` says which, also before it was made."""

    def __init__(self, session: HandInSession, address: Mapping[str, Any], name: ConversationId | str) -> None:
        self._handing = session
        self._address = address
        self._name = name
        super().__init__(session, ConversationId(0) if isinstance(name, str) else name)

    async def submit(
        self, content: str | UserMessage, *, request_id: str | None = None, when_busy: WhenBusy = "follow_up"
    ) -> HandedIn:
        """Hand in an input for the model. Busy, conflicts and repeated request ids are judged by the owner."""
        if when_busy not in ("follow_up", "steer", "reject"):
            raise UsageError(f"when_busy={when_busy!r}: use 'follow_up', 'steer' or 'reject'")
        message = user_text(content) if isinstance(content, str) else content
        body = {"message": msgspec.to_builtins(message), "request_id": request_id, "when_busy": when_busy}
        return await self._handing.hand_in("input", {**self._address, **body})

    async def write(self, kind: EntryKind, data: Any = None, *, request_id: str | None = None) -> HandedIn:
        """Hand in an entry that asks no model."""
        body = {"kind": kind.name, "data": data, "request_id": request_id}
        return await self._handing.hand_in("write", {**self._address, **body})

    async def reset(self, handoff: str | UserMessage | None = None, *, request_id: str | None = None) -> HandedIn:
        """Hand in a reset: the model's context starts there (H8)."""
        message = user_text(handoff) if isinstance(handoff, str) else handoff
        body = {"handoff": message and msgspec.to_builtins(message), "request_id": request_id}
        return await self._handing.hand_in("reset", {**self._address, **body})

    async def compact(self, instructions: str | None = None) -> HandedIn:
        """Have what is older summarised (H28); the owner's answer names the task."""
        return await self._handing.hand_in("compact", {**self._address, "instructions": instructions})

    async def abort(
        self,
        *,
        background: bool = False,
        queue: Literal["withdraw", "keep"] = "withdraw",
        reason: str = "aborted by the user",
    ) -> HandedIn:
        """Stop ordinary work; the owner's answer names the tasks that were marked (K32)."""
        body = {"background": background, "keep": queue == "keep", "reason": reason}
        return await self._handing.hand_in("abort", {**self._address, **body})

    async def fork(self, at: EntryId | None = None, *, key: str | None = None) -> HandedIn:
        """Fork it at an entry, by default its newest one; the owner's answer names the new conversation (K15)."""
        return await self._handing.hand_in("fork", {**self._address, "at": at, "new_key": key})

    async def delete(self) -> HandedIn:
        """Delete it with what only it needs; the owner's answer says what went (K47)."""
        return await self._handing.hand_in("delete", self._address)

    async def handed_in(self, request_id: str) -> HandedIn | None:
        """What was handed in under this request id and waits to be taken. Once it is, `request` finds it (K1a)."""
        session, after = self._handing, ""
        wanted = (self._address.get("key"), self._address.get("id"), clean_text(request_id))
        while bodies := await session.storage.scan_inbound(session.key, after=after):
            for item in (decode_inbound(body, session.key) for body in bodies):
                after = item.id
                if (item.body.get("key"), item.body.get("id"), item.body.get("request_id")) == wanted:
                    return HandedIn(session, item)
        return None

    async def _answer(self, question: TaskId, value: Any, by: str | None) -> HandedIn:
        return await self._handing.answer(question, value, by=by)

    async def handle(self, *, live: bool = False) -> ConversationHandle:
        if isinstance(self._name, str):
            self.id = (await self._handing.find_key(self._name)).id
        return await super().handle(live=live)


class HandedIn:
    """What was handed in, by its item's id. It is found again with `session.inbound(id)`."""

    def __init__(self, session: HandInSession, item: Inbound) -> None:
        self._session = session
        self._began = session.clock.monotonic()
        self.id = item.id

    async def taken(self) -> Any:
        """The owner's answer, once it acted on the item; raises what the owner refused it with.

        Raises OwnerGone where no owner lives, and NotTaken after 10 s beside one that does not take it; the item stays.
        """
        while True:
            item = await self._session.inbound(self.id)
            if item.taken is not None:
                return answer_of(item)
            try:
                await self._session.check_owner(item, self._session.clock.monotonic() - self._began)
            except PerdureError:
                item = await self._session.inbound(self.id)  # it may have been the last thing that the owner did
                if item.taken is not None:
                    return answer_of(item)
                raise
            await self._session.changed()

    async def wait(self) -> Settled:
        """How an input or a write was settled. Raises as `taken`; OwnerGone also where the owner ends before it is."""
        answer = await self.taken()
        if "submission" not in answer:
            raise UsageError(f"item {self.id} is no input and no write: there is nothing to settle; ask `taken`")
        submission = self._session.submission(answer["submission"])
        while (settled := await submission.settled()) is None:
            try:
                await self._session.check_owner(await self._session.inbound(self.id), 0.0)
            except OwnerGone:
                settled = await submission.settled()
                if settled is not None:
                    return settled
                raise
            await self._session.changed()
        return settled


def answer_of(item: Inbound) -> Any:
    """The owner's answer to an item that was taken. Raises what it was refused with."""
    match item.answer:
        case {"error": {"type": str(name), "message": str(message)}}:
            kind = getattr(errors, name, None)
            raise (kind if isinstance(kind, type) and issubclass(kind, PerdureError) else PerdureError)(message)
        case _:
            return item.answer


def described(owner: Worker) -> str:
    """An owner for people: its process, where it is, since when, and what it does."""
    since = datetime.fromtimestamp(owner.since, UTC).isoformat(timespec="seconds")
    if not owner.pid:
        return f"worker {owner.id} since {since}"
    here = owner.host == socket.gethostname()
    state = adapter("process-state")(owner.pid) if here else "seen from another host"
    return f"process {owner.pid} on {owner.host} since {since}, {state}"
