"""Forks of conversations at work: settings of then, any entry, and what they are in the tree (K15, H36, I65)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import NotFound, UsageError
from perdure.harness.registry import Extension, Registry, tool
from perdure.harness.stored import USER
from perdure.messages import text_of, user
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.scripted import answer, by_prompt, call, cut, fail, say

pytestmark = pytest.mark.anyio
SUMMARY = entry_kind("test.summary")


@tool
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


class Owning(TaskDefinition):
    kind = "test.owning"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.create_conversation(owner=invocation.id, title="inside")
            tx.complete()


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.invariant("HA-135")
async def test_a_fork_starts_with_its_parents_settings_as_of_the_entry_and_later_changes_stay_on_their_side(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), look)
    chat = await session.conversation("a")
    await chat.configure(max_rounds=7, tools=("look",), max_spend=3.0)
    done = await (await chat.submit("one")).wait()
    await chat.configure(max_rounds=9, instructions="later")
    await (await chat.submit("two")).wait()
    then, now = await chat.fork(done.answer.id, key="then"), await chat.fork(key="now")
    await chat.configure(max_rounds=11)
    await then.configure(sequential=True)

    await world.close()
    session = await world.reopen()
    chat, then, now = [await session.conversation(key) for key in ("a", "then", "now")]
    found = await then.settings()
    assert (found.max_rounds, found.tools, found.max_spend, found.instructions) == (7, ("look",), 3.0, None)
    assert found.sequential
    assert ((await now.settings()).max_rounds, (await now.settings()).instructions) == (9, "later")
    assert ((await chat.settings()).max_rounds, (await chat.settings()).sequential) == (11, False)
    again = await then.fork(key="again")
    assert (await again.settings()).max_rounds == 7


# -- any entry ----------------------------------------------------------------------------------


@pytest.mark.invariant("HA-136")
@pytest.mark.slow
async def test_a_fork_at_any_entry_goes_on_with_a_context_that_every_provider_takes(world: Any):
    """In the middle of rounds, behind stopped answers, on both sides of summaries and resets; and forks of those."""
    script = by_prompt(
        {
            "go": [
                answer(say("first"), call("look", {"n": 1}), call("look", {"n": 2})),
                answer(call("look", {"n": 3}), call("nothing"), call("look", "{broken")),
                answer(say("done")),
            ],
            "cut": [answer(say("half an"), cut()), fail("invalid")],
            "": say("fine"),
        }
    )
    session = await world.open(script, look)
    chat = await session.conversation("a")
    await world.running((await chat.submit("go")).wait())
    await world.running((await chat.submit("cut")).wait())
    kept = (await chat.entries(limit=3))[-1]
    async with chat.commit() as tx:
        tx.append(chat.id, SUMMARY, messages=(user("in short"),), head=kept.id)
    await world.running((await chat.submit("go")).wait())
    async with chat.commit() as tx:
        tx.append(chat.id, SUMMARY, messages=(user("anew"),), heads_itself=True)
    await world.running((await chat.submit("end")).wait())
    seen = [entry.id async for entry in chat.history()][::-1]
    assert len(seen) > 20

    for at in seen:
        fork = await chat.fork(at)
        below = await fork.fork(at)
        for each in (fork, below):
            assert (await world.running((await each.submit("continue")).wait())).text == "fine"
            assert [entry.id async for entry in each.history()][::-1][: seen.index(at) + 1] == seen[
                : seen.index(at) + 1
            ]
    assert [entry.id async for entry in chat.history()][::-1] == seen
    assert world.strict[-1].violations == []
    await world.close()  # forks inside rounds hold calls without results for good: only what is sent has all


async def test_a_fork_while_its_parent_works_takes_nothing_of_that_work_along(world: Any):
    gate = asyncio.Event()

    @tool(name="look")
    async def slow() -> str:
        """Look slowly."""
        await gate.wait()
        return "seen"

    session = await world.open(by_prompt({"go": [call("look"), say("done")], "": say("fine")}), slow)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: any(task.kind == "perdure.tool" for task in session.inspect().tasks))
    queued = await chat.submit("later")
    fork = await chat.fork()
    assert (fork.busy, fork.inbox()) == (False, [])
    assert (await (await fork.submit("here")).wait()).text == "fine"
    gate.set()
    assert (await sent.wait()).text == "done"
    assert (await queued.wait()).text == "fine"
    inputs = [text_of(entry.messages[0]) async for entry in fork.history() if entry.kind == USER.name]
    assert inputs == ["here", "go"]
    await world.close()  # the fork holds a call without a result


async def test_what_cannot_be_forked_is_refused_and_changes_nothing(memory_world: Any):
    session = await memory_world.open(by_prompt({"": say("ok")}))
    chat = await session.conversation("a")
    with pytest.raises(NotFound, match="no entry yet"):
        await chat.fork()
    await (await chat.submit("go")).wait()
    with pytest.raises(NotFound, match="sees no entry 999"):
        await chat.fork(999)
    with pytest.raises(UsageError, match=f"belongs to another conversation, {chat.id}"):
        await chat.fork(key="a")
    assert len(await session.conversations()) == 1


# -- the tree -----------------------------------------------------------------------------------


@pytest.mark.invariant("HA-137")
async def test_the_tree_shows_forks_owned_conversations_and_what_is_kept_for_forks(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=Registry([Extension(name="x", tasks=[Owning()])]))
    chat = await session.conversation("a")
    done = await (await chat.submit("go")).wait()
    async with chat.commit() as tx:
        task = tx.create_task(Owning)
    await session.wait_task(task.id)
    fork = await chat.fork(done.entry, key="fork")
    await (await fork.submit("more")).wait()
    leaf = await fork.fork()
    await session.delete(fork)
    other = await session.conversation("b")

    await world.close()
    session = await world.reopen()
    first, second = await session.tree()
    inside = next(each for each in await session.conversations() if each.owner is not None)
    assert [(depth, branch.id) for depth, branch in first.walk()] == [
        (0, chat.id),
        (1, inside.id),
        (1, fork.id),
        (2, leaf.id),
    ]
    owned, kept = first.below
    assert (owned.owner, owned.title, owned.entries, owned.under) == (task.id, "inside", 0, chat.id)
    assert (kept.deleted, kept.entries, kept.forked.entry, kept.key) == (True, 2, done.entry, None)
    assert (second.id, second.key, second.below) == (other.id, "b", ())
    (newest,) = await session.tree(limit=1)
    assert newest.id == other.id


async def test_a_tree_of_the_newest_ones_has_all_that_they_stand_below(memory_world: Any):
    session = await memory_world.open(by_prompt({"": say("ok")}))
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    chain = [chat]
    for _ in range(60):
        chain.append(await chain[-1].fork())
    for key in range(5):
        await session.conversation(f"other {key}")
    await session.delete(chain[30])

    trees = await session.tree(limit=6)
    assert [branch.id for _, branch in trees[0].walk()] == [each.id for each in chain]
    assert [depth for depth, _ in trees[0].walk()] == list(range(61))
    assert len(trees) == 6
