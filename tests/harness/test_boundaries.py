"""What is placed where, and in which order (H4 to H6, H41, I32)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.harness.harness import Settings
from perdure.harness.registry import tool
from perdure.inbox.boundary import due
from perdure.messages import UserMessage, text_of
from perdure.records import ROOT, Queued, Submission, SubmissionId
from perdure.session.transaction import entry_kind
from perdure.testing.scripted import answer, by_prompt, call, fail, say, wait

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")


async def story(chat: Any) -> list[str]:
    """The conversation in short: users by their text, notes by their data, answers as `.`, results as `!`."""
    found: list[str] = []
    async for entry in chat.history():
        if entry.kind == "test.note":
            found.append(str(entry.data))
        else:
            message = entry.messages[0]
            found.append(text_of(message) if isinstance(message, UserMessage) else "!" if "tool" in entry.kind else ".")
    return found[::-1]


def gate_tool(gate: asyncio.Event) -> Any:
    @tool
    async def work() -> str:
        """Wait for the test."""
        await gate.wait()
        return "worked"

    return work


async def test_a_follow_up_waits_for_the_final_answer_and_starts_the_next_run(world: Any):
    gate = asyncio.Event()
    chat = await (await world.open(answer(wait(gate), say("ok")))).conversation("a")
    first = await chat.submit("one")
    second = await chat.submit("two")
    assert [await first.status(), await second.status()] == ["running", "queued"]
    gate.set()
    await second.wait()
    assert await story(chat) == ["one", ".", "two", "."]


async def test_a_steer_joins_after_the_tool_round_and_is_settled_by_the_same_answer(world: Any):
    gate = asyncio.Event()
    script = by_prompt({"one": [call("work"), say("both")], "two": say("both")})
    chat = await (await world.open(script, gate_tool(gate))).conversation("a")
    first = await chat.submit("one")
    await world.until(lambda: world.session.inspect().tasks[-1].kind == "perdure.tool")
    second = await chat.submit("two", when_busy="steer")
    gate.set()
    settled = [await first.wait(), await second.wait()]
    assert await story(chat) == ["one", ".", "!", "two", "."]
    assert settled[0].answer == settled[1].answer


@pytest.mark.invariant("HA-5")
async def test_a_steer_overtakes_follow_ups_which_keep_their_order(world: Any):
    gate = asyncio.Event()
    script = by_prompt({"start": [call("work"), say("a")], "Q": say("q"), "S": say("s")})
    chat = await (await world.open(script, gate_tool(gate))).conversation("a")
    await chat.submit("start")
    await world.until(lambda: world.session.inspect().tasks[-1].kind == "perdure.tool")
    await chat.submit("Q1")
    await chat.submit("Q2")
    await chat.submit("S", when_busy="steer")
    gate.set()
    await chat.wait_idle()
    assert await story(chat) == ["start", ".", "!", "S", ".", "Q1", ".", "Q2", "."]


async def test_a_steer_that_meets_the_final_answer_starts_the_next_run_before_follow_ups(world: Any):
    gate = asyncio.Event()
    chat = await (await world.open(by_prompt({"one": answer(wait(gate), say("a")), "": say("b")}))).conversation("a")
    await chat.submit("one")
    await chat.submit("Q")
    await chat.submit("S", when_busy="steer")
    gate.set()
    await chat.wait_idle()
    assert await story(chat) == ["one", ".", "S", ".", "Q", "."]


async def test_the_order_is_the_same_after_a_restart(world: Any):
    gate = asyncio.Event()
    script = by_prompt({"one": answer(wait(gate), say("a")), "": say("b")})
    chat = await (await world.open(script)).conversation("a")
    for text, mode in (
        ("one", "follow_up"),
        ("Q1", "follow_up"),
        ("S1", "steer"),
        ("Q2", "follow_up"),
        ("S2", "steer"),
    ):
        await chat.submit(text, when_busy=mode)
    session = await world.restart()
    gate.set()
    chat = await session.conversation("a")
    await chat.wait_idle()
    assert await story(chat) == ["one", ".", "S1", ".", "S2", ".", "Q1", ".", "Q2", "."]


async def test_with_all_everything_due_is_placed_at_one_boundary(world: Any):
    gate = asyncio.Event()
    chat = await (await world.open(by_prompt({"one": answer(wait(gate), say("a")), "": say("b")}))).conversation("a")
    await chat.configure(follow_up="all", steering="all")
    await chat.submit("one")
    for text in ("Q1", "Q2"):
        await chat.submit(text)
    gate.set()
    await chat.wait_idle()
    assert await story(chat) == ["one", ".", "Q1", "Q2", "."]


async def test_a_write_is_placed_at_once_while_idle_and_asks_no_model(world: Any):
    chat = await (await world.open()).conversation("a")
    note = await chat.write(NOTE, "n")
    settled = await note.wait()
    assert settled.answer is None
    assert await story(chat) == ["n"]
    assert world.strict[-1].inner.asked == 0


async def test_writes_are_placed_before_inputs_at_a_boundary(world: Any):
    gate = asyncio.Event()
    chat = await (await world.open(by_prompt({"one": answer(wait(gate), say("a")), "": say("b")}))).conversation("a")
    await chat.submit("one")
    await chat.submit("Q")
    note = await chat.write(NOTE, "n")
    assert await note.status() == "queued"
    gate.set()
    await chat.wait_idle()
    assert await story(chat) == ["one", ".", "n", "Q", "."]
    assert await note.status() == "done"


async def test_a_write_during_a_tool_round_is_placed_after_it(world: Any):
    gate = asyncio.Event()
    script = by_prompt({"one": [call("work"), say("a")]})
    chat = await (await world.open(script, gate_tool(gate))).conversation("a")
    await chat.submit("one")
    await world.until(lambda: world.session.inspect().tasks[-1].kind == "perdure.tool")
    await chat.write(NOTE, "n")
    gate.set()
    await chat.wait_idle()
    assert await story(chat) == ["one", ".", "!", "n", "."]


@pytest.mark.invariant("HA-6")
async def test_a_failed_run_leaves_the_inbox_alone_and_the_next_submission_places_the_oldest(world: Any):
    gate = asyncio.Event()
    script = by_prompt({"one": answer(wait(gate), fail("auth")), "": say("b")})
    chat = await (await world.open(script)).conversation("a")
    failed = await chat.submit("one")
    left = await chat.submit("two")
    gate.set()
    assert (await failed.wait()).reason == "model_error"
    await chat.wait_idle()
    assert await left.status() == "queued"

    last = await chat.submit("three")
    await last.wait()
    assert await story(chat) == ["one", "two", ".", "three", "."]


async def test_a_failed_run_leaves_writes_too_and_the_next_write_does_not_overtake_them(world: Any):
    gate = asyncio.Event()
    chat = await (await world.open(answer(wait(gate), fail("auth")))).conversation("a")
    failed = await chat.submit("one")
    older = await chat.write(NOTE, "n1")
    gate.set()
    await failed.wait()
    await chat.wait_idle()
    assert await older.status() == "queued"

    await chat.write(NOTE, "n2")
    assert await story(chat) == ["one", "n1", "n2"]
    assert await older.status() == "done"


@pytest.mark.invariant("HA-7")
async def test_a_run_at_its_limit_places_nothing_more_and_the_steer_is_answered_by_the_next(world: Any):
    """I22: the limit ends the run with every call settled, and the next input has a fresh budget."""
    gate = asyncio.Event()
    script = by_prompt({"one": [call("work"), call("work")], "": say("fine")})
    session = await world.open(script, gate_tool(gate), settings=Settings(max_rounds=1))
    chat = await session.conversation("a")
    first = await chat.submit("one")
    await world.until(lambda: session.inspect().tasks[-1].kind == "perdure.tool")
    steer = await chat.submit("two", when_busy="steer")
    gate.set()
    ended = await first.wait()
    assert (ended.reason, "limit of 1 round" in ended.detail) == ("limit", True)
    assert await steer.status() == "queued"

    assert (await (await chat.submit("go on")).wait()).text == "fine"
    assert (await steer.wait()).text == "fine"


async def test_a_steer_sent_just_when_the_run_answers_is_delivered_once(world: Any):
    """I32: whatever side of the boundary it falls on."""
    for turns in range(12):
        gate = asyncio.Event()
        chat = await world.session.conversation(f"c{turns}") if world.session else None
        if chat is None:
            session = await world.open(by_prompt({"one": lambda _: answer(wait(gates[0]), say("a")), "S": say("s")}))
            chat = await session.conversation(f"c{turns}")
        gates[:] = [gate]
        await chat.submit("one")
        gate.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        steer = await chat.submit("S", when_busy="steer")
        assert (await steer.wait()).text == "s"
        assert (await story(chat)).count("S") == 1


gates: list[asyncio.Event] = []


def item(id: int, type: Any, mode: Any = "follow_up") -> Submission:
    return Submission(
        id=SubmissionId(id),
        conversation=ROOT,
        type=type,
        state=Queued(),
        digest="",
        at=0.0,
        mode=mode,
    )


@pytest.mark.parametrize(
    "point, steering, follow_up, placed",
    [
        ("round", "one", "one", [2, 6, 3]),
        ("round", "all", "one", [2, 6, 3, 5]),
        ("final", "one", "one", [2, 6, 3]),
        ("final", "all", "all", [2, 6, 3, 5]),
        ("idle", "one", "one", [2, 6, 1]),
        ("idle", "one", "all", [2, 6, 1, 3, 4, 5]),
    ],
)
def test_what_is_due_at_a_boundary(point: Any, steering: Any, follow_up: Any, placed: list[int]):
    queue = [
        item(1, "input"),
        item(2, "write"),
        item(3, "input", "steer"),
        item(4, "input"),
        item(5, "input", "steer"),
        item(6, "write"),
    ]
    assert [each.id for each in due(queue, point, steering=steering, follow_up=follow_up)] == placed
