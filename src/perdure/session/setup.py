"""Setting up the conversations that a commit makes, in that commit (H37)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from perdure.errors import UsageError
from perdure.records import Conversation
from perdure.session.transaction import Transaction

#: Stages what a new conversation starts with. What it raises fails the commit.
Setup: TypeAlias = Callable[[Transaction, Conversation], Awaitable[None]]

#: Conversations that one commit makes at most, where there is setup: one that makes others would never end.
MOST_MADE = 10_000


async def set_up(setup: Setup | None, tx: Transaction) -> None:
    """Set up what the transaction made and is not set up yet, what setting up makes included."""
    while tx.created and setup is not None:
        if tx.set_up >= MOST_MADE:
            raise UsageError(f"this commit makes more than {MOST_MADE} conversations: does their setup make others?")
        tx.set_up += 1
        await setup(tx, tx.created.pop(0))
