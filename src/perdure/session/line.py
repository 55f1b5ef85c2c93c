"""The commit line: the only writer of a session (K2, K6, K8)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from perdure.clock import Clock
from perdure.errors import (
    Fenced,
    HandleExpired,
    PerdureError,
    Revoked,
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
from perdure.session.judging import in_memory, judge
from perdure.session.memory import Memory
from perdure.session.preparing import prepare
from perdure.session.setup import Setup, set_up
from perdure.session.slow import SlowBodies
from perdure.session.space import Space
from perdure.session.steps import rest
from perdure.session.transaction import Transaction
from perdure.settle.rules import settle
from perdure.storage import Batch, Opened, Storage
from perdure.telemetry import Telemetry

if TYPE_CHECKING:
    from types import TracebackType

Tx = TypeVar("Tx", bound=Transaction)

#: The transaction whose body the current task is in. Children inherit it: it counts only while it is open.
_current: ContextVar[Transaction | None] = ContextVar("perdure.transaction", default=None)

#: Between two tries to look up a lost acknowledgement, in seconds.
RETRY_EVERY = 0.5


def enter_body(tx: Transaction) -> None:
    """What runs in this context from now on belongs to the body of this transaction."""
    _current.set(tx)


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

    def stages(self, task: Task) -> bool:
        return False

    async def advance(self, tx: Transaction) -> bool:
        """Stage what the tasks that this commit reserves need not wait to stage. Whether anything changed."""
        return False


class Line:
    """One session's line of commits.

    Invariants: one transaction is open at a time; batches are admitted in line order;
    a commit is published after storage accepted it and after every commit before it;
    `memory.tip` is `memory.published` plus the commits in flight.
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
        self.setup: Setup | None = None
        #: Called once when the line ends: with the fault that stopped it for good, or None where it was closed.
        self.on_end: list[Callable[[StorageError | None], None]] = []
        #: Why nothing can be committed any more.
        self.fault: StorageError | None = None
        self.closing = False
        self.space = Space(self)
        self._lock = asyncio.Lock()
        #: Admissions that have to read storage first, and lost acknowledgements that are looked up.
        self._admissions: dict[asyncio.Task[Flight | None], None] = {}
        self._lookups: dict[asyncio.Task[None], None] = {}
        self.slow = SlowBodies(telemetry, self.session)

    # -- committing -------------------------------------------------------------------------

    def commit(self, make: Callable[[Line], Tx]) -> Commit[Tx]:
        """`async with line.commit(make) as tx`: durable and published when the block is left normally."""
        return Commit(self, make)

    def check_fault(self) -> None:
        """Raise if the line stopped for good: what is read from now on may never have reached the disk (K5)."""
        if self.fault is None:
            return
        if isinstance(self.fault, Fenced):
            raise Fenced(str(self.fault))
        raise SessionPoisoned(
            f"session {self.session!r} stopped when its storage failed ({self.fault}): close it and open it again"
        ) from self.fault

    def check(self) -> None:
        """Raise if the line takes nothing more in."""
        self.check_fault()
        if self.closing:
            raise SessionClosed(f"session {self.session!r} is closed: open it again")

    @property
    def full(self) -> bool:
        """The disk was full at the last try: no new effect starts (K5)."""
        return self.space.full

    async def flushed(self) -> None:
        """Wait until everything that is admitted by now landed. Raises what made one of them fail."""
        last = self.memory.last_flight
        if last is not None:
            await last.wait()

    async def enter(self, make: Callable[[Line], Tx]) -> Tx:
        forbid_inside_commit("a commit")
        self.check()
        await self._lock.acquire()
        try:
            if self.closing or self.fault is not None:
                self.check()
            self.memory.trim()
            tx = make(self)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, HandleExpired | Revoked):
                await self.flushed()  # what the tip refuses is told once the tip is durable (K8)
            raise
        self.slow.entered(tx)
        return tx

    def leave(self, tx: Transaction) -> None:
        tx.shut()
        self.slow.left()
        self._lock.release()

    async def finish(self, tx: Transaction) -> Flight | None:
        """Settle, prepare and hand to storage what the body staged; the line is free afterwards.

        From here on cancelling the caller undoes nothing (K6). None when nothing was staged.
        An admission that has to wait does so in a task of its own, which cancelling the caller does not reach.
        """
        admission = self._settle_and_admit(tx)
        try:
            waits_for = admission.send(None)
        except StopIteration as done:  # most have nothing to wait for
            return done.value
        task = asyncio.get_running_loop().create_task(rest(admission, waits_for), name="perdure admission")
        self._admissions[task] = None
        task.add_done_callback(self._admission_done)
        await asyncio.wait([task])
        return task.result()

    def _admission_done(self, task: asyncio.Task[Flight | None]) -> None:
        self._admissions.pop(task, None)
        if not task.cancelled():
            task.exception()  # a caller that was cancelled does not come back for it

    async def _settle_and_admit(self, tx: Transaction) -> Flight | None:
        try:
            if self.closing or self.fault is not None:
                self.check()
            self._check_tip(tx)
            tx.admissible()
            if tx.unfinished is not None:
                await tx.unfinished
            tx.drafts.judge()
            if not in_memory(tx):
                await judge(tx)
            if tx.candidate.dirty:
                ended = settle(tx.candidate, self.rules, tx.now)
                while tx.candidate.reserved and await self.rules.advance(tx):
                    await set_up(self.setup, tx)
                    ended += settle(tx.candidate, self.rules, tx.now)
                if ended:
                    await tx.drafts.retire(ended)
            self.check_fault()
            self._check_tip(tx)
            return self._admit(tx)
        except StorageError:
            raise
        except PerdureError:
            self._check_tip(tx)  # a refusal that was computed from a lost tip says nothing
            raise
        finally:
            self.leave(tx)

    def _check_tip(self, tx: Transaction) -> None:
        if tx.fallbacks != self.memory.fallbacks:
            self.check_fault()
            raise StorageRejected("an earlier commit of this session was refused meanwhile; nothing was written")

    def _admit(self, tx: Transaction) -> Flight | None:
        prepared = prepare(tx)
        if prepared is None:
            return None
        memory = self.memory
        seq = Seq(memory.tip_seq + 1)
        change = Change(seq, tx.now, tx.candidate, tx.entries, prepared.documents, tx.inbound)
        flight = Flight(self.clock.token(), change, tx.candidate, prepared.shelved, tx.floor)
        batch = Batch(commit_id=flight.commit_id, seq=seq, next_id=tx.next_id, writes=prepared.writes)
        future = self.storage.commit(self.claim, batch)
        memory.advance(flight, tx.next_id)
        tx.admitted(flight)
        if future.done():
            self._acknowledged(flight, future)
        else:
            future.add_done_callback(functools.partial(self._acknowledged, flight))
        return flight

    async def confirm(self, tx: Transaction, last: Flight | None) -> None:
        """Wait until what the transaction saw is durable: only then may its answer be given (K8)."""
        self._check_tip(tx)
        if last is not None:
            await last.wait()

    # -- landing ----------------------------------------------------------------------------

    def _acknowledged(self, flight: Flight, future: asyncio.Future[Seq]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is None:
            flight.result = future.result()
        elif isinstance(error, StorageUncertain):
            if not flight.landed:
                lookup = asyncio.get_running_loop().create_task(self._look_up(flight), name="perdure lookup")
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
        while not flight.landed:
            try:
                seq = await self.storage.find_commit(self.session, flight.commit_id)
            except StorageUncertain:
                await self.clock.sleep(RETRY_EVERY)
                continue
            except Exception as error:
                doubt = f"whether commit {flight.change.seq} was kept could not be found out: {error!r}"
                flight.result = error if isinstance(error, Fenced) else StorageFailed(doubt)
            else:
                lost = StorageRejected("the connection was lost before the commit arrived; nothing was kept")
                flight.result = lost if seq is None else seq
            self._drain()
            return

    def _drain(self) -> None:
        flights = self.memory.flights
        while flights and flights[0].result is not None:
            flight = flights[0]
            if isinstance(flight.result, StorageError):
                self._refused(flight.result)
            else:
                self._publish(flight)

    def _publish(self, flight: Flight) -> None:
        """The only place where a commit becomes visible (K2)."""
        self.memory.publish(flight)
        self.space.note(full=False)
        for observer in tuple(self.observers):
            try:
                observer(flight.change)
            except Exception as error:  # who watches must not be able to break the line
                self.telemetry.emit("perdure.observer.failed", metadata={"error": repr(error)})
        flight.land()

    def _refused(self, error: StorageError) -> None:
        """The oldest commit in flight was not kept, and so none behind it (K8)."""
        if not isinstance(error, StorageRejected):
            self.fault = error
        lost = self.memory.fall_back()
        self.space.note(full=isinstance(error, StorageFull))
        self.telemetry.emit("perdure.commit.refused", {"behind": len(lost) - 1}, {"error": type(error).__name__})
        lost[0].land(error)
        for other in lost[1:]:
            other.land(type(error)(f"it stood behind a commit that was refused ({error}); nothing was written"))
        if self.fault is not None:
            self._end(self.fault)

    def stop(self, error: StorageError) -> None:
        """Stop for good, as after a failed write: what the session needs for its own records cannot be read (K5)."""
        if self.fault is None:
            self.fault = error
            self._end(error)

    def _end(self, fault: StorageError | None) -> None:
        observers, self.on_end = self.on_end, []
        for observer in observers:
            observer(fault)

    # -- closing ----------------------------------------------------------------------------

    def seal(self) -> None:
        """Take nothing more in. A body that is still open is refused when it ends."""
        self.closing = True

    async def close(self) -> None:
        """Take nothing more in, and let what is admitted land."""
        self.seal()
        self.slow.stop()
        while self._admissions:
            await asyncio.wait(list(self._admissions))
        while self.memory.flights:
            try:
                await self.flushed()
            except StorageError:
                continue
        for task in list(self._lookups):
            task.cancel()
        await self.space.close()
        self._end(None)


class Commit(Generic[Tx]):
    """One pass through the line. See `Line.commit`."""

    __slots__ = ("_line", "_make", "_tx")

    def __init__(self, line: Line, make: Callable[[Line], Tx]) -> None:
        self._line = line
        self._make = make

    async def __aenter__(self) -> Tx:
        tx = self._tx = await self._line.enter(self._make)
        enter_body(tx)
        return tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        line, tx = self._line, self._tx
        last = line.memory.last_flight
        failed = error
        if error is None and tx.created:
            try:
                await set_up(line.setup, tx)
            except BaseException as raised:
                failed = raised
        if failed is not None:
            _current.set(None)
            line.leave(tx)
            if isinstance(failed, PerdureError):
                await line.confirm(tx, last)
            if failed is not error:
                raise failed
            return False
        try:
            flight = await line.finish(tx)
        except StorageError:
            raise
        except PerdureError:
            await line.confirm(tx, last)
            raise
        finally:
            _current.set(None)
        if flight is not None:
            await flight.wait()
        elif last is not None:
            await line.confirm(tx, last)
        return False
