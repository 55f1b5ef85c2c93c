"""Two processes, one session: who may work in it, and what the other's hands are worth (K1, I03, I07, I54 to I56)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.app.opening import open_session, open_storage
from perdure.errors import Fenced, PerdureError, SessionOwned
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import text_of
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.testing.faults import Relay
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, call, say, wait

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")


async def another_storage(world: Any) -> Any:
    """As another process has it, on the same store."""
    if world.memory is not None:
        return world.memory.reopened()
    return await open_storage(world.url, world.clock, world.telemetry, durability="process")


@asynccontextmanager
async def another_process(world: Any, model: Any, *tools: Any, **options: Any) -> AsyncGenerator[Any]:
    """A session of another process on the same store."""
    storage = await another_storage(world)
    try:
        session = await open_session(
            storage,
            "main",
            clock=world.clock,
            telemetry=world.telemetry,
            model=model,
            registry=Registry([Extension(name="test", tools=tools)]),
            **options,
        )
        try:
            yield session
        finally:
            await session.close()
    finally:
        await storage.close()


async def story(chat: Any) -> list[str]:
    found = [message async for entry in chat.history() for message in entry.messages]
    return [text_of(message) for message in found][::-1]


# I03
async def test_who_did_not_get_a_session_runs_nothing_of_it(world: Any):
    ran: list[str] = []

    @tool(replay="safe")
    async def work() -> str:
        """Work."""
        ran.append("here")
        await asyncio.Event().wait()
        return "never"

    session = await world.open(by_prompt({"go": [call("work"), say("done")]}), work)
    await (await session.conversation("a")).submit("go")
    await world.until(lambda: ran)
    await world.crash()

    @tool(replay="safe", name="work")
    async def work_again() -> str:
        """Work."""
        ran.append("again")
        return "worked"

    model = ScriptedModel(by_prompt({"go": [call("work"), say("done")]}))
    storages = [await another_storage(world) for _ in range(2)]
    registry = Registry([Extension(name="test", tools=[work_again])])
    opened = await asyncio.gather(
        *(
            open_session(each, "main", clock=world.clock, telemetry=world.telemetry, model=model, registry=registry)
            for each in storages
        ),
        return_exceptions=True,
    )

    (winner,) = [each for each in opened if not isinstance(each, BaseException)]
    (loser,) = [each for each in opened if isinstance(each, BaseException)]
    assert isinstance(loser, SessionOwned)
    await winner.wait_idle()
    assert ran == ["here", "again"]
    await winner.close()
    for each in storages:
        await each.close()


# I07: the owner that stalled in a tool wakes up when another has taken its work over
async def test_an_owner_that_was_taken_over_in_the_middle_of_a_call_brings_nothing_in(world: Any):
    ran: list[str] = []
    gate = asyncio.Event()

    @tool
    async def work() -> str:
        """Work."""
        ran.append("first")
        await gate.wait()
        return "of the first owner"

    session = await world.open(by_prompt({"go": [call("work"), say("from the first")]}), work)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    waiting = asyncio.ensure_future(sent.wait())
    await world.until(lambda: ran)

    async with another_process(world, ScriptedModel(say("from the second")), work, take_over=True) as second:
        assert (await second.submission(sent.id).wait()).text == "from the second"
        gate.set()
        with pytest.raises(Fenced):
            await waiting
        with pytest.raises(Fenced):
            await chat.submit("more")
        await second.wait_idle()
        told = await story(await second.conversation("a"))

    assert ran == ["first"]
    assert "of the first owner" not in str(told)
    assert "interrupted" in told[2]
    assert told[3:] == ["from the second"]
    await world.crash()


# I54: an idle session that another process went on with
async def test_what_an_idle_owner_writes_after_it_was_taken_over_is_refused_and_the_other_s_turns_stay(world: Any):
    settings = document("test.settings", scope="session")
    session = await world.open(say("in A"))
    chat = await session.conversation("a")
    await (await chat.submit("first")).wait()

    async with another_process(world, ScriptedModel(say("in B")), take_over=True) as other:
        await (await (await other.conversation("a")).submit("second")).wait()

    async def rename() -> None:
        async with session.commit() as tx:
            (await tx.doc(settings))["title"] = "stale"

    for write in (rename, lambda: chat.fork(1), lambda: chat.configure(max_rounds=1), lambda: chat.write(NOTE, 1)):
        with pytest.raises(Fenced):
            await write()
    await world.crash()

    session = await world.reopen()

    assert await story(await session.conversation("a")) == ["first", "in A", "second", "in B"]
    assert await session.snapshot(settings) is None


# I55
async def test_a_second_worker_is_told_who_owns_the_session_and_what_it_can_do(world: Any):
    session = await world.open(say("fine"))
    await (await (await session.conversation("a")).submit("first")).wait()

    with pytest.raises(SessionOwned, match=r"main.*own.*take_over") as refused:
        async with another_process(world, ScriptedModel(say("never"))):
            pass

    if world.url != "memory:":
        assert str(session.owner.pid) in str(refused.value)
    assert "read" in str(refused.value)
    assert (await (await (await session.conversation("a")).submit("second")).wait()).text == "fine"


# I56: revisions are whole numbers that the line gives; a clock that stands still or goes back makes nothing stale
async def test_a_thousand_writes_in_one_moment_are_all_there_and_in_their_order(world: Any):
    session = await world.open()
    chat = await session.conversation("a")

    async def add(number: int) -> None:
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data=number)
        if number % 100 == 0:
            world.clock.shift(-1.0)

    await asyncio.gather(*(add(number) for number in range(1000)))

    session = await world.restart()
    chat = await session.conversation("a")
    found = [entry async for entry in chat.history()][::-1]
    assert [entry.data for entry in found] == list(range(1000))
    assert [entry.seq for entry in found] == list(range(found[0].seq, found[0].seq + 1000))


async def test_two_requests_at_once_are_two_turns_one_after_the_other(world: Any):
    """I56, I32: one run at a time; the second is queued and sees what the first said."""
    gate = asyncio.Event()
    live: list[int] = []

    def script(request: Any) -> Any:
        live.append(len(request.messages))
        return answer(wait(gate), say(f"after {len(request.messages)}"))

    session = await world.open(script)
    chat = await session.conversation("a")
    sent = await asyncio.gather(chat.submit("one"), chat.submit("two"))
    await world.until(lambda: live)
    assert live == [1]
    gate.set()

    assert [each.text for each in await asyncio.gather(*(each.wait() for each in sent))] == ["after 1", "after 3"]
    assert await story(chat) == ["one", "after 1", "two", "after 3"]


# I04: a store that fails while a session is opened strands nothing
async def test_a_recovery_that_failed_is_made_again_and_no_run_is_left_behind(world: Any):
    session = await world.open(by_prompt({"": answer(wait(asyncio.Event()), say("never"))}))
    sent = [await (await session.conversation(f"c{number}")).submit("go") for number in range(20)]
    await world.crash()

    class Hiccup(PerdureError):
        pass

    failed: list[str] = []
    for broken in ("claim", "scan_tasks", "scan_submissions", "commit"):

        def wrap(storage: Any, broken: str = broken) -> Any:
            def fail(*args: Any, **named: Any) -> Any:
                failed.append(broken)
                raise Hiccup(broken)

            proxy = Relay(storage)
            setattr(proxy, broken, fail)
            return proxy

        world.wrap = wrap
        with pytest.raises(Hiccup):
            await world.reopen()
        world.session = None
        await world.storage.close()
    world.wrap = lambda storage: storage

    session = await world.reopen(model=ScriptedModel(say("fine")))

    await session.resume()
    assert [(await session.submission(each.id).wait()).text for each in sent] == ["fine"] * 20
    assert failed == ["claim", "scan_tasks", "scan_submissions", "commit"]
    assert session.inspect().tasks == []
