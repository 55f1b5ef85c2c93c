"""Inputs that were not answered, and why: a transcript has what was asked, the stored submission how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.app.looking import ReadConversation, ReadSession
from perdure.commands.text import one_line
from perdure.commands.trail import facts
from perdure.errors import NotFound
from perdure.harness.stored import USER
from perdure.harness.submissions import NotAnswered
from perdure.messages import AssistantMessage
from perdure.records import Entry

#: How many of the newest entries are looked through for the last input.
LOOKED_THROUGH = 50


class Unanswered(msgspec.Struct, frozen=True, kw_only=True):
    """An input that was placed as `entry` and not answered."""

    submission: int
    entry: int
    reason: str
    detail: str

    @property
    def line(self) -> str:
        """For people."""
        return f"not answered ({self.reason})" + (f": {one_line(self.detail, 500)}" if self.detail else "")


async def unanswered_in(session: ReadSession, entries: Sequence[Entry]) -> Mapping[int, Unanswered]:
    """Those among these entries, by entry. One read for each entry of a user."""
    found: dict[int, Unanswered] = {}
    for entry in entries:
        submission = facts(entry).get("submission") if entry.kind == USER.name else None
        if not isinstance(submission, int):
            continue
        try:
            settled = await session.submission(submission).settled()
        except NotFound:  # pruned
            continue
        if isinstance(settled, NotAnswered):
            found[entry.id] = Unanswered(
                submission=submission, entry=entry.id, reason=settled.reason, detail=settled.detail
            )
    return found


async def last_unanswered(session: ReadSession, chat: ReadConversation) -> Unanswered | None:
    """The last input of a conversation, if it was not answered; of those that the newest entries hold.

    A conversation whose newest entry is a whole answer takes one read of one entry.
    """
    newest = await chat.entries(limit=1)
    if not newest or _answers(newest[0]):
        return None
    page = await chat.entries(limit=LOOKED_THROUGH)
    for entry in page:
        if _answers(entry):
            return None
        if entry.kind == USER.name:
            return (await unanswered_in(session, [entry])).get(entry.id)
    return None


def _answers(entry: Entry) -> bool:
    """Whether it is an answer that ends a run."""
    return any(isinstance(message, AssistantMessage) and message.stop == "stop" for message in entry.messages)
