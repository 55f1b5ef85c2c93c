"""Whatever order things happen in: a seeded loop runs users, tasks, faults and evictions against each other.

What observers were told is the model. Reads have to lie between the model before and after them,
and storage has to hold the model in the end.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from perdure.app.opening import open_session
from perdure.backends.memory import MemoryStorage
from perdure.errors import (
    Fenced,
    NotFound,
    SessionClosed,
    SessionPoisoned,
    StorageFailed,
    StorageRejected,
    TaskRefused,
    UsageError,
)
from perdure.harness.registry import Extension, Registry
from perdure.session import memory as session_memory
from perdure.session.change import Change
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.telemetry import Telemetry
from perdure.testing.clock import LoopClock
from perdure.testing.faults import RandomFaults, Slow
from perdure.testing.loop import run

NOTE = entry_kind("test.note")
COUNT = document("test.count", initial=lambda: {"n": 0})
TRAIL = document("test.trail", initial=lambda: {"n": 0}, history="rewindable", fork="as_of")
#: What a user may be told in the middle of all this.
EXPECTED = (StorageRejected, NotFound, TaskRefused, UsageError)
#: What everybody is told when the session ends under them.
ENDS = (SessionClosed, Fenced, SessionPoisoned, StorageFailed)


class Counting(TaskDefinition):
    """Counts once for itself, and has `input` children that do."""

    kind = "test.counting"
    replay = "safe"

    @phase(first=True)
    async def split(self, invocation: Any) -> None:
        async def stage(tx: Any) -> None:
            children = [tx.create_task(Counting, invocation.input - 1) for _ in range(min(invocation.input, 2))]
            await tx.wait(children, then=self.count, policy="fail_fast" if invocation.id % 2 else "all_settled")

        await invocation.record(stage)

    @phase
    async def count(self, invocation: Any) -> None:
        await invocation.begin()
        await invocation.line.clock.sleep(0.01 * (invocation.id % 5))

        async def stage(tx: Any) -> None:
            tx.append(invocation.conversation, NOTE, data=invocation.id, task=invocation.id)
            (await tx.doc(COUNT))["n"] += 1
            tx.complete()

        await invocation.record(stage)

    async def abort(self, invocation: Any) -> None:
        async def stage(tx: Any) -> None:
            tx.aborted()

        await invocation.record(stage)


class Model:
    """What the line told, commit by commit."""

    def __init__(self) -> None:
        self.entries: dict[int, list[int]] = {}
        self.count: dict[int, int] = {}
        self.live: dict[int, None] = {}
        self.gone: dict[int, None] = {}
        self.counted: dict[int, int] = {}

    def told(self, change: Change) -> None:
        for conversation in change.conversations.values():
            if conversation.deleted:
                self.gone[conversation.id] = None
        for entry in change.entries:
            self.entries.setdefault(entry.conversation, []).append(entry.id)
            if entry.task is not None:
                self.counted[entry.task] = self.counted.get(entry.task, 0) + 1
        for each in change.documents:
            if each.record.kind == "test.count":
                self.count[each.record.owner] = each.value["n"]
        for task in change.tasks.values():
            if task.live:
                self.live[task.id] = None
            else:
                self.live.pop(task.id, None)


class Race:
    def __init__(self, loop: Any, seed: int) -> None:
        self.random = Random(seed)
        self.clock = LoopClock(loop, seed)
        self.storage = MemoryStorage(clock=self.clock)
        rates: Any = {"refused": 0.03, "full": 0.01, "lost": 0.02, "after": 0.02, "before": 0.02}
        self.faults = RandomFaults(self.storage, self.random.random, rates, lookup=0.2)
        self.model = Model()
        self.chats: list[Any] = []
        self.session: Any = None

    async def open(self) -> Any:
        return await open_session(
            Slow(self.faults, self.clock, iter(self.delay, None)),
            "main",
            clock=self.clock,
            telemetry=Telemetry(),
            registry=Registry([Extension(name="test", tasks=[Counting])]),
            take_over=True,
        )

    def delay(self) -> float:
        return self.random.random() * 0.03

    async def user(self, steps: int) -> None:
        verbs = [self.add, self.add, self.count, self.look, self.look, self.work, self.fork, self.abort, self.delete]
        for _ in range(steps):
            await self.clock.sleep(self.delay())
            try:
                await self.random.choice(verbs)(self.random.choice(self.chats))
            except EXPECTED:
                continue

    async def add(self, chat: Any) -> None:
        async with chat.commit() as tx:
            known = [entry.id for entry in (await tx.transcript(chat.id)).entries]
            entry = tx.append(chat.id, NOTE)
            (await tx.doc(TRAIL))["n"] = entry.id
            await self.clock.sleep(self.delay() / 10)
            assert entry.id not in known
            assert known == sorted(known)

    async def count(self, chat: Any) -> None:
        async with chat.commit() as tx:
            (await tx.doc(COUNT))["n"] += 1

    async def look(self, chat: Any) -> None:
        before = self.model.count.get(chat.id, 0), len(self.model.entries.get(chat.id, ()))
        value = (await chat.snapshot(COUNT) or {"n": 0})["n"]
        own = [entry.id for entry in await chat.entries(limit=1000) if entry.conversation == chat.id]
        after = self.model.count.get(chat.id, 0), len(self.model.entries.get(chat.id, ()))
        if chat.id not in self.model.gone:
            assert before[0] <= value <= after[0]
            assert before[1] <= len(own) <= after[1]

    async def work(self, chat: Any) -> None:
        async with chat.commit() as tx:
            tx.create_task(Counting, self.random.randrange(3))
        await self.session.resume()

    async def abort(self, chat: Any) -> None:
        live = list(self.model.live)
        if live:
            async with self.session.commit() as tx:
                tx.abort_task(self.random.choice(live))

    async def fork(self, chat: Any) -> None:
        page = await chat.entries(limit=20)
        if page:
            at = self.random.choice(page)
            child = await chat.fork(at.id)
            value = await child.snapshot(TRAIL)
            if at.task is None and child.id not in self.model.gone:
                assert value == {"n": at.id}
            self.chats.append(child)

    async def delete(self, chat: Any) -> None:
        if chat in self.chats[8:]:
            await self.session.delete(chat)
            self.chats.remove(chat)

    async def run(self, ending: str | None = None) -> None:
        await self.begin()
        users = [asyncio.ensure_future(self.user(40)) for _ in range(5)]
        if ending is not None:
            await self.cut_off(ending, users)
            users = [asyncio.ensure_future(self.user(10)) for _ in range(3)]
        await asyncio.gather(*users)
        self.faults.heal()
        await self.session.wait_idle()
        await self.clock.sleep(1)
        self.at_rest()
        await self.session.close()
        self.session = await self.open()
        await self.compare()
        await self.session.close()

    async def begin(self) -> None:
        self.session = await self.open()
        self.session.observe(self.model.told)
        for number in range(10):
            while True:
                try:
                    self.chats.append(await self.session.conversation(f"c-{number}"))
                    break
                except StorageRejected:
                    continue

    async def cut_off(self, ending: str, users: list[Any]) -> None:
        """In the midst of it the session is closed, taken over or poisoned; the next one goes on."""
        await self.clock.sleep(self.random.random() * 0.8)
        waiting = asyncio.ensure_future(self.session.until(lambda: False))
        await self.clock.sleep(self.delay())
        if ending == "close":
            await self.session.close()
        elif ending == "takeover":
            await self.storage.claim("main", take_over=True)
        else:
            self.faults.poisoned = True
        ended = await asyncio.gather(*users, return_exceptions=True)
        assert all(isinstance(error, ENDS) for error in ended), ended
        with pytest.raises(ENDS):
            await waiting
        await self.session.close()
        await self.clock.sleep(1)
        scheduler = self.session._harness.scheduler
        assert not scheduler._runners
        assert not scheduler._spawned
        self.faults.poisoned = False
        known = dict(self.model.counted)
        while True:  # a full disk may refuse the recovery commit
            try:
                self.session = await self.open()
                break
            except StorageRejected:
                continue
        self.model = Model()
        self.model.counted = known
        await self.relearn()
        self.session.observe(self.model.told)
        self.chats = [chat for chat in [await self.again(chat) for chat in self.chats] if chat is not None]

    async def again(self, chat: Any) -> Any:
        try:
            return await self.session.find(chat.id)
        except NotFound:
            return None

    async def relearn(self) -> None:
        """From storage, as a new process would."""
        self.model.live.update(dict.fromkeys(one.id for one in self.session.inspect().tasks))
        self.model.counted = {}
        for conversation in await self.session.conversations(limit=1000):
            chat = await self.session.find(conversation.id)
            own = [entry async for entry in chat.history() if entry.conversation == chat.id]
            self.model.entries[chat.id] = [entry.id for entry in own][::-1]
            self.model.count[chat.id] = (await chat.snapshot(COUNT) or {"n": 0})["n"]
            for entry in own:
                if entry.task is not None:
                    self.model.counted[entry.task] = self.model.counted.get(entry.task, 0) + 1

    def at_rest(self) -> None:
        line = self.session._line
        memory, scheduler = line.memory, self.session._harness.scheduler
        assert not memory.flights
        assert not memory.tip.tasks
        for name in vars(memory.tip):
            assert getattr(memory.tip, name) == getattr(memory.published, name), name
        assert memory.shelves.tip == memory.shelves.published
        assert not memory.tip.outcomes
        assert not scheduler._runners
        assert not scheduler.late
        assert not scheduler._conditions
        assert all(times == 1 for times in self.model.counted.values())

    async def compare(self) -> None:
        """Storage holds the model."""
        for chat in self.chats:
            if chat.id in self.model.gone:
                continue
            again = await self.session.find(chat.id)
            own = [entry.id async for entry in again.history() if entry.conversation == chat.id]
            assert own[::-1] == self.model.entries.get(chat.id, [])
            assert (await again.snapshot(COUNT) or {"n": 0})["n"] == self.model.count.get(chat.id, 0)
            async with again.commit() as tx:
                found = [entry.id for entry in (await tx.transcript(chat.id)).entries]
            assert found == [entry.id async for entry in again.history()][::-1]


@pytest.mark.slow
@pytest.mark.invariant("S-20")
@pytest.mark.parametrize("seed", range(20))
def test_users_tasks_faults_and_evictions_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session_memory, "KEEP_IDLE", 2)
    monkeypatch.setattr(session_memory, "TRIM_AT", 1)

    async def main(loop: Any) -> None:
        await Race(loop, seed).run()

    trace = run(seed, main)
    assert trace.left == ()


@pytest.mark.slow
@pytest.mark.invariant("S-8", "T-21")
@pytest.mark.parametrize("ending", ["close", "takeover", "poison"])
@pytest.mark.parametrize("seed", range(7))
def test_a_session_that_ends_under_everything_leaves_it_to_the_next(
    seed: int, ending: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(session_memory, "KEEP_IDLE", 2)
    monkeypatch.setattr(session_memory, "TRIM_AT", 1)

    async def main(loop: Any) -> None:
        await Race(loop, seed).run(ending)

    assert run(seed, main).left == ()
