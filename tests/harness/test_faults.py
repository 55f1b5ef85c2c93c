"""The storage refuses, fills up, or loses an acknowledgement, at every write (K5, K8, I59)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import StorageError
from perdure.harness.registry import tool
from perdure.testing.faults import Failing
from perdure.testing.scripted import answer, by_prompt, call, pause, say
from perdure.testing.strict import broken_pairs

pytestmark = pytest.mark.anyio


def scene(log: list[str]) -> tuple[Any, list[Any]]:
    @tool
    async def pay(call: Any, n: int) -> str:
        """Pay."""
        log.append(f"pay {n}")
        call.output("paying\n")
        await asyncio.sleep(0)
        return "paid"

    round = answer(say("Let me see.", pieces=1), pause(0.3), call("pay", {"n": 1}), call("pay", {"n": 2}))
    return by_prompt({"go": [round, call("pay", {"n": 3}), say("ok")], "": say("more")}), [pay]


async def insist(act: Any) -> Any:
    """As a client does: again with the same request id, until it is accepted."""
    while True:
        try:
            return await act()
        except StorageError:
            await asyncio.sleep(0)


async def story(world: Any) -> list[str]:
    session = world.session
    chat = await insist(lambda: session.conversation("a"))
    sent = [
        await insist(lambda text=text: chat.submit(text, request_id=text, when_busy="follow_up"))
        for text in ("go", "and")
    ]
    await chat.wait_idle()
    assert broken_pairs([entry async for entry in chat.history()]) == []
    return [await one.status() for one in sent]


@pytest.mark.invariant("HA-24")
@pytest.mark.parametrize("how", ["before", "refused", "full", "lost", "after"])
@pytest.mark.parametrize("at", range(2, 15))
async def test_a_refusal_anywhere_is_redone_and_every_input_is_answered(memory_world: Any, how: Any, at: int):
    log: list[str] = []
    script, tools = scene(log)
    memory_world.wrap = lambda storage: Failing(storage, at=at, how=how)
    await memory_world.open(script, *tools)
    statuses = await memory_world.running(story(memory_world))
    assert statuses == ["done", "done"]
    assert sorted(log) == ["pay 1", "pay 2", "pay 3"]


@pytest.mark.parametrize("how", ["poison", "poison_after"])
@pytest.mark.parametrize("at", range(2, 13))
async def test_after_a_write_in_doubt_nothing_starts_and_the_next_start_goes_on(memory_world: Any, how: Any, at: int):
    log: list[str] = []
    script, tools = scene(log)
    memory_world.wrap = lambda storage: Failing(storage, at=at, how=how)
    session = await memory_world.open(script, *tools)

    async def until_it_stops() -> None:
        try:
            chat = await session.conversation("a")
            for text in ("go", "and"):
                await chat.submit(text, request_id=text)
            await chat.wait_idle()
        except StorageError:
            return

    await memory_world.running(until_it_stops())
    begun = len(log)
    await memory_world.clock.advance(10)
    assert len(log) == begun

    memory_world.wrap = lambda storage: storage
    await memory_world.restart()
    assert await memory_world.running(story(memory_world)) == ["done", "done"]
    assert all(log.count(f"pay {n}") <= 1 for n in (1, 2, 3))


async def test_while_the_disk_is_full_no_effect_starts_and_with_space_it_goes_on(memory_world: Any):
    """I59: nothing is lost, and it heals by itself."""
    log: list[str] = []
    script, tools = scene(log)
    memory_world.wrap = lambda storage: Failing(storage, at=4, how="full", times=20)
    session = await memory_world.open(script, *tools)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    for _ in range(8):
        await memory_world.clock.advance(0.5)
    assert session.inspect().storage == "full"
    assert log == []
    assert (await memory_world.running(sent.wait())).text == "ok"
    assert session.inspect().storage == "ok"
    assert sorted(log) == ["pay 1", "pay 2", "pay 3"]
