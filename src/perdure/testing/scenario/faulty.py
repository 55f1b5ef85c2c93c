"""The run on a storage that fails at its n-th write, in this process and in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from perdure.app.opening import open_session
from perdure.app.session import Session
from perdure.backends.memory import MemoryStorage
from perdure.errors import StorageError
from perdure.telemetry import Telemetry
from perdure.testing.clock import LoopClock
from perdure.testing.faults import Failing, How, Op
from perdure.testing.loop import SimulatedLoop, run
from perdure.testing.scenario.cast import Numbers, Stage, model_of, registry_of
from perdure.testing.scenario.client import SESSION, live
from perdure.testing.scenario.judge import after_crash, at_end
from perdure.testing.scenario.notes import Notes
from perdure.testing.scenario.stored import read_stored

#: How many sessions a run may take: the one that the fault hits, those that it stops, and the last.
MOST_LIVES = 4


class Weathered(msgspec.Struct, frozen=True, kw_only=True):
    """A run that a fault hit, or not: then it has fewer writes. `wrong` is what did not hold.

    `early` are effects that started while nothing could be recorded.
    """

    at: int
    struck: bool
    lives: int
    writes: int
    told: bool  #: a caller saw a refusal, or a session that stopped
    wrong: list[str]
    early: list[str]


class CutOff(Failing):
    """The connection is not back for the first lookups of what was lost."""

    def __init__(self, *given: Any, lookups: int, **more: Any) -> None:
        super().__init__(*given, **more)
        self._lookups = lookups

    def choose(self, op: Op) -> How | None:
        if op == "find_commit":
            return "lost" if self.count[op] <= self._lookups else None
        return super().choose(op)


def weather(
    variant: str, how: How, at: int, *, times: int = 1, op: Op = "commit", lookups: int = 0, seed: int = 0
) -> Weathered:
    """Run a variant on a storage whose `at`-th write fails in this way, and judge it.

    Where an acknowledgement is lost, so many `lookups` fail as well before one works.
    """

    async def main(loop: SimulatedLoop) -> Weathered:
        clock = LoopClock(loop, seed, start=1_800_000_000.0)
        failing = CutOff(MemoryStorage(clock), at, how, times=times, op=op, lookups=lookups)
        return await _Weather(clock, failing, variant, at).run()

    return run(seed, main).value


class _Weather:
    """One run and its lives."""

    def __init__(self, clock: LoopClock, failing: Failing, variant: str, at: int) -> None:
        self._variant = variant
        self._at = at
        self._clock = clock
        self._memory: MemoryStorage = failing.inner  # type: ignore[assignment]
        self._failing = failing
        self._notes = Notes()
        self._wrong: list[str] = []
        self._early: list[str] = []

    async def run(self) -> Weathered:
        life = 1
        while not await self._live(life) and life < MOST_LIVES:
            life += 1
        stored = await read_stored(self._memory, SESSION)
        self._wrong += at_end(stored, self._notes, self._variant)
        for _ in range(2):
            await self._reopen()
            if await read_stored(self._memory, SESSION) != stored:
                self._wrong.append("opening it again changed something")
        return Weathered(
            at=self._at,
            struck=bool(self._failing.struck),
            lives=life,
            writes=self._failing.count["commit"],
            told=life > 1 or self._notes.said("refused"),
            wrong=self._wrong,
            early=self._early,
        )

    async def _live(self, life: int) -> bool:
        """Whether the run came to its end. What stops a session for good ends its life: the next is a new process."""
        try:
            await live(
                self._storage(),
                self._variant,
                self._notes,
                life=life,
                clock=self._clock,
                telemetry=Telemetry(),
                starting=self._starting,
            )
        except StorageError:
            self._wrong += after_crash(await read_stored(self._memory, SESSION), self._notes)
            self._next_process()
            self._failing.heal()
            return False
        self._next_process()
        return True

    def _starting(self, session: Session, effect: str) -> None:
        storage = session.inspect().storage
        if storage != "ok":
            self._early.append(f"{effect} started while the storage was {storage}")

    async def _reopen(self) -> None:
        stage = Stage(
            notes=self._notes,
            telemetry=Telemetry(),
            clock=self._clock,
            life=0,
            ready=asyncio.Event(),
            lingering=asyncio.Event(),
        )
        session = await open_session(
            self._storage(),
            SESSION,
            clock=self._clock,
            telemetry=stage.telemetry,
            registry=registry_of(stage),
            model=model_of(stage),
            schema=Numbers(),
        )
        await session.resume()
        await session.wait_idle()
        await session.close()
        self._next_process()

    def _storage(self) -> Any:
        self._failing.inner = self._memory
        return self._failing

    def _next_process(self) -> None:
        memory = self._memory.reopened()
        self._memory.abandon()
        self._memory = memory


__all__ = ["Weathered", "weather"]
