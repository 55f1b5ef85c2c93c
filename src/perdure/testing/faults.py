"""Storages that misbehave: a fault at the n-th write, faults by chance, and acknowledgements that take their time.

They wrap a storage that works, and every read goes straight to it. What a fault does is one of these:

- `before`: refused, and the answer is there when the call returns. Nothing is kept.
- `refused`: refused (StorageRejected) after what was admitted before it is settled. Nothing is kept.
- `full`: as `refused`, for want of space (StorageFull).
- `lost`: the batch got lost on the way (StorageUncertain). Nothing is kept.
- `after`: only the acknowledgement got lost (StorageUncertain). The batch is kept.
- `poison`: the write failed in doubt (StorageFailed), and so does every later one until `heal`. Nothing is kept.
- `poison_after`: as `poison`, but the batch is kept.

What stands behind a batch that was not kept is refused by the wrapped storage itself: its number does not follow.
Answers come in the order of admission, but for `before`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perdure.clock import Clock
from perdure.errors import StorageError, StorageFailed, StorageFull, StorageRejected, StorageUncertain, UsageError
from perdure.records import Inbound, Seq
from perdure.storage import Batch, Claim, Storage

How = Literal["before", "refused", "full", "lost", "after", "poison", "poison_after"]
#: What a fault may strike: the two writes, and looking up a lost acknowledgement.
Op = Literal["commit", "hand_in", "find_commit"]


class Fault(msgspec.Struct, frozen=True):
    """What happens to one write."""

    error: type[StorageError]
    message: str
    kept: bool = False
    at_once: bool = False
    poisons: bool = False


FAULTS: Mapping[How, Fault] = {
    "before": Fault(StorageRejected, "refused before anything was written", at_once=True),
    "refused": Fault(StorageRejected, "refused"),
    "full": Fault(StorageFull, "no space left"),
    "lost": Fault(StorageUncertain, "the connection broke before an answer came"),
    "after": Fault(StorageUncertain, "the connection broke before an answer came", kept=True),
    "poison": Fault(StorageFailed, "the write failed", poisons=True),
    "poison_after": Fault(StorageFailed, "the sync failed", kept=True, poisons=True),
}


if TYPE_CHECKING:

    class _Everything(Any):
        """To a type checker a relay has every method there is, so that a port that grows needs no change here."""

else:
    _Everything = object


class Relay(_Everything):
    """Passes everything on to `inner`, but for what a subclass overrides."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Faulty(Relay):
    """Asks `choose` before every write which fault strikes it. `count[op]` includes the one being asked about."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.count: dict[Op, int] = {"commit": 0, "hand_in": 0, "find_commit": 0}
        #: What struck so far: (operation, its number, how).
        self.struck: list[tuple[Op, int, How]] = []
        self.poisoned = False
        self._healed = False
        #: The answer to the commit that was admitted last; the next answer does not come before it.
        self._last: asyncio.Future[Seq] | None = None

    def choose(self, op: Op) -> How | None:
        raise NotImplementedError

    def heal(self) -> None:
        """No more faults from here on; what was poisoned works again, as after reopening."""
        self._healed = True
        self.poisoned = False

    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]:
        fault = self._strike("commit")
        if fault is not None and fault.at_once:
            refused: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()
            _fail(refused, fault)
            return refused
        kept = self.inner.commit(claim, batch) if fault is None or fault.kept else None
        previous, self._last = self._last, kept
        if fault is None and kept is not None and (previous is None or previous.done()):
            return kept
        outcome = self._last = asyncio.get_running_loop().create_future()
        earlier = [future for future in (previous, kept) if future is not None]
        outcome.get_loop().call_soon(_settle, outcome, earlier, kept, fault)
        return outcome

    async def hand_in(self, session: str, item: Inbound) -> Inbound:
        fault = self._strike("hand_in")
        if fault is None:
            return await self.inner.hand_in(session, item)
        if fault.kept:
            await self.inner.hand_in(session, item)
        raise fault.error(fault.message)

    async def find_commit(self, session: str, commit_id: bytes) -> Seq | None:
        fault = self._strike("find_commit")
        if fault is not None:
            raise fault.error(fault.message)
        return await self.inner.find_commit(session, commit_id)

    def _strike(self, op: Op) -> Fault | None:
        self.count[op] += 1
        if self.poisoned and op != "find_commit":
            return FAULTS["poison"]
        how = None if self._healed else self.choose(op)
        if how is None:
            return None
        self.struck.append((op, self.count[op], how))
        self.poisoned = self.poisoned or FAULTS[how].poisons
        return FAULTS[how]


class Failing(Faulty):
    """The n-th write (counted from 1) fails, and the `times` - 1 that follow it."""

    def __init__(self, inner: Storage, at: int, how: How = "refused", *, times: int = 1, op: Op = "commit") -> None:
        super().__init__(inner)
        if how not in FAULTS:
            raise UsageError(f"no fault is called {how!r}; there are {', '.join(FAULTS)}")
        if at < 1:
            raise UsageError(f"writes are counted from 1; at={at!r} never comes")
        self._op = op
        self._numbers = range(at, at + times)
        self._how: How = how

    def choose(self, op: Op) -> How | None:
        return self._how if op == self._op and self.count[op] in self._numbers else None


class RandomFaults(Faulty):
    """Faults by chance: each write is struck by each kind at its rate. `random` draws from [0, 1), as a clock's does.

    Looking up a commit fails (StorageUncertain) at the rate of `lookup`, as while a connection is not back.
    """

    def __init__(
        self, inner: Storage, random: Callable[[], float], rates: Mapping[How, float], *, lookup: float = 0.0
    ) -> None:
        super().__init__(inner)
        self._random = random
        self._rates = tuple(rates.items())
        self._lookup = lookup

    def choose(self, op: Op) -> How | None:
        drawn = self._random()
        if op == "find_commit":
            return "lost" if drawn < self._lookup else None
        for how, rate in self._rates:
            if drawn < rate:
                return how
            drawn -= rate
        return None


class Slow(Relay):
    """Acknowledges commits late: each `delay` after it was admitted, and never before an earlier one.

    They are admitted when called, so that a session can have several in flight; `most` is how many there were at once.
    When `delays` ends, the rest is acknowledged without delay.
    """

    def __init__(self, inner: Storage, clock: Clock, delays: Iterable[float]) -> None:
        super().__init__(inner)
        self.most = 0
        self._clock = clock
        self._delays = iter(delays)
        #: Acknowledgements under way, in the order of admission.
        self._waiting: dict[asyncio.Task[None], None] = {}

    @property
    def in_flight(self) -> int:
        """Commits that were admitted and not acknowledged."""
        return len(self._waiting)

    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]:
        kept = self.inner.commit(claim, batch)
        outcome: asyncio.Future[Seq] = asyncio.get_running_loop().create_future()
        earlier = next(reversed(self._waiting), None)
        task = asyncio.ensure_future(self._acknowledge(kept, outcome, earlier, next(self._delays, 0.0)))
        self._waiting[task] = None
        task.add_done_callback(self._waiting.pop)
        self.most = max(self.most, len(self._waiting))
        return outcome

    async def _acknowledge(
        self, kept: asyncio.Future[Seq], outcome: asyncio.Future[Seq], earlier: asyncio.Task[None] | None, delay: float
    ) -> None:
        await self._clock.sleep(delay)
        await asyncio.wait([kept] if earlier is None else [kept, earlier])
        _pass_on(kept, outcome)

    async def close(self) -> None:
        if self._waiting:
            await asyncio.wait(list(self._waiting))
        await self.inner.close()


def _fail(outcome: asyncio.Future[Seq], fault: Fault) -> None:
    if not outcome.done():
        outcome.set_exception(fault.error(fault.message))


def _settle(
    outcome: asyncio.Future[Seq],
    earlier: Sequence[asyncio.Future[Seq]],
    kept: asyncio.Future[Seq] | None,
    fault: Fault | None,
) -> None:
    """Answer once everything earlier was. The acknowledgement of a batch that was kept is what a fault takes away."""
    for future in earlier:
        if not future.done():
            future.add_done_callback(lambda _: _settle(outcome, earlier, kept, fault))
            return
    if fault is None or (kept is not None and (kept.cancelled() or kept.exception() is not None)):
        assert kept is not None
        _pass_on(kept, outcome)
    else:
        _fail(outcome, fault)


def _pass_on(kept: asyncio.Future[Seq], outcome: asyncio.Future[Seq]) -> None:
    if outcome.done():
        return
    if kept.cancelled():
        outcome.cancel()
    elif (error := kept.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(kept.result())


__all__ = ["FAULTS", "Failing", "Fault", "Faulty", "How", "Op", "RandomFaults", "Relay", "Slow"]
