"""Permits: how many model requests a session has open at a time, and who waits for them (I70)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import UsageError
from perdure.harness.harness import RequestLimits
from perdure.harness.permits import Permits
from perdure.harness.registry import tool
from perdure.harness.retry import RetryPolicy
from perdure.messages import text_of
from perdure.testing.clock import settle
from perdure.testing.scripted import answer, by_prompt, call, fail, say, wait

pytestmark = pytest.mark.anyio


@pytest.mark.invariant("SA-10")
async def test_no_more_requests_are_open_than_there_are_permits_and_the_first_come_goes_first(memory_world: Any):
    world = memory_world
    gates = {name: asyncio.Event() for name in "abcd"}
    script = by_prompt({name: answer(wait(gate), say(name)) for name, gate in gates.items()})
    session = await world.open(script, limits=RequestLimits(at_once=2))
    model: Any = world.strict[-1].inner
    sent = [await (await session.conversation(name)).submit(name) for name in "abcd"]
    await settle()
    assert [text_of(request.messages[-1]) for request in model.requests] == ["a", "b"]
    gates["b"].set()
    await settle()
    assert [text_of(request.messages[-1]) for request in model.requests] == ["a", "b", "c"]
    for gate in gates.values():
        gate.set()

    assert [(await each.wait()).text for each in sent] == list("abcd")


@pytest.mark.invariant("SA-10")
async def test_a_run_that_waits_for_its_tools_holds_no_permit(world: Any):
    asked: list[str] = []

    @tool(timeout=1000)
    async def delegate(to: str) -> str:
        """Ask another conversation, and wait for its answer."""
        asked.append(to)
        return (await (await (await session.conversation(to)).submit(f"go {to}")).wait()).text

    script = by_prompt({f"go {at}": [call("delegate", {"to": str(at + 1)}), say(f"done {at}")] for at in range(3)})
    deepest = by_prompt({"go 3": say("deepest")})
    session = await world.open(
        lambda request: deepest if "go 3" in str(request.messages[0]) else script,
        delegate,
        limits=RequestLimits(at_once=1),
    )
    chat = await session.conversation("0")

    assert (await world.running((await chat.submit("go 0")).wait())).text == "done 0"
    assert asked == ["1", "2", "3"]


@pytest.mark.invariant("SA-11")
async def test_an_aborted_request_gives_its_permit_or_its_place_to_the_next(memory_world: Any):
    world = memory_world
    never = asyncio.Event()
    script = by_prompt({"slow": answer(wait(never)), "waits": say("no"), "quick": say("yes")})
    session = await world.open(script, limits=RequestLimits(at_once=1))
    slow, waits, quick = [await session.conversation(name) for name in ("slow", "waits", "quick")]
    for chat, text in ((slow, "slow"), (waits, "waits")):
        await chat.submit(text)
    sent = await quick.submit("quick")
    await settle()
    await world.running(waits.abort())
    await world.running(slow.abort())

    assert (await sent.wait()).text == "yes"


@pytest.mark.invariant("SA-11")
async def test_waiting_for_a_permit_counts_neither_against_time_limits_nor_against_the_retry_budget(memory_world: Any):
    world = memory_world
    gate = asyncio.Event()
    script = by_prompt({"first": answer(wait(gate), say("1")), "second": lambda request: attempts.pop(0)})
    attempts: list[Any] = [fail(), say("2")]
    limits = RequestLimits(at_once=1, first_byte=100.0, total=1000.0, progress=1000.0)
    session = await world.open(script, limits=limits, retry=RetryPolicy(budget=60.0))
    first = await (await session.conversation("a")).submit("first")
    second = await (await session.conversation("b")).submit("second")
    await settle()
    await world.clock.advance(99.0)
    gate.set()

    assert (await first.wait()).text == "1"
    assert (await world.running(second.wait())).text == "2"


def test_a_limit_of_no_requests_is_refused():
    with pytest.raises(UsageError, match="at least 1"):
        RequestLimits(at_once=0)


async def test_a_permit_that_comes_together_with_the_cancellation_is_passed_on():
    permits = Permits(1)
    await permits.__aenter__()
    took: list[str] = []

    async def taking(name: str) -> None:
        async with permits:
            took.append(name)

    first, second = asyncio.create_task(taking("first")), asyncio.create_task(taking("second"))
    await settle()
    assert permits.waiting == 2
    await permits.__aexit__()
    first.cancel()
    await asyncio.wait([first, second])

    assert took == ["second"]
    assert permits.waiting == 0
    async with permits:
        pass
