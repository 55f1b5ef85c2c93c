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
    """A commit between admission and flush. `done` resolves after the commit was published, or fails with why it was not."""

    __slots__ = ("candidate", "change", "commit_id", "done", "floor", "result", "shelved")

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
        self.result: Seq | StorageError | None = None
        self.done: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()

    def resolve(self, seq: Seq) -> None:
        if not self.done.done():
            self.done.set_result(seq)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # a caller that was cancelled does not come back for it
