"""Simulated callers: each works on one conversation, by chance, and notes what it was told."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from perdure.errors import (
    AlreadyAnswered,
    ConversationBusy,
    Fenced,
    NotFound,
    SessionClosed,
    SessionPoisoned,
    StorageError,
    TaskRefused,
    UsageError,
)
from perdure.harness.decisions import Edit
from perdure.session.transaction import entry_kind
from perdure.testing.simulation.cast import Asking, Checkout

if TYPE_CHECKING:
    from perdure.testing.simulation.world import Life

NOTE = entry_kind("simulated.note")
#: The last two do not decide every call: they are refused then, and change nothing.
DECISIONS = (True, True, False, Edit({"n": 0}), Edit({"n": 3}), Edit({"n": 5000}), "always", "perhaps")
GONE = (Fenced, SessionClosed, SessionPoisoned)


class User:
    """One caller of one conversation, in one simulated process."""

    def __init__(self, life: Life, key: str, random: Random) -> None:
        self._life = life
        self._key = key
        self._random = random

    async def work(self, actions: int) -> None:
        """Do so many things. Refusals of storage are nothing special; the end of the session ends this."""
        for _ in range(actions):
            await self._life.clock.sleep(self._random.random() * 2)
            try:
                await self._act()
            except GONE:
                return
            except (StorageError, NotFound, AlreadyAnswered, ConversationBusy, TaskRefused) as error:
                self._life.ledger.count(f"refused: {type(error).__name__}")

    async def _act(self) -> None:
        chat = await self._life.session.conversation(self._key)
        draw = self._random.random()
        if draw < 0.44:
            await self._submit(chat)
        elif draw < 0.47:
            sent = await chat.reset(self._random.choice([None, "from here on"]))
            self._life.ledger.accept(sent.id, self._key, None)
            self._life.ledger.count("resets")
        elif draw < 0.5:
            await chat.compact()
            self._life.ledger.count("compactions asked for")
        elif draw < 0.6:
            sent = await chat.write(NOTE, {"n": 1})
            self._life.ledger.accept(sent.id, self._key, None)
        elif draw < 0.7:
            self._life.ledger.count("aborts")
            await chat.abort(queue=self._random.choice(["withdraw", "keep"]))
        elif draw < 0.76 and self._life.ledger.accepted:
            id = self._random.choice(list(self._life.ledger.accepted))
            await self._life.session.submission(id).abort()
        elif draw < 0.84:
            async with chat.commit() as tx:
                payments = [self._random.random() < 0.7 for _ in range(3)]
                tx.create_task(Checkout, {"payments": payments}, background=self._random.random() < 0.3)
        elif draw < 0.88:
            async with chat.commit() as tx:
                tx.create_task(Asking)
        elif draw < 0.91:
            await self._answer(chat)
        elif draw < 0.94:
            await self._agents(chat)
        elif draw < 0.96:
            await self._fork(chat)
        else:
            await self._branch()

    async def _submit(self, chat: Any) -> None:
        calls = "".join(self._random.choice("ssuufqgtxdb") for _ in range(self._random.randrange(4)))
        number = self._random.randrange(6)
        request_id = f"r{number}" if self._random.random() < 0.4 else None
        text = f"rounds={number % 3} calls={calls}" if request_id is None else f"rounds={number % 3} calls=su"
        sent = await chat.submit(
            text, request_id=request_id, when_busy=self._random.choice(["follow_up", "steer", "reject"])
        )
        self._life.ledger.count("submissions")
        self._life.ledger.accept(sent.id, self._key, request_id)
        if self._random.random() < 0.3:
            await sent.wait()

    async def _answer(self, chat: Any) -> None:
        questions = self._life.session.inspect().questions
        if questions:
            question = self._random.choice(questions)
            value = "yes" if question.call is None else self._random.choice(DECISIONS)
            try:
                await self._life.session.answer(question.id, value, by=self._key)
            except UsageError:
                self._life.ledger.count("answers that decide nothing")
                return
            self._life.ledger.count("answers")

    async def _agents(self, chat: Any) -> None:
        """Start an agent, tell one more, steer it, or stop it."""
        known = await chat.agents.list()
        if not known or self._random.random() < 0.4:
            await chat.agents.start("rounds=1 calls=sd")
        elif self._random.random() < 0.7:
            agent = self._random.choice(known)
            await chat.agents.send(agent.id, "rounds=1 calls=s", when_busy=self._random.choice(["follow_up", "steer"]))
        else:
            await chat.agents.stop(self._random.choice(known).id)
        self._life.ledger.count("agents")

    async def _fork(self, chat: Any) -> None:
        entries = await chat.entries(limit=20)
        if entries:
            await self._fork_at(chat, self._random.choice(entries).id)

    async def _fork_at(self, chat: Any, at: Any) -> None:
        """Note what the fork sees: it sees that for ever."""
        seen = [entry.id async for entry in chat.history() if entry.id <= at]
        fork = await chat.fork(at)
        self._life.ledger.forks[fork.id] = seen
        self._life.ledger.count("forks")

    async def _branch(self) -> None:
        """Work in a fork, fork it again, or delete it."""
        forks = self._life.ledger.forks
        if not forks:
            return
        id = self._random.choice(list(forks))
        fork = await self._life.session.find(id)
        what = self._random.choice(["work", "fork", "delete", "delete"])
        if what == "work":
            await fork.submit("rounds=1 calls=s")
        elif what == "fork":
            await self._fork_at(fork, self._random.choice(forks[id]))
        else:
            await self._delete(id)

    async def _delete(self, id: int) -> None:
        seen = self._life.ledger.forks.pop(id)
        try:
            await self._life.session.delete(id)
            self._life.ledger.count("deletions")
        except TaskRefused:  # there is work in it
            self._life.ledger.forks[id] = seen
            self._life.ledger.count("refused: TaskRefused")
