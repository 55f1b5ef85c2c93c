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
    """A commit between admission and flush."""

    __slots__ = ("_ended", "_waiting", "candidate", "change", "commit_id", "floor", "result", "shelved")

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
        #: Documents as this commit leaves them; None where it retires one.
        self.shelved = shelved
        #: Ids from here on were minted by this commit.
        self.floor = floor
        #: What storage said; set before the flights ahead of it have landed.
        self.result: Seq | StorageError | None = None
        #: How it ended, once it was published or refused; until then, who waits for that.
        self._ended: Seq | BaseException | None = None
        self._waiting: list[asyncio.Future[Seq]] = []

    async def landed(self) -> Seq:
        """Wait until it was published; raises why it was not. Each waiter has a future of its own: cancelling one is only that."""
        if self._ended is None:
            waiter: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            return await waiter
        if isinstance(self._ended, BaseException):
            raise self._ended
        return self._ended

    def resolve(self, seq: Seq) -> None:
        self._ended = seq
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(seq)

    def fail(self, error: BaseException) -> None:
        self._ended = error
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)
