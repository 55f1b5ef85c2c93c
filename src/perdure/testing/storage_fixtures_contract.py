"""What the laws of a storage have in common: fixtures, and a claim that numbers its own commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from perdure.records import ConversationId, DocumentId, EntryId, Seq, SubmissionId, TaskId
from perdure.storage import (
    Batch,
    Claim,
    Opened,
    PutConversation,
    PutDocument,
    PutEntry,
    PutSubmission,
    PutTask,
    Storage,
    Write,
)

Beside = Callable[[], Awaitable[Storage]]


class StorageLaws:
    """Fixtures of the storage laws. A backend's tests give `storage` and `open_beside`."""

    pytestmark = pytest.mark.anyio
    #: Whether `storage` comes from `reopening`: a few laws speak of one handle that stays open.
    reopens = False

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def storage(self) -> Storage:
        """An empty storage, closed afterwards."""
        raise NotImplementedError("give an async fixture `storage` that yields an empty storage")

    async def open_beside(self, storage: Storage) -> Storage:
        """Another handle on the data of `storage`, open or closed, with a worker of its own."""
        raise NotImplementedError("open a second handle on the data of `storage`")

    @pytest.fixture
    async def beside(self, storage: Storage) -> AsyncIterator[Beside]:
        """Opens more handles on the same data, and closes them afterwards."""
        opened: list[Storage] = []

        async def open_another() -> Storage:
            opened.append(await self.open_beside(storage))
            return opened[-1]

        yield open_another
        for each in opened:
            await each.close()

    @pytest.fixture
    async def main(self, storage: Storage) -> Line:
        """The session `main`, claimed."""
        return await claimed(storage)


class Line:
    """A claimed session whose commits number themselves."""

    def __init__(self, storage: Storage, opened: Opened) -> None:
        self.storage = storage
        self.opened = opened
        self.claim = opened.claim
        self.seq = opened.head

    @property
    def session(self) -> str:
        return self.claim.session

    def commit(self, *writes: Write, next_id: int = 1000) -> asyncio.Future[Seq]:
        """The next commit."""
        self.seq = Seq(self.seq + 1)
        return self.at(self.seq, *writes, next_id=next_id)

    def at(self, seq: int, *writes: Write, next_id: int = 1000, claim: Claim | None = None) -> asyncio.Future[Seq]:
        """A commit of any number, by any claim."""
        batch = Batch(commit_id_of(self.claim, seq), Seq(seq), next_id, writes)
        return self.storage.commit(claim or self.claim, batch)


async def claimed(storage: Storage, session: str = "main", *, take_over: bool = False) -> Line:
    return Line(storage, await storage.claim(session, take_over=take_over))


def commit_id_of(claim: Claim, seq: int) -> bytes:
    return f"{claim.session[:4]}-{claim.epoch:04d}-{seq:06d}".encode()


# -- rows, with a body that says what they are


def conversation(
    id: int,
    *,
    key: str | None = None,
    owner: int | None = None,
    parent: int | None = None,
    listed: bool = True,
    body: bytes | None = None,
) -> PutConversation:
    return PutConversation(
        id=ConversationId(id),
        key=key,
        owner=None if owner is None else TaskId(owner),
        parent=None if parent is None else ConversationId(parent),
        listed=listed,
        body=body or b"conversation %d" % id,
    )


def entry(id: int, of: int = 1, *, head: int | None = None, body: bytes | None = None) -> PutEntry:
    return PutEntry(
        id=EntryId(id),
        conversation=ConversationId(of),
        head=None if head is None else EntryId(head),
        body=b"entry %d" % id if body is None else body,
    )


def task(id: int, *, ended: float | None = None, body: bytes | None = None) -> PutTask:
    return PutTask(id=TaskId(id), live=ended is None, ended=ended, body=body or b"task %d" % id)


def submission(
    id: int, of: int = 1, *, request: str | None = None, ended: float | None = None, body: bytes | None = None
) -> PutSubmission:
    return PutSubmission(
        id=SubmissionId(id),
        conversation=ConversationId(of),
        request_id=request,
        live=ended is None,
        ended=ended,
        body=body or b"submission %d" % id,
    )


def document(
    id: int,
    kind: str = "todo",
    *,
    scope: str = "conversation",
    owner: int = 1,
    key: str = "",
    retired: bool = False,
    body: bytes | None = None,
) -> PutDocument:
    return PutDocument(
        id=DocumentId(id),
        scope=scope,
        owner=owner,
        kind=kind,
        key=key,
        retired=retired,
        body=body or b"document %d" % id,
    )
