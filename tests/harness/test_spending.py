"""Ledgers and limits on spend: each attempt counted once, in every total that it belongs to, whatever dies (H15, H17).

I47: a limit reads the same ledger as the report, and what is unknown is not zero.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import UsageError
from perdure.harness.harness import RequestLimits
from perdure.harness.registry import Extension, Registry, tool
from perdure.harness.stored import USAGE, USAGE_TOTAL
from perdure.harness.submissions import submit_input
from perdure.model import Usage
from perdure.storage import Remove
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.scripted import answer, by_prompt, by_round, call, fail, hang, say

pytestmark = pytest.mark.anyio


def priced(*parts: Any, cost: float = 1.0) -> Any:
    return answer(*parts, usage=Usage(input=10, output=1, cost=cost))


@tool
async def look() -> str:
    """Look."""
    return "seen"


class Team(TaskDefinition):
    """Asks in a conversation of its own for each prompt, and ends when all are idle. A prompt may be a list: a team
    below it."""

    kind = "test.team"
    harness: Any = None

    @phase(first=True)
    async def begin(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            runs = []
            for prompt in invocation.input:
                home = tx.create_conversation(owner=invocation.id)
                if isinstance(prompt, list):
                    runs.append(tx.create_task(Team, prompt, owner=home))
                else:
                    await submit_input(self.harness, tx, home.id, prompt, request_id=None, when_busy="follow_up")
                    runs += tx.candidate.scope(home.id)
            await tx.wait(runs, then=self.end)

    @phase
    async def end(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.complete()


async def team(session: Any, chat: Any, *prompts: Any) -> None:
    """Let a task of this conversation ask these prompts, and wait until all are settled."""
    Team.harness = session._harness
    async with chat.commit() as tx:
        task = tx.create_task(Team, list(prompts))
    await session.wait_task(task.id)


def teamed(*tools: Any) -> Registry:
    return Registry([Extension(name="test", tools=tools, tasks=[Team()])])


def spent(usage: dict[str, Any]) -> float:
    return sum(row.get("cost", 0) for row in usage["models"].values())


# -- ledgers ------------------------------------------------------------------------------------


@pytest.mark.invariant("HA-130")
async def test_a_conversation_counts_what_those_below_it_used_all_the_way_down_and_the_session_counts_all(world: Any):
    script = by_prompt(
        {"deep": priced(say("ok"), cost=4.0), "wide": priced(say("ok"), cost=2.0), "": priced(say("ok"))}
    )
    session = await world.open(script, registry=teamed())
    chat, other = await session.conversation("a"), await session.conversation("b")
    await (await chat.submit("own")).wait()
    await (await other.submit("own")).wait()
    await team(session, chat, "wide", ["deep", "deep"])

    await world.close()
    session = await world.reopen()
    chat, other = await session.conversation("a"), await session.conversation("b")
    assert spent(await chat.usage()) == 1.0
    assert spent(await chat.usage(subtree=True)) == 1.0 + 2.0 + 8.0
    assert spent(await other.usage(subtree=True)) == 1.0
    assert spent(await session.usage()) == 12.0
    assert (await chat.usage(subtree=True))["models"]["scripted"]["requests"] == 4


@pytest.mark.invariant("HA-130")
async def test_what_a_deleted_conversation_spent_stays_in_the_totals_above_it_and_a_fork_begins_at_zero(world: Any):
    session = await world.open(by_prompt({"": priced(say("ok"))}), registry=teamed())
    chat, gone = await session.conversation("a"), await session.conversation("gone")
    done = await (await chat.submit("own")).wait()
    fork = await chat.fork(done.answer.id)
    await (await gone.submit("own")).wait()
    await team(session, chat, "one")
    (sub,) = [each.id for each in await session.conversations() if each.owner is not None]
    for each in (gone, sub):
        await session.delete(each)

    assert spent(await session.usage()) == 3.0
    assert spent(await chat.usage(subtree=True)) == 2.0
    assert await fork.usage(subtree=True) == {"models": {}, "tools": {}}
    await (await fork.submit("own")).wait()
    assert spent(await fork.usage()) == 1.0
    assert spent(await chat.usage()) == 1.0


async def test_a_session_of_an_older_version_has_the_sum_of_its_conversations_from_the_first_look(world: Any):
    session = await world.open(by_prompt({"": priced(say("ok"))}))
    for key in "abc":
        await (await (await session.conversation(key)).submit("go")).wait()
    document = await session._line.memory.shelves.loaded(("session", 0), (USAGE_TOTAL.kind, ""))
    async with session.commit() as tx:  # as it was written by a version that kept no total
        tx.removes.append(Remove("document", document.record.id))
        tx.forced = True
    await world.close()
    session = await world.reopen()

    assert spent(await session.usage()) == 3.0
    await (await (await session.conversation("a")).submit("go")).wait()
    assert spent(await session.usage()) == 4.0


async def test_requests_without_a_known_cost_are_said_beside_the_cost(world: Any):
    script = by_prompt({"one": priced(say("ok")), "two": answer(say("ok"), usage=Usage(input=5))})
    session = await world.open(script)
    chat = await session.conversation("a")
    for prompt in ("one", "two"):
        await (await chat.submit(prompt)).wait()
    row = (await chat.usage())["models"]["scripted"]
    assert row == {"requests": 2, "unknown": 0, "unpriced": 1, "input": 15, "output": 1, "cost": 1.0}


# -- limits -------------------------------------------------------------------------------------


@pytest.mark.invariant("HA-131")
async def test_a_run_ends_at_the_spend_limit_and_goes_on_when_it_is_raised(world: Any):
    script = by_prompt({"go": [priced(call("look")), priced(call("look")), priced(say("done"))], "": priced(say("ok"))})
    session = await world.open(script, look)
    chat = await session.conversation("a")
    await chat.configure(max_spend=2.0)
    ended = await (await chat.submit("go")).wait()

    assert (ended.reason, "spent 2 of at most 2" in ended.detail, "max_spend" in ended.detail) == ("limit", True, True)
    assert not chat.busy
    again = await (await chat.submit("more")).wait()
    assert again.reason == "limit"
    session = await world.restart()
    chat = await session.conversation("a")
    assert (await (await chat.submit("still")).wait()).reason == "limit"
    await chat.configure(max_spend=10.0)
    assert (await (await chat.submit("and now")).wait()).text == "ok"
    assert spent(await chat.usage()) == 3.0


@pytest.mark.invariant("HA-131")
async def test_what_was_queued_behind_a_run_that_reached_its_limit_stays_queued(world: Any):
    gate = asyncio.Event()

    @tool(name="look")
    async def slow() -> str:
        """Look slowly."""
        await gate.wait()
        return "seen"

    session = await world.open(by_prompt({"go": [priced(call("look")), say("no")], "": priced(say("ok"))}), slow)
    chat = await session.conversation("a")
    await chat.configure(max_spend=1.0)
    first = await chat.submit("go")
    await world.until(lambda: any(task.kind == "perdure.tool" for task in session.inspect().tasks))
    steered = await chat.submit("steered", when_busy="steer")
    gate.set()
    assert (await first.wait()).reason == "limit"
    assert [item.id for item in chat.inbox()] == [steered.id]


@pytest.mark.invariant("HA-132")
async def test_parallel_conversations_below_one_exceed_its_limit_by_no_more_than_was_in_flight(world: Any):
    rounds = [priced(call("look")) for _ in range(6)] + [priced(say("done"))]
    session = await world.open(by_prompt({"": rounds}), registry=teamed(look))
    chat = await session.conversation("a")
    await chat.configure(max_subtree_spend=10.0)
    await team(session, chat, *["work"] * 4)

    total = spent(await chat.usage(subtree=True))
    assert 10.0 <= total <= 10.0 + 4 - 1
    assert spent(await session.usage()) == total
    for each in await session.conversations():
        if each.owner is not None:
            assert not (await session.find(each.id)).busy


@pytest.mark.invariant("HA-132")
async def test_a_limit_of_the_session_holds_for_all_its_conversations_together(world: Any):
    session = await world.open(by_prompt({"": priced(say("ok"))}))
    chats = [await session.conversation(key) for key in "abcd"]
    for chat in chats:
        await chat.configure(max_session_spend=3.0)
    ends = [await (await chat.submit("go")).wait() for chat in chats]
    assert [getattr(end, "reason", None) for end in ends] == [None, None, None, "limit"]
    assert spent(await session.usage()) == 3.0


@pytest.mark.invariant("HA-132")
async def test_a_request_that_waited_for_its_turn_is_not_sent_once_others_spent_what_was_left(world: Any):
    session = await world.open(by_prompt({"": priced(say("ok"))}), limits=RequestLimits(at_once=1))
    chats = [await session.conversation(key) for key in "abcdef"]
    for chat in chats:
        await chat.configure(max_session_spend=2.0)
    sent = [await chat.submit("go") for chat in chats]
    ends = [await each.wait() for each in sent]
    assert sum(getattr(end, "reason", None) == "limit" for end in ends) == 4
    assert spent(await session.usage()) == 2.0


async def test_a_retry_is_not_sent_once_others_spent_what_was_left(memory_world: Any):
    world = memory_world
    script = by_prompt({"first": [fail("rate_limited", after=50), priced(say("no"))], "": priced(say("ok"), cost=3.0)})
    session = await world.open(script)
    one, two = await session.conversation("a"), await session.conversation("b")
    for chat in (one, two):
        await chat.configure(max_session_spend=3.0)
    waiting = await one.submit("first")
    await world.clock.advance(1.0)
    assert (await world.running((await two.submit("go")).wait())).text == "ok"
    assert (await world.running(waiting.wait())).reason == "limit"
    assert spent(await session.usage()) == 3.0


@pytest.mark.invariant("HA-133")
async def test_a_lost_attempt_counts_as_unknown_and_against_the_limit_as_the_dearest_known_one(world: Any):
    script = by_prompt({"one": priced(say("ok"), cost=2.0), "": answer(say("half"), hang())})
    session = await world.open(script)
    chat = await session.conversation("a")
    await chat.configure(max_spend=4.0)
    await (await chat.submit("one")).wait()
    sent = await chat.submit("two")
    await world.until(lambda: len(world.strict[-1].inner.requests) == 2)
    session = await world.restart()
    ended = await session.submission(sent.id).wait()

    chat = await session.conversation("a")
    row = next(iter((await chat.usage())["models"].values()))
    assert (row["requests"], row["unknown"], row["cost"], row["unpriced"]) == (2, 1, 2.0, 1)
    assert ended.reason == "limit"
    assert ended.detail.startswith(f"conversation {chat.id} spent 4 of at most 4")
    assert len(world.strict[-1].inner.requests) == 2


@pytest.mark.invariant("HA-134")
async def test_a_crash_takes_no_round_from_the_step_budget(world: Any):
    gate = asyncio.Event()
    asked = 0

    @tool(name="look", replay="safe")
    async def slow() -> str:
        """Look slowly."""
        nonlocal asked
        asked += 1
        await gate.wait()
        return "seen"

    script = by_round(priced(call("look")), priced(call("look")), priced(say("done")))
    session = await world.open(script, slow, progress_interval=1e9)
    chat = await session.conversation("a")
    await chat.configure(max_rounds=3)
    sent = await chat.submit("go")
    for crashes in (1, 2):
        await world.until(lambda crashes=crashes: asked == crashes)
        session = await world.restart()
        await session.resume()
    gate.set()
    assert (await session.submission(sent.id).wait()).text == "done"
    assert (await (await session.conversation("a")).usage())["models"]["scripted"]["requests"] == 3


@pytest.mark.parametrize("value", [-1, "much", float("nan")])
async def test_a_limit_that_is_no_amount_is_refused_by_name(memory_world: Any, value: Any):
    session = await memory_world.open()
    chat = await session.conversation("a")
    with pytest.raises(UsageError, match="max_subtree_spend"):
        await chat.configure(max_subtree_spend=value)


async def test_the_total_of_a_session_is_read_and_not_summed_up(memory_world: Any):
    """It is one document, however many conversations there are."""
    world = memory_world
    session = await world.open(by_prompt({"": priced(say("ok"))}))
    for number in range(30):
        await (await (await session.conversation(f"c-{number}")).submit("go")).wait()
    read: list[str] = []
    storage = session._line.storage
    for name in ("scan_conversations", "find_document", "scan_documents", "read_document"):
        inner = getattr(storage, name)

        async def counting(*where: Any, inner: Any = inner, name: str = name, **how: Any) -> Any:
            read.append(name)
            return await inner(*where, **how)

        setattr(storage, name, counting)
    assert spent(await session.usage()) == 30.0
    assert read == []
    assert (await (await session.conversation("c-3")).snapshot(USAGE))["models"]["scripted"]["dearest"] == 1.0
