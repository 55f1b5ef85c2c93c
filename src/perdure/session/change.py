"""What a commit did: the one thing that observers are given, after storage accepted it (K2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from perdure.errors import StorageError
from perdure.records import Conversation, Entry, Inbound, Seq, Submission, Task
from perdure.session.documents import DocumentChange, Loaded, Name, Owner
from perdure.settle.state import Candidate


class Change:
    """The records of one commit."""

    __slots__ = ("at", "conversations", "documents", "entries", "inbound", "seq", "submissions", "tasks")

    def __init__(
        self,
        seq: Seq,
        at: float,
        candidate: Candidate,
        entries: Sequence[Entry],
        documents: Sequence[DocumentChange],
        inbound: Sequence[Inbound],
    ) -> None:
        self.seq = seq
        self.at = at
        self.entries = entries
        self.tasks: dict[Any, Task] = candidate.tasks
        self.submissions: dict[Any, Submission] = candidate.submissions
        self.conversations: dict[Any, Conversation] = candidate.conversations
        self.documents = documents
        self.inbound = inbound


class Flight:
    """A commit between admission and landing. It lands when it was published, or when it is known not to be kept."""

    __slots__ = (
        "_waiters",
        "bare",
        "candidate",
        "change",
        "commit_id",
        "error",
        "floor",
        "landed",
        "owners",
        "result",
        "shelved",
    )

    def __init__(
        self,
        commit_id: bytes,
        change: Change,
        candidate: Candidate,
        shelved: Sequence[tuple[Owner, Name, Loaded | None]],
        floor: int,
    ) -> None:
        self.commit_id = commit_id
        self.change = change
        self.candidate = candidate
        #: It holds entries and documents only.
        self.bare = candidate.empty
        #: The conversations and tasks that this commit made, as owners of documents.
        self.owners: tuple[Owner, ...] = () if self.bare else _made(candidate, floor)
        #: Documents as this commit leaves them; None where it retires one.
        self.shelved = shelved
        #: Ids from here on were minted by this commit.
        self.floor = floor
        #: What storage answered; the flight lands when those before it have.
        self.result: Seq | StorageError | None = None
        self.landed = False
        #: Why it was not kept, once it landed.
        self.error: StorageError | None = None
        #: One future for each that waits, so that cancelling one wait leaves the others alone.
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait until it landed. Raises why it was not kept."""
        if not self.landed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self.error is not None:
            raise type(self.error)(*self.error.args)  # each that waits gets an error, and a traceback, of its own

    def land(self, error: StorageError | None = None) -> None:
        self.landed = True
        self.error = error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


def _made(candidate: Candidate, floor: int) -> tuple[Owner, ...]:
    conversations = (("conversation", int(id)) for id in candidate.conversations if id >= floor)
    return (*conversations, *(("task", int(id)) for id in candidate.tasks if id >= floor))
