"""before_tool: block, rewrite, and what becomes of a hook that misbehaves (H24)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.harness.hooks import Block, Rewrite
from perdure.harness.registry import Extension, Registry, tool
from perdure.testing.scripted import by_prompt, call, say

pytestmark = pytest.mark.anyio


class Shop:
    def __init__(self) -> None:
        self.paid: list[Any] = []

        @tool
        async def pay(amount: int, to: str = "Ann") -> str:
            """Pay."""
            self.paid.append((amount, to))
            return "paid"

        self.pay = pay


async def paying(world: Any, *hooks: Any) -> tuple[Shop, Any]:
    shop = Shop()
    registry = Registry([Extension(name="shop", tools=[shop.pay], before_tool=hooks)])
    session = await world.open(by_prompt({"pay": [call("pay", {"amount": 5}), say("ok")]}), registry=registry)
    chat = await session.conversation("a")
    assert (await (await chat.submit("pay")).wait()).text == "ok"
    (found,) = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    return shop, found


async def test_a_blocked_call_does_not_run_and_the_model_is_told_why(world: Any):
    async def guard(seen: Any) -> Any:
        return Block(f"{seen.name} of {seen.arguments['amount']} needs a manager")

    shop, found = await paying(world, guard)
    assert (shop.paid, found.error, found.text) == ([], "blocked", "pay of 5 needs a manager")


async def test_a_rewritten_call_runs_with_the_new_arguments(world: Any):
    async def less(seen: Any) -> Any:
        return Rewrite({**seen.arguments, "amount": 1})

    shop, found = await paying(world, less)
    assert (shop.paid, found.error) == ([(1, "Ann")], None)


async def test_each_hook_sees_what_the_one_before_made_of_it(world: Any):
    seen_amounts: list[int] = []

    async def double(seen: Any) -> Any:
        seen_amounts.append(seen.arguments["amount"])
        return Rewrite({"amount": seen.arguments["amount"] * 2})

    shop, _ = await paying(world, double, double)
    assert (seen_amounts, shop.paid) == ([5, 10], [(20, "Ann")])


async def raise_error(seen: Any) -> Any:
    raise ValueError("the rules are gone")


async def cancel(seen: Any) -> Any:
    raise asyncio.CancelledError


async def leave(seen: Any) -> Any:
    raise SystemExit(1)


async def say_yes(seen: Any) -> Any:
    return "yes"


async def rewrite_to_text(seen: Any) -> Any:
    return Rewrite("amount=1")  # type: ignore[arg-type]


async def rewrite_to_objects(seen: Any) -> Any:
    return Rewrite({"amount": object()})


def not_even_async(seen: Any) -> Any:
    return Block("no")


@pytest.mark.invariant("HA-17")
@pytest.mark.parametrize(
    "hook", [raise_error, cancel, leave, say_yes, rewrite_to_text, rewrite_to_objects, not_even_async]
)
async def test_a_hook_that_fails_or_says_what_is_no_answer_blocks_the_call(world: Any, hook: Any):
    shop, found = await paying(world, hook)
    assert (shop.paid, found.error) == ([], "blocked")


async def test_a_rewrite_that_does_not_fit_the_schema_does_not_run(world: Any):
    async def spoil(seen: Any) -> Any:
        return Rewrite({"amount": "much"})

    shop, found = await paying(world, spoil)
    assert (shop.paid, found.error) == ([], "invalid_arguments")


async def test_a_hook_that_changes_what_it_sees_changes_nothing(world: Any):
    async def meddle(seen: Any) -> Any:
        seen.arguments["amount"] = 1000

    shop, _ = await paying(world, meddle)
    assert shop.paid == [(5, "Ann")]


@pytest.mark.invariant("HA-18")
async def test_the_gate_runs_again_after_a_crash_and_the_call_runs_once(world: Any):
    """H18: no intent was committed, so nothing can have happened."""
    shop, judged, gate = Shop(), [], asyncio.Event()

    async def think(seen: Any) -> Any:
        judged.append(seen.name)
        await gate.wait()

    registry = Registry([Extension(name="shop", tools=[shop.pay], before_tool=[think])])
    session = await world.open(by_prompt({"pay": [call("pay", {"amount": 5}), say("ok")]}), registry=registry)
    sent = await (await session.conversation("a")).submit("pay")
    await world.until(lambda: judged)

    session = await world.restart()
    gate.set()
    assert (await session.submission(sent.id).wait()).text == "ok"
    assert (judged, shop.paid) == (["pay", "pay"], [(5, "Ann")])


async def test_an_abort_at_the_gate_says_that_nothing_had_begun(world: Any):
    shop, judged = Shop(), []

    async def think(seen: Any) -> Any:
        judged.append(seen.name)
        await asyncio.Event().wait()

    registry = Registry([Extension(name="shop", tools=[shop.pay], before_tool=[think])])
    session = await world.open(by_prompt({"pay": [call("pay", {"amount": 5}), say("ok")]}), registry=registry)
    chat = await session.conversation("a")
    await chat.submit("pay")
    await world.until(lambda: judged)
    await chat.abort()
    (found,) = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    assert (found.error, "had not begun" in found.text) == ("aborted", True)


async def test_running_calls_keep_the_hooks_and_tools_that_they_took(world: Any):
    """H37, K35: the registry is replaced while a call is at its gate."""
    shop, judged, gate = Shop(), [], asyncio.Event()

    async def think(seen: Any) -> Any:
        judged.append(seen.name)
        await gate.wait()
        return Block("by the old rules")

    old = Registry([Extension(name="shop", tools=[shop.pay], before_tool=[think])])
    session = await world.open(by_prompt({"pay": [call("pay", {"amount": 5}), say("ok")]}), registry=old)
    chat = await session.conversation("a")
    sent = await chat.submit("pay")
    await world.until(lambda: judged)
    await session.install(Registry([Extension(name="shop", tools=[shop.pay])]))
    gate.set()
    await sent.wait()
    assert shop.paid == []
