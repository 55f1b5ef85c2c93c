"""Stores on disk against the memory reference, through sessions: the same calls give the same answers, ids and values.

A session of each backend is told the same. Each call comes to rest before the next, and no two runs go on at once:
in which order their commits come would be left to chance.
After reopenings and takeovers, and at the end, every record of the stores is compared.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from perdure.app.opening import open_session
from perdure.app.session import Session
from perdure.backends.jsonl import open_jsonl
from perdure.backends.memory import MemoryStorage
from perdure.backends.sqlite import open_sqlite
from perdure.deltas import plain
from perdure.errors import Fenced, PerdureError
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import text_of, user
from perdure.records import Edit, Inbound, decode_document, decode_task
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.telemetry import Telemetry
from perdure.testing.clock import ManualClock
from perdure.testing.scenario.cast import Numbers
from perdure.testing.scenario.edits import change
from perdure.testing.scenario.stored import read_stored
from perdure.testing.scripted import ScriptedModel, answer, call, say

pytestmark = pytest.mark.slow

REMARK = entry_kind("remark")
TOKENS = {
    "session": document("session", scope="session", initial=lambda: {"a": [], "b": {}}),
    "latest": document("latest", initial=lambda: {"a": [], "b": {}}),
    "current": document("current", fork="current", initial=lambda: {"a": [], "b": {}}),
    "as_of": document("as_of", fork="as_of", history="rewindable", initial=lambda: {"a": [], "b": {}}),
}
REWINDABLE = TOKENS["as_of"]
KEYS = ("", "one", "two")
#: How long a call may take, in seconds of the machine.
PATIENCE = 10.0


class Family(TaskDefinition):
    """Waits for children, which are questions or families, under a policy; then says what came of them."""

    kind = "family"

    @phase(first=True)
    async def begin(self, invocation: Invocation) -> None:
        shape = invocation.input
        async with invocation.commit() as tx:
            children = [
                tx.create_task(Family, {**shape, "deep": shape["deep"] - 1}, owner=invocation)
                if shape["deep"] > 0 and number == 0
                else tx.ask({"n": number}, owner=invocation, deadline=tx.now + 50 + number, default=number)
                for number in range(shape["children"])
            ]
            tx.memo("size", len(children))
            rule: dict[str, Any] = {"first": 1} if shape["policy"] == "first" else {"policy": shape["policy"]}
            await tx.wait(children, then=self.end, children=[child.id for child in children], **rule)

    @phase
    async def end(self, invocation: Invocation, children: list[Any]) -> None:
        outcomes = [type(each).__name__ for each in await invocation.outcomes(children)]
        async with invocation.commit() as tx:
            if outcomes and outcomes[0] == "Completed":
                tx.complete(outcomes)
            else:
                tx.fail(f"it came to {outcomes}")


class Guests:
    """Calls of `stay` in one process: they go on until they are released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.came = asyncio.Event()
        self.staying = 0


