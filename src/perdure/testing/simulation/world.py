"""One simulation: a store that outlives a number of simulated processes, each of which ends by a crash, a close or a
takeover."""

# pyright: reportPrivateUsage=false
# (the simulation looks inside the sessions that it runs)

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import msgspec

from perdure.app.opening import open_session
from perdure.app.session import Session
from perdure.backends.memory import MemoryStorage
from perdure.errors import AlreadyAnswered, SessionClosed, SessionPoisoned, StorageError
from perdure.harness.anchor import ANCHOR, REPORT
from perdure.harness.approval import asked_call
from perdure.harness.harness import RequestLimits, Settings
from perdure.harness.stored import TOOL
from perdure.records import Completed, Faulted, Task
from perdure.session.change import Change
from perdure.telemetry import Telemetry
from perdure.testing.clock import LoopClock
from perdure.testing.faults import RandomFaults, Slow
from perdure.testing.loop import SimulatedLoop, run
from perdure.testing.simulation.cast import PlainSchema, SimulatedModel, registry_of
from perdure.testing.simulation.checks import branches, final, look, running_without_runner
from perdure.testing.simulation.ledger import Ledger, Violation
from perdure.testing.simulation.users import User

SESSION = "main"
#: In the smallest window they have, which holds their tools twice, a few messages compact it.
CRAMPED = Settings(compaction_reserve=80, compaction_keep_recent=40, compaction_background=60)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed did."""

    seed: int
    digest: str
    steps: int
    seconds: float  #: virtual
    counts: dict[str, int]


class Life:
    """One simulated process: a worker on the store, a session, and the tasks that run in it."""

    def __init__(self, world: World, number: int, storage: MemoryStorage, trouble: float) -> None:
        self.ledger = world.ledger
        self.asks = world.asks
        self.clock = world.clock
        self.dead = False
        self.number = number
        self.storage = storage
        self._random = Random(f"{world.seed} life {number}")
        self._trouble = trouble
        self.session: Session
        #: Tasks of this process; a crash takes them all.
        self.tasks: list[asyncio.Task[None]] = []
        self._before: dict[asyncio.Task[Any], None] = {}

    async def begin(self, *, take_over: bool) -> None:
        """Open the session. Everything that is started from here on belongs to this process."""
        rates = {"refused": 0.02, "full": 0.01, "lost": 0.01, "after": 0.01, "before": 0.01, "poison": 0.002}
        faulty = RandomFaults(
            self.storage,
            self._random.random,
            {how: rate * self._trouble for how, rate in rates.items()},  # type: ignore[misc]
            lookup=0.2 if self._trouble else 0.0,
        )
        self.session = await open_session(
            Slow(faulty, self.clock, self._delays()),
            SESSION,
            clock=self.clock,
            telemetry=Telemetry(),
            registry=registry_of(self),
            model=SimulatedModel(
                self.ledger,
                self.clock,
                self._random,
                trouble=0.15 * self._trouble,
                window=self._random.choice([None, 500, 1500]),
            ),
            settings=CRAMPED,
            schema=PlainSchema(),
            limits=RequestLimits(first_byte=5, progress=5, total=30),
            take_over=take_over,
        )
        self.session.observe(self._published)
        await self.session.resume()

    def _delays(self) -> Iterator[float]:
        while True:
            yield self._random.random() * 0.05

    def _published(self, change: Change) -> None:
        """Look at what a commit left. A check that breaks is a violation too: observers may not raise."""
        self.ledger.count("commits")
        try:
            for task in change.tasks.values():
                if isinstance(task.outcome, Faulted):
                    self.ledger.violated(f"task {task.id} ({task.kind}) faulted: {task.outcome.error}")
                self._note_approval(task)
            for wrong in look(self.session._line):
                self.ledger.violated(wrong)
        except Exception as error:
            self.ledger.violated(f"the check of commit {change.seq} broke: {error!r}")

    def _note_approval(self, task: Task) -> None:
        """What was asked about a call, and whether it was to run."""
        call = asked_call(task)
        if call is not None:
            self.ledger.question(task.id, (task.owner, call.hook))
            outcome = task.outcome
            if isinstance(outcome, Completed):
                self.ledger.count(f"approvals: {outcome.result['answer']['decision']}")
        elif task.kind == TOOL and isinstance(task.outcome, Completed) and task.outcome.result["error"] == "blocked":
            self.ledger.blocked(f"{SESSION}/{task.id}")

    async def pause(self, most: float) -> None:
        await self.clock.sleep(self._random.random() * most)

    def effect(self, key: str, *, safe: bool) -> None:
        """An effect of this process on the world; a dead process has none."""
        if self.dead:
            raise asyncio.CancelledError
        self.ledger.effect(key, safe=safe)

    def crash(self) -> None:
        """The process is gone: nothing of it reaches the store or the world any more."""
        self.dead = True
        self.storage.abandon()
        for task in self.tasks:
            task.cancel()

    @property
    def stopped(self) -> bool:
        """The session gave up: fenced or poisoned."""
        return self.session._line.fault is not None


class World:
    """The store, the clock, the ledger, and the lives one after another."""

    def __init__(self, seed: int, loop: SimulatedLoop) -> None:
        self.seed = seed
        self.ledger = Ledger()
        #: Whether hooks ask about calls: in half of the worlds, so that calls without a gate are tried too.
        self.asks = Random(f"{seed} asks").random() < 0.5
        self.clock = LoopClock(loop, seed, start=1_800_000_000.0)
        self._random = Random(f"{seed} world")
        self._storage = MemoryStorage(clock=self.clock)

    async def main(self) -> dict[str, int]:
        lives = 1 + self._random.randrange(4)
        previous: Life | None = None
        for number in range(lives):
            life = Life(self, number, self._storage.reopened(), trouble=self._random.choice([0.0, 0.5, 1.0]))
            began = await self._begin(life, previous)
            if previous is not None:
                previous.crash()
                previous = None
            if not began:
                continue
            await self._live(life)
            previous = await self._end(life)
        if previous is not None:
            previous.crash()
        await self._come_to_rest(lives)
        self.ledger.raise_first()
        return self.ledger.counts

    async def _begin(self, life: Life, previous: Life | None) -> bool:
        """Begin a life, beside one that is frozen or still works, or after one that is gone. Faults may strike it
        down at once."""
        try:
            await life.begin(take_over=previous is not None)
        except (StorageError, SessionPoisoned) as error:
            self.ledger.count(f"died while opening: {type(error).__name__}")
            life.crash()
            return False
        if previous is not None:
            self.ledger.count("takeovers")
            await self.clock.sleep(self._random.random() * 2)
        return True

    async def _live(self, life: Life) -> None:
        keys = ["a", "b"][: 1 + self._random.randrange(2)]
        users = [User(life, key, Random(f"{self.seed} {life.number} {key} {n}")) for key in keys for n in range(2)]
        for user in users:
            life.tasks.append(asyncio.ensure_future(user.work(1 + self._random.randrange(5))))
        end = self.clock.now() + self._random.random() * 15
        while self.clock.now() < end and not life.stopped:
            await self.clock.sleep(0.05 + self._random.random() * 0.2)
        self.ledger.raise_first()

    async def _end(self, life: Life) -> Life | None:
        """A crash, an orderly close, or nothing: then the next life takes over from a living one."""
        how = self._random.choice(["crash", "close", "takeover"])
        self.ledger.count(f"ended by {how}")
        if how == "takeover" and not life.stopped:
            return life
        if how == "close" and not life.stopped:
            try:
                await life.session.close()
            except (StorageError, SessionClosed):
                self.ledger.count("close failed")
        life.crash()
        await self.clock.sleep(0.01)
        return None

    async def _come_to_rest(self, number: int) -> None:
        """A last life without faults: everything that was accepted settles."""
        life = Life(self, number, self._storage.reopened(), trouble=0.0)
        await life.begin(take_over=True)
        for _ in range(200):
            for question in life.session.inspect().questions:
                with suppress(AlreadyAnswered):  # the clock, or what an answer before it led to, was first
                    await life.session.answer(question.id, "yes", by="the end")
            for task in life.session.inspect().held:
                await life.session.retry(task.id)
            await self._place_what_is_left(life)
            try:
                await asyncio.wait_for(life.session.wait_idle(background=True), 10)
                await self._let_agents_go(life)
            except TimeoutError:
                self.ledger.raise_first()
                continue
            if not life.session.inspect().tasks and not life.session.inspect().submissions:
                break
            await self.clock.sleep(1.0)
        for wrong in running_without_runner(life.session._line, life.session._harness.scheduler._runners):
            self.ledger.violated(wrong)
        await branches(life.session, self.ledger)
        await life.session.close()
        await final(life.storage, SESSION, self.ledger, "simulated")
        life.crash()

    async def _let_agents_go(self, life: Life) -> None:
        """They rest until somebody stops them, and each has answered all that it was told."""
        for task in life.session.inspect().tasks:
            if task.kind == REPORT:
                self.ledger.violated(f"report {task.id} of agent {task.owner} waits for what has come to rest")
            elif task.kind == ANCHOR and not task.aborting:
                await life.session.abort_task(task.id, "the end")

    async def _place_what_is_left(self, life: Life) -> None:
        """A failed run leaves the inbox alone until something new comes (H6)."""
        waiting = {item.conversation for item in life.session.inspect().submissions if item.state == "queued"}
        for id in sorted(waiting):
            chat = await life.session.find(id)
            if not chat.busy:
                sent = await chat.submit("rounds=0 calls=")
                self.ledger.accept(sent.id, str(id), None)


def simulate(seed: int, *, max_steps: int = 2_000_000) -> Result:
    """Run one seed to its end. Raises Violation, Stuck or whatever went wrong, with the seed in its notes."""
    worlds: list[World] = []

    def after_step() -> None:
        if worlds and worlds[0].ledger.violations:
            worlds[0].ledger.raise_first()

    async def main(loop: SimulatedLoop) -> dict[str, int]:
        world = World(seed, loop)
        worlds.append(world)
        return await world.main()

    trace = run(seed, main, after_step=after_step, max_steps=max_steps)
    return Result(seed=seed, digest=trace.digest, steps=trace.steps, seconds=trace.time, counts=trace.value)


__all__ = ["Life", "Result", "Violation", "World", "simulate"]
