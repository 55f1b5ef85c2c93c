"""The commit line: the only writer of a session (K2, K6, K8)."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from perdure.clock import Clock
from perdure.errors import (
    Fenced,
    PerdureError,
    SessionClosed,
    SessionPoisoned,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageRejected,
    StorageUncertain,
    UsageError,
)
from perdure.records import HoldReason, Seq, Task
from perdure.session.change import Change, Flight
from perdure.session.memory import Memory
from perdure.session.transaction import Transaction
from perdure.settle.rules import settle
from perdure.storage import Batch, Opened, Storage
from perdure.telemetry import Telemetry

if TYPE_CHECKING:
    from types import TracebackType

Tx = TypeVar("Tx", bound=Transaction)

#: The transaction whose body the current task is in. Children inherit it, so it counts only while that transaction is open.
_current: ContextVar[Transaction | None] = ContextVar("perdure.transaction", default=None)

#: A body that holds the line for longer is reported with its stack, in seconds.
SLOW_BODY = 1.0
#: Between two tries to write while the disk is full, or to look up a lost acknowledgement, in seconds.
RETRY_EVERY = 0.5


def forbid_inside_commit(what: str) -> None:
    """Raise where waiting would deadlock: inside the body of an open commit (K6)."""
    tx = _current.get()
    if tx is not None and tx.open:
        raise UsageError(f"{what} inside a commit would deadlock: leave the `async with … commit()` block first")


class Paused:
    """The rules before a scheduler is there: nothing is reserved, no definition is asked for."""

    mode: Literal["paused", "running", "closing"] = "paused"

    def fit(self, task: Task) -> tuple[HoldReason, str] | None:
        return None


class Line:
    """One session's line of commits.

    Invariants: one transaction is open at a time; batches are admitted in line order; a commit is published after storage accepted it
    and after every commit before it; `memory.tip` is `memory.published` plus the commits in flight.
    """

    def __init__(self, storage: Storage, opened: Opened, clock: Clock, telemetry: Telemetry) -> None:
        self.storage = storage
        self.claim = opened.claim
        self.session = opened.claim.session
        self.clock = clock
        self.telemetry = telemetry
        self.memory = Memory(storage, opened)
        #: What settling asks; the scheduler puts itself here.
        self.rules: Paused = Paused()
        #: Called with each published change, in order. They must not raise and must not wait.
        self.observers: list[Callable[[Change], None]] = []
        #: Why nothing can be committed any more.
        self.fault: StorageError | None = None
        self.closing = False
        #: The disk was full at the last try: no new effect starts (K5).
        self.full = False
        #: Grows when the tip falls back, so that a body that saw the lost tip is refused.
        self.fallbacks = 0
        self._lock = asyncio.Lock()
        self._flights: deque[Flight] = deque()
        self._lookups: dict[asyncio.Task[None], None] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._holder: tuple[asyncio.Task[object] | None, Transaction] | None = None

    # -- committing -------------------------------------------------------------------------

    def commit(self, make: Callable[[Line], Tx]) -> Commit[Tx]:
        """`async with line.commit(make) as tx`: durable and published when the block is left normally."""
        return Commit(self, make)

    def check(self) -> None:
        """Raise if the line takes nothing more in."""
        if self.fault is not None:
            if isinstance(self.fault, Fenced):
                raise Fenced(str(self.fault))
            raise SessionPoisoned(
                f"session {self.session!r} stopped after a failed write ({self.fault}): close it and open it again"
            ) from self.fault
        if self.closing:
            raise SessionClosed(f"session {self.session!r} is closed: open it again")

    async def flushed(self) -> None:
        """Wait until everything that is admitted by now was published. Raises what made one of them fail."""
        if self._flights:
            await self._flights[-1].landed()

    async def probe(self) -> None:
        """While the disk is full: try a commit of nothing, which clears `full` when it lands."""
        try:
            async with self.commit(Transaction) as tx:
                tx.forced = self.full
        except StorageRejected:
            return

    async def enter(self, make: Callable[[Line], Tx]) -> Tx:
        forbid_inside_commit("a commit")
        self.check()
        await self._lock.acquire()
        try:
            self.check()
            self.memory.trim()
            tx = make(self)
        except BaseException:
            self._lock.release()
            raise
        self._holder = (asyncio.current_task(), tx)
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(SLOW_BODY, self._look_at_holder, tx)
        return tx

    def leave(self, tx: Transaction) -> None:
        tx.shut()
        self._holder = None
        self._lock.release()

    async def admit(self, tx: Transaction) -> Flight | None:
        """Settle, prepare and hand to storage what the body staged. None when it staged nothing. Holds the lock."""
        await tx.check()
        ended = settle(tx.candidate, self.rules, tx.now) if tx.candidate.dirty else []
        await tx.retire(ended)
        self.check()
        if tx.fallbacks != self.fallbacks:
            raise StorageRejected("an earlier commit of this session was refused meanwhile; nothing was written, try again")
        prepared = tx.prepare()
        if prepared is None:
            return None
        memory = self.memory
        seq = Seq(memory.tip_seq + 1)
        change = Change(seq, tx.now, tx.candidate, tx.entries, prepared.documents, tx.inbound)
        flight = Flight(self.clock.token(), change, tx.candidate, prepared.shelved, tx.floor)
        batch = Batch(commit_id=flight.commit_id, seq=seq, next_id=tx.next_id, writes=prepared.writes)
        future = self.storage.commit(self.claim, batch)
        memory.advance(flight, tx.next_id)
        self._flights.append(flight)
        if future.done():
            self._landed(flight, future)
        else:
            future.add_done_callback(functools.partial(self._landed, flight))
        return flight

    # -- landing ----------------------------------------------------------------------------

    def _landed(self, flight: Flight, future: asyncio.Future[Seq]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is None:
            flight.result = future.result()
        elif isinstance(error, StorageUncertain):
            lookup = asyncio.get_running_loop().create_task(self._look_up(flight))
            self._lookups[lookup] = None
            lookup.add_done_callback(lambda done: self._lookups.pop(done, None))
            return
        elif isinstance(error, StorageError):
            flight.result = error
        else:
            flight.result = StorageFailed(f"the storage broke its contract: {error!r}")
        self._drain()

    async def _look_up(self, flight: Flight) -> None:
        """The acknowledgement got lost: the commit's id tells whether storage kept it (K5)."""
        while True:
            try:
                seq = await self.storage.find_commit(self.session, flight.commit_id)
                break
            except StorageError as error:
                if not isinstance(error, StorageUncertain):
                    flight.result = error
                    self._drain()
                    return
                await self.clock.sleep(RETRY_EVERY)
        flight.result = StorageRejected("the connection was lost before the commit arrived; nothing was kept") if seq is None else seq
        self._drain()

    def _drain(self) -> None:
        while self._flights and self._flights[0].result is not None:
            flight = self._flights.popleft()
            if isinstance(flight.result, StorageError):
                self._refused(flight, flight.result)
            else:
                self._publish(flight)

    def _publish(self, flight: Flight) -> None:
        """The only place where a commit becomes visible (K2)."""
        self.full = False
        self.memory.publish(flight)
        for observer in self.observers:
            observer(flight.change)
        flight.resolve(flight.change.seq)

    def _refused(self, flight: Flight, error: StorageError) -> None:
        behind = list(self._flights)
        self._flights.clear()
        self.fallbacks += 1
        self.memory.fall_back()
        if isinstance(error, StorageFull):
            self.full = True
        elif not isinstance(error, StorageRejected):
            self.fault = error
        self.telemetry.emit("perdure.commit.refused", {"behind": len(behind)}, {"error": type(error).__name__})
        flight.fail(error)
        for other in behind:
            if isinstance(error, StorageRejected):
                other.fail(type(error)(f"it stood behind a refused commit ({error}); nothing was written"))
            else:
                other.fail(error)
        if self.fault is not None:
            for observer in list(self.on_fault):
                observer(self.fault)

    @functools.cached_property
    def on_fault(self) -> list[Callable[[StorageError], None]]:
        """Called once when the line stops for good: fenced or poisoned."""
        return []

    # -- closing ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Take nothing more in, let what is admitted land."""
        self.closing = True
        if self._watch is not None:
            self._watch.cancel()
        async with self._lock:
            pass
        while self._flights:
            try:
                await self.flushed()
            except StorageError:
                break
        for lookup in list(self._lookups):
            lookup.cancel()

    def _look_at_holder(self, seen: Transaction) -> None:
        """Report a body that holds the line for over a second, with the stack that it waits in (K6)."""
        self._watch = None
        if self._holder is None:
            return
        task, tx = self._holder
        if tx is seen and task is not None:
            frames = task.get_stack()
            stack = [f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" for frame in frames]
            self.telemetry.emit("perdure.commit.slow", {"seconds": SLOW_BODY}, {"stack": stack, "session": self.session})
        self._watch = asyncio.get_running_loop().call_later(SLOW_BODY, self._look_at_holder, tx)


class Commit(Generic[Tx]):
    """One pass through the line. See `Line.commit`."""

    __slots__ = ("_line", "_make", "_token", "_tx")

    def __init__(self, line: Line, make: Callable[[Line], Tx]) -> None:
        self._line = line
        self._make = make

    async def __aenter__(self) -> Tx:
        tx = await self._line.enter(self._make)
        self._tx = tx
        self._token = _current.set(tx)
        return tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        line, tx = self._line, self._tx
        _current.reset(self._token)
        last = line.memory.last_flight
        flight: Flight | None = None
        try:
            if error is None:
                flight = await line.admit(tx)
        finally:
            line.leave(tx)
        if flight is not None:
            await flight.landed()
        elif last is not None and (error is None or isinstance(error, PerdureError)):
            await last.landed()  # what was read from the tip is answered only once it is durable (K8)
        return False
