"""Limits on what may be spent: held against the ledgers, before each request.

They are looked at in the commit that makes a request due, and again just before a request is sent that waited, was
repeated, or belongs to work of which others go on beside it. So what is in flight when a limit is reached is all that
it can be exceeded by. See `usage.charged` for what attempts of unknown cost come to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.harness.stored import USAGE, USAGE_BELOW, USAGE_TOTAL
from perdure.harness.usage import charged, owners_above
from perdure.records import ConversationId
from perdure.session.transaction import Transaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness, Settings


class Overspent(Exception):
    """A limit was reached while a request waited for its turn; its message says which."""


class Cap(NamedTuple):
    """One limit that a conversation's requests are under: `most` may be spent by `whose` ledgers."""

    setting: str
    most: float
    whose: str
    conversation: ConversationId


async def caps(harness: Harness, tx: Transaction, conversation: ConversationId, own: Settings) -> list[Cap]:
    """The limits that a conversation's requests are under: its own, those of the conversations above it, the
    session's."""
    found: list[Cap] = []
    if own.max_spend is not None:
        found.append(Cap("max_spend", own.max_spend, f"conversation {conversation}", conversation))
    at, settings = conversation, own
    above = owners_above(tx, conversation)
    while True:
        most = settings.max_subtree_spend
        if most is not None:
            found.append(Cap("max_subtree_spend", most, f"conversation {at} with those below it", at))
        next_one = await anext(above, None)
        if next_one is None:
            break
        at, settings = next_one, await harness.settings(tx, next_one)
    if own.max_session_spend is not None:
        found.append(Cap("max_session_spend", own.max_session_spend, "the session", conversation))
    return found


async def reached(tx: Transaction, limits: list[Cap]) -> str | None:
    """Which of these limits is reached, in words for the submission that it ends; None while there is room."""
    for cap in limits:
        spent = await _spent(tx, cap)
        if spent >= cap.most:
            return f"{cap.whose} spent {spent:.4g} of at most {cap.most:.4g}: raise {cap.setting} to go on"
    return None


async def _spent(tx: Transaction, cap: Cap) -> float:
    if cap.setting == "max_session_spend":
        return charged(await tx.snapshot(USAGE_TOTAL))
    spent = charged(await tx.snapshot(USAGE, cap.conversation))
    if cap.setting == "max_subtree_spend":
        spent += charged(await tx.snapshot(USAGE_BELOW, cap.conversation))
    return spent


def capped(limits: list[Cap]) -> dict[str, Any]:
    """What a checkpoint keeps of it: nothing, where there is no limit."""
    return {"capped": True} if limits else {}


async def stopped_by(harness: Harness, conversation: ConversationId) -> str | None:
    """Which limit stands in the way of sending a request of this conversation now, as of the tip; None for none."""
    async with harness.line.commit(Transaction) as tx:
        return await reached(tx, await caps(harness, tx, conversation, await harness.settings(tx, conversation)))
