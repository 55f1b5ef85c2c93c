"""What sessions, conversations and submissions offer, in this process or at the end of a connection.

`SessionReader` and `ConversationReader` only look; `Session` and `Conversation` also hand in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from perdure.messages import UserMessage
from perdure.records import Conversation as ConversationRecord
from perdure.records import ConversationId, Entry, EntryId
from perdure.surface.events import Events
from perdure.surface.frames import Frame
from perdure.surface.settled import Settled, WhenBusy

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Stream(Protocol[T_co]):
    """What is told of a view, in order. Ends when there is nothing more to tell; `ended` says why."""

    @property
    def ended(self) -> str | None: ...

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    async def __anext__(self) -> T_co: ...


@runtime_checkable
class Live(Protocol):
    """A view that follows each commit until its block is left. Raises HandleExpired once it has ended."""

    @property
    def seq(self) -> int: ...

    @property
    def value(self) -> Any: ...


@runtime_checkable
class ConversationReader(Protocol):
    """A conversation that is looked at."""

    @property
    def id(self) -> ConversationId: ...

    async def record(self) -> ConversationRecord: ...

    async def entries(self, *, before: EntryId | None = None, limit: int = 100) -> list[Entry]: ...

    async def usage(self) -> dict[str, Any]: ...

    def view(self) -> AbstractAsyncContextManager[Live]: ...

    def watch(self) -> AbstractAsyncContextManager[Stream[Frame]]: ...

    def events(self) -> AbstractAsyncContextManager[Stream[Events]]: ...


@runtime_checkable
class Submission(Protocol):
    """Something that was handed in."""

    async def wait(self) -> Settled: ...


@runtime_checkable
class Conversation(ConversationReader, Protocol):
    """A conversation that is worked with."""

    async def submit(
        self, content: str | UserMessage, *, request_id: str | None = None, when_busy: WhenBusy = "follow_up"
    ) -> Submission: ...

    async def abort(
        self,
        *,
        background: bool = False,
        queue: Literal["withdraw", "keep"] = "withdraw",
        reason: str = "aborted by the user",
    ) -> Any: ...


@runtime_checkable
class SessionReader(Protocol):
    """A session that is looked at."""

    async def root(self) -> ConversationReader: ...

    async def conversation(self, key: str) -> ConversationReader: ...

    async def find(self, id: int) -> ConversationReader: ...

    async def conversations(self, *, before: int | None = None, limit: int = 20) -> list[ConversationRecord]: ...

    async def usage(self) -> dict[str, Any]: ...

    def task_graph(self) -> AbstractAsyncContextManager[Live]: ...

    def watch_task_graph(self) -> AbstractAsyncContextManager[Stream[Frame]]: ...


@runtime_checkable
class Session(SessionReader, Protocol):
    """A session that is worked in."""

    async def root(self) -> Conversation: ...

    async def conversation(self, key: str) -> Conversation: ...

    async def find(self, id: int) -> Conversation: ...

    async def answer(self, question: int, value: Any, *, by: str | None = None) -> Any: ...

    async def abort_task(self, id: int, reason: str = "aborted by the user") -> Any: ...

    async def retry(self, id: int) -> Any: ...