class World:
    """One session on one backend, which can be opened again and taken over."""

    def __init__(self, path: Path | None = None, open_file: Callable[..., Awaitable[Any]] = open_sqlite) -> None:
        self.open_file = open_file
        self.clock = ManualClock(start=1000.0)
        self.path = path
        self.memory = MemoryStorage(self.clock)
        self.storage: Any = None
        self.session: Session
        self.guests = Guests()

    async def open(self, **how: Any) -> None:
        if self.path is None:
            self.storage = self.memory = self.memory.reopened()
        else:
            self.storage = await self.open_file(self.path, clock=self.clock, durability="process")
        self.guests = Guests()
        self.session = await open_session(
            self.storage,
            "main",
            clock=self.clock,
            telemetry=Telemetry(),
            registry=Registry([Extension(name="test", tools=self._tools(), tasks=[Family])]),
            model=ScriptedModel(self._script, clock=self.clock),
            schema=Numbers(),
            **how,
        )
        await self.session.resume()
        await self.rest()

    def _tools(self) -> list[Any]:
        guests = self.guests

        @tool(replay="safe")
        async def look(n: int) -> str:
            return f"saw {n}"

        @tool(timeout=10**6)
        async def stay(n: int) -> str:
            guests.staying += 1
            guests.came.set()
            try:
                await guests.released.wait()
            finally:
                guests.staying -= 1
            return "stayed"

        return [look, stay]

    def _script(self, request: Any) -> Any:
        """Does what the newest input says: a word for each call of the one round, then an answer."""
        newest = request.messages[-1]
        words = text_of(newest).split() if type(newest).__name__ == "UserMessage" else []
        calls = [call(word, {"n": at}) for at, word in enumerate(words) if word in ("look", "stay", "vanish")]
        return answer(say("so"), *calls) if calls else say(f"that was {len(request.messages)}")

    async def rest(self) -> None:
        """Wait until nothing moves any more: only calls that stay are running."""
        try:
            await asyncio.wait_for(self._rest(), PATIENCE)
        except TimeoutError:
            raise AssertionError(f"this never comes to rest: {self.session.inspect()}") from None

    async def _rest(self) -> None:
        """Looked at after each commit, and when a call came to stay."""
        while not self._rests():
            self.guests.came.clear()
            waits = [asyncio.ensure_future(each) for each in (self.guests.came.wait(), self.session.until(self._rests))]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    def _rests(self) -> bool:
        moving = self._moving()
        return len(moving) == self.guests.staying and all(task.label == "stay" for task in moving)

    def _moving(self) -> list[Any]:
        return [task for task in self.session.inspect().tasks if task.state in ("pending", "running")]

    async def advance(self, seconds: float) -> None:
        """Let time pass, deadline by deadline: how long a disk takes must not decide which come together."""
        end = self.clock.now() + seconds
        while True:
            until = min([end, *self._deadlines()])
            await self.clock.advance(max(0.0, until - self.clock.now()))
            await self.session.until(lambda until=until: all(each > until for each in self._deadlines()))
            await self.rest()
            if until == end:
                return

    def _deadlines(self) -> list[float]:
        return [each.deadline for each in self.session.inspect().questions if each.deadline is not None]

    async def reopen(self) -> None:
        """An orderly end, and the next start."""
        await self.session.close()
        await self.storage.close()
        await self.open()

    async def take_over(self) -> str:
        """The next start comes before the end. What the fenced owner then tries is refused."""
        old, storage = self.session, self.storage
        await self.open(take_over=True)
        try:
            async with old.commit() as tx:
                tx.create_conversation()
            refused = "nothing"
        except Fenced:
            refused = "Fenced"
        await old.close()
        await storage.close()
        return refused

    async def close(self) -> None:
        await self.session.close()
        await self.storage.close()


# -- what is compared ---------------------------------------------------------------------------


async def outcome(act: Callable[[World], Awaitable[Any]], world: World) -> Any:
    """What a call gave, or how it was refused."""
    try:
        given = await asyncio.wait_for(act(world), PATIENCE)
    except PerdureError as error:
        given = type(error).__name__
    except TimeoutError:
        raise AssertionError(f"this takes too long: {world.session.inspect()}") from None
    except (IndexError, KeyError, TypeError, ValueError) as error:
        given = f"{type(error).__name__}: {error}"
    await world.rest()
    return given


async def records_of(world: World) -> dict[str, Any]:
    """Every record of the store, and every value of its documents."""
    stored = await read_stored(world.storage, "main")
    owners = [
        ("session", 0),
        *(("conversation", id) for id in stored.conversations),
        *(("task", id) for id in stored.tasks),
    ]
    documents: dict[int, Any] = {}
    for scope, owner in owners:
        for body in await world.storage.scan_documents("main", scope, owner, retired=True):
            found = decode_document(body)
            documents[found.id] = (found, await world.storage.read_document("main", found.id))
    return {"stored": stored, "documents": documents, "head": (await world.storage.head("main"))[1]}


async def values_of(world: World) -> list[Any]:
    """What a user sees: pages of entries, and documents now and as of each entry."""
    found: list[Any] = []
    for record in await world.session.conversations(limit=1000):
        chat = await world.session.find(record.id)
        entries = [entry async for entry in chat.history()]
        found.append((record, entries, await chat.entries(limit=3), [item.id for item in chat.inbox()], chat.busy))
        for token in TOKENS.values():
            found += [await chat.snapshot(token, key=key) for key in KEYS]
        for entry in entries[:5]:
            found += [await chat.snapshot_as_of(REWINDABLE, entry.id, key=key) for key in KEYS]
    return [*found, await world.session.usage()]


# -- drafts -------------------------------------------------------------------------------------

SCALARS = st.none() | st.integers(0, 3) | st.sampled_from(["", "x", "longer text"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=5,
)
AT = st.integers(0, 3)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            ["set", "append", "insert", "delete", "slice", "move", "alias", "text", "truncate", "reverse", "nest"]
        ),
        st.lists(AT, max_size=2),
        AT,
        AT,
        VALUES,
    ),
    min_size=1,
    max_size=6,
)


# -- the machine --------------------------------------------------------------------------------

WHICH = st.integers(0, 9)


class Agreement(RuleBasedStateMachine):
    """Chooses conversations, entries, tasks and questions by number among those that there are."""

    @initialize()
    def begin(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._loop = asyncio.new_event_loop()
        directory = Path(self._directory.name)
        rewriting = partial(open_jsonl, slack=2000)  # again and again, while the machine runs
        self.worlds = [World(), World(directory / "store.db"), World(directory / "lines", rewriting)]
        self.each(lambda world: world.open())
        self.each(lambda world: world.session.root())

    def teardown(self) -> None:
        try:
            self.compare_everything()
            self.each(lambda world: world.close())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._directory.cleanup()

    def each(self, act: Callable[[World], Awaitable[Any]]) -> None:
        for world in self.worlds:
            self._loop.run_until_complete(act(world))

    def agree(self, act: Callable[[World], Awaitable[Any]]) -> Any:
        """Do it in all worlds, one after the other; they give the same."""
        reference, *others = (self._loop.run_until_complete(outcome(act, world)) for world in self.worlds)
        for other in others:
            assert other == reference
        return reference

    def compare_everything(self) -> None:
        self.agree(values_of)
        self.agree(records_of)

    @invariant()
    def they_show_the_same(self) -> None:
        reference, *others = (world.session.inspect() for world in self.worlds)
        for other in others:
            assert other == reference

    # -- conversations and entries

    @rule(key=st.sampled_from("abc"))
    def get_or_create(self, key: str) -> None:
        async def act(world: World) -> int:
            return (await world.session.conversation(key)).id

        self.agree(act)

    @rule(which=WHICH, data=VALUES, request=st.sampled_from([None, None, "r1", "r2"]))
    def write(self, which: int, data: Any, request: str | None) -> None:
        async def act(world: World) -> int:
            return (await (await chosen(world, which)).write(REMARK, data, request_id=request)).id

        self.agree(act)

    @rule(which=WHICH, entry=WHICH, how=st.sampled_from(["head", "itself", "omit", "replace"]))
    def head_or_edit(self, which: int, entry: int, how: str) -> None:
        async def act(world: World) -> int:
            chat = await chosen(world, which)
            target = await an_entry(chat, entry)
            edits = (Edit(entry=target, messages=None if how == "omit" else (user("instead"),)),)
            more: dict[str, Any] = (
                {"head": target} if how == "head" else {"heads_itself": True} if how == "itself" else {"edits": edits}
            )
            async with chat.commit() as tx:
                return tx.append(chat.id, REMARK, messages=(user("here"),), **more).id

        self.agree(act)

    @rule(which=WHICH, entry=WHICH, key=st.sampled_from([None, None, "a", "f"]), changed=st.booleans())
    def fork(self, which: int, entry: int, key: str | None, changed: bool) -> None:
        async def act(world: World) -> int:
            chat = await chosen(world, which)
            async with chat.commit() as tx:
                if changed:
                    (await tx.doc(TOKENS["as_of"]))["d"] = "at the fork"
                child = await tx.fork(chat.id, await an_entry(chat, entry), key=key)
                tx.append(child.id, REMARK, data="born")
            return child.id

        self.agree(act)

    @rule(which=WHICH)
    def delete(self, which: int) -> None:
        async def act(world: World) -> Any:
            return await world.session.delete(await chosen(world, which))

        self.agree(act)

    @rule(age=st.sampled_from([0.0, 20.0]))
    def prune(self, age: float) -> None:
        async def act(world: World) -> Any:
            return await world.session.prune(older_than=age)

        self.agree(act)

    # -- documents

    @rule(
        which=WHICH,
        token=st.sampled_from(sorted(TOKENS)),
        key=st.sampled_from(KEYS),
        changes=CHANGES,
        entry=st.booleans(),
    )
    def change_document(self, which: int, token: str, key: str, changes: Any, entry: bool) -> None:
        async def act(world: World) -> Any:
            chat = await chosen(world, which)
            told: list[Any] = []
            async with chat.commit() as tx:
                draft = await tx.doc(TOKENS[token], key=key)
                for op, path, i, j, value in changes:
                    try:
                        change(draft, op, path, i, j, value)
                    except (IndexError, KeyError, TypeError, ValueError) as error:
                        told.append(type(error).__name__)
                if entry:
                    told.append(tx.append(chat.id, REMARK, data="changed").id)
                told.append(plain(draft))
            return told

        self.agree(act)

    @rule(which=WHICH, changes=CHANGES)
    def roll_back(self, which: int, changes: Any) -> None:
        async def act(world: World) -> None:
            chat = await chosen(world, which)
            async with chat.commit() as tx:
                (await tx.doc(TOKENS["latest"]))["a"] = [1]
                tx.append(chat.id, REMARK)
                raise ValueError("no")

        self.agree(act)

    # -- tasks

    @rule(
        which=WHICH,
        children=st.integers(0, 3),
        deep=st.integers(0, 1),
        policy=st.sampled_from(["all_settled", "fail_fast", "first"]),
        background=st.booleans(),
    )
    def start_family(self, which: int, children: int, deep: int, policy: str, background: bool) -> None:
        async def act(world: World) -> int:
            shape = {"children": children, "deep": deep, "policy": policy}
            async with (await chosen(world, which)).commit() as tx:
                return tx.create_task(Family, shape, background=background).id

        self.agree(act)

    @rule(which=WHICH, value=VALUES)
    def answer_question(self, which: int, value: Any) -> None:
        async def act(world: World) -> int:
            question = a_question(world, which)
            await world.session.answer(question, value, by="me")
            return question

        self.agree(act)

    @rule(which=WHICH)
    def answer_again(self, which: int) -> None:
        async def act(world: World) -> None:
            bodies = await world.storage.scan_tasks("main", live=False)
            await world.session.answer(decode_task(bodies[which]).id, "late", by="another")

        self.agree(act)

    @rule(which=WHICH)
    def abort_task(self, which: int) -> None:
        async def act(world: World) -> Any:
            tasks = world.session.inspect().tasks
            return await world.session.abort_task(tasks[which % len(tasks)].id if tasks else 10**6)

        self.agree(act)

    @rule(which=WHICH, background=st.booleans(), queue=st.sampled_from(["withdraw", "keep"]))
    def abort_conversation(self, which: int, background: bool, queue: Any) -> None:
        async def act(world: World) -> None:
            if not (world.guests.staying and any(task.kind == "family" for task in world.session.inspect().tasks)):
                await (await chosen(world, which)).abort(background=background, queue=queue)

        self.agree(act)

    @rule(seconds=st.sampled_from([1.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        async def act(world: World) -> None:
            await world.advance(seconds)

        self.agree(act)

    # -- submissions

    @rule(
        which=WHICH,
        text=st.sampled_from(["hello", "look", "look look vanish", "stay", "look stay"]),
        when_busy=st.sampled_from(["follow_up", "steer", "reject"]),
        request=st.sampled_from([None, None, "r1", "r2"]),
    )
    def submit(self, which: int, text: str, when_busy: Any, request: str | None) -> None:
        async def act(world: World) -> int:
            chat = await chosen(world, which)
            said = text.replace("stay", "look") if world.guests.staying else text
            return (await chat.submit(said, when_busy=when_busy, request_id=request)).id

        self.agree(act)

    @rule(which=st.integers(1, 60))
    def ask_about_a_submission(self, which: int) -> None:
        async def act(world: World) -> str:
            return await world.session.submission(which).status()

        self.agree(act)

    @rule(which=st.integers(1, 60))
    def withdraw(self, which: int) -> None:
        async def act(world: World) -> str:
            return await world.session.submission(which).abort()

        self.agree(act)

    @rule()
    def release(self) -> None:
        async def act(world: World) -> None:
            guests = world.guests
            guests.released.set()
            await world.session.until(lambda: guests.staying == 0)
            guests.released.clear()

        self.agree(act)

    # -- processes

    @rule(item=st.sampled_from([None, "input", "write", "nonsense"]))
    def reopen(self, item: str | None) -> None:
        async def act(world: World) -> None:
            if item is not None and not (item == "input" and world.guests.staying):
                number = int(world.clock.now())
                body = {"message": {"type": "user", "parts": [{"type": "text", "text": "hello"}]}, "kind": "remark"}
                handed = Inbound(id=f"0196f3c8-0000-7000-8000-{number:012d}", kind=item, body=body, at=1.0)
                await world.storage.hand_in("main", handed)
            await world.reopen()

        self.agree(act)
        self.compare_everything()

    @rule()
    def take_over(self) -> None:
        self.agree(lambda world: world.take_over())
        self.compare_everything()


async def chosen(world: World, which: int) -> Any:
    """A conversation, deleted ones not among them."""
    records = sorted(await world.session.conversations(limit=1000), key=lambda record: record.id)
    return await world.session.find(records[which % len(records)].id)


async def an_entry(chat: Any, which: int) -> Any:
    entries = await chat.entries(limit=10)
    return entries[which % len(entries)].id if entries else 10**6


def a_question(world: World, which: int) -> int:
    questions = world.session.inspect().questions
    return questions[which % len(questions)].id if questions else 10**6


TestAgreement = Agreement.TestCase
TestAgreement.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
