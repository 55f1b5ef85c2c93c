"""When a conversation is summarised by itself, and when that stops (H33, H34, I43, I45, I46)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.harness.summarised import (
    MODEL,
    SMALL,
    WORDS,
    asked,
    compacting,
    entries,
    gate_tool,
    kinds,
    model_of,
    said,
    talk_of,
    talked,
)

from perdure.errors import UsageError
from perdure.messages import text_of
from perdure.model import Request, Usage
from perdure.records import Completed
from perdure.session.transaction import entry_kind
from perdure.testing.scripted import answer, by_prompt, call, fail, say, wait

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")


# -- by itself --------------------------------------------------------------------------------------


@pytest.mark.invariant("HC-20")
async def test_a_request_at_the_threshold_waits_for_a_compaction(world: Any):
    model = model_of(window=1000)
    session = await world.open(model)
    chat = await session.conversation("a")
    await chat.configure(**SMALL)
    await talk_of(chat, 4)
    assert asked(model) == []
    assert (await (await chat.submit(f"4 {WORDS * 3}")).wait()).text == "ok"
    assert (await kinds(chat))[-3:] == ["user", "compaction", "assistant"]
    assert (await entries(chat))[-2].data["reason"] == "threshold"
    assert len(asked(model)) == 1
    assert said(talked(model)[-1])[-1].startswith("4 word")


async def test_what_a_response_measured_counts_more_than_an_estimate(world: Any):
    used = Usage(input=610, output=10)
    model = model_of(answer(say("ok"), usage=used), window=1000)
    chat = await (await world.open(model)).conversation("a")
    await chat.configure(**SMALL)
    await talk_of(chat, 3)
    assert (await entries(chat))[1].data["context"] == 620
    assert (await kinds(chat)).count("compaction") == 1


@pytest.mark.invariant("HC-21")
async def test_a_background_compaction_begins_in_the_commit_of_a_request_and_runs_beside_the_work(world: Any):
    gate = asyncio.Event()
    model = model_of(summary=answer(wait(gate), say("s")), window=1000)
    session = await world.open(model)
    chat = await session.conversation("a")
    await chat.configure(compaction_reserve=200, compaction_keep_recent=100, compaction_background=400)
    commits: list[Any] = []
    await talk_of(chat, 3)
    session.observe(commits.append)
    assert (await (await chat.submit(f"3 {WORDS}")).wait()).text == "ok"
    assert len(asked(model)) == 1
    started = [change for change in commits if any(task.kind == "perdure.compaction" for task in change.tasks.values())]
    assert any(task.kind == "perdure.generation" for task in started[0].tasks.values())
    assert "compaction" not in await kinds(chat)
    gate.set()
    await chat.wait_idle()
    assert (await entries(chat))[-1].data["reason"] == "background"


async def test_only_one_background_compaction_runs_at_a_time(world: Any):
    gate = asyncio.Event()
    model = model_of(summary=answer(wait(gate), say("s")), window=1000)
    chat = await (await world.open(model)).conversation("a")
    await chat.configure(compaction_reserve=100, compaction_keep_recent=100, compaction_background=500)
    await talk_of(chat, 7)
    assert len(asked(model)) == 1
    gate.set()
    await chat.wait_idle()


@pytest.mark.parametrize("off", [{"compaction": False}, {"compaction_background": 0}])
async def test_compaction_can_be_turned_off_and_its_background_alone(world: Any, off: dict[str, Any]):
    model = model_of(window=1000)
    session = await world.open(model)
    chat = await session.conversation("a")
    small = {"compaction_reserve": 200, "compaction_keep_recent": 100, "compaction_background": 400}
    await chat.configure(**(small | off))
    await talk_of(chat, 6)
    assert asked(model) == []
    assert isinstance(await session.wait_task(await chat.compact()), Completed)
    assert len(asked(model)) == 1


async def test_the_policy_is_the_conversations_own_and_survives_a_restart(world: Any):
    session = await world.open(model_of(window=1000))
    chat = await session.conversation("a")
    await chat.configure(**SMALL)
    session = await world.restart()
    settings = await (await session.conversation("a")).settings()
    assert {name: getattr(settings, name) for name in SMALL} == SMALL
    other = await (await session.conversation("b")).settings()
    assert (other.compaction, other.compaction_reserve, other.compaction_keep_recent) == (True, 16_384, 20_000)
    assert other.compaction_background == 32_768
    with pytest.raises(UsageError, match="at least 0"):
        await chat.configure(compaction_reserve=-1)


def overflowing(limit: int, talk: Any = None) -> Any:
    """Refuses what has more than so many characters, as a provider does whose window is unknown."""

    def script(request: Request) -> Any:
        size = sum(len(text_of(message)) for message in request.messages)
        return fail("overflow", message="too long") if size > limit else talk or say("ok")

    return script


@pytest.mark.invariant("HC-22")
async def test_an_overflow_compacts_and_tries_again_once(world: Any):
    model = model_of(overflowing(1700))
    chat = await (await world.open(model)).conversation("a")
    await talk_of(chat, 3)
    settled = await (await chat.submit(f"3 {WORDS * 2}")).wait()
    assert settled.text == "ok"
    assert (await kinds(chat))[-3:] == ["user", "compaction", "assistant"]
    assert len(asked(model)) == 1


@pytest.mark.invariant("HC-22")
async def test_a_second_overflow_of_a_run_is_recorded_and_says_what_does_not_fit(world: Any):
    model = model_of(overflowing(1700))
    chat = await (await world.open(model)).conversation("a")
    await talk_of(chat, 3)
    settled = await (await chat.submit(f"3 {WORDS * 9}")).wait()
    assert settled.reason == "overflow"
    assert "too long" in settled.detail
    assert "the largest of them is entry" in settled.detail
    assert (len(asked(model)), len(talked(model))) == (1, 5)
    assert (await (await chat.submit("short")).wait()).text == "ok"


async def test_an_overflow_of_a_conversation_that_compacts_nothing_by_itself_is_recorded(world: Any):
    model = model_of(overflowing(1700))
    chat = await (await world.open(model)).conversation("a")
    await chat.configure(compaction=False)
    await talk_of(chat, 3)
    assert (await (await chat.submit(f"3 {WORDS * 2}")).wait()).reason == "overflow"
    assert asked(model) == []


async def test_an_overflow_without_a_valid_cut_is_recorded_at_once(world: Any):
    model = model_of(overflowing(300))
    chat = await (await world.open(model)).conversation("a")
    settled = await (await chat.submit(WORDS)).wait()
    assert (settled.reason, asked(model), len(talked(model))) == ("overflow", [], 1)


async def test_an_overflow_whose_compaction_fails_is_recorded_and_not_tried_again(world: Any):
    model = model_of(overflowing(1700), summary=fail("auth"))
    chat = await (await world.open(model)).conversation("a")
    await talk_of(chat, 3)
    settled = await (await chat.submit(f"3 {WORDS * 2}")).wait()
    assert (settled.reason, "Nothing was summarised" in settled.detail) == ("overflow", True)
    assert len(talked(model)) == 4


# -- stopping ---------------------------------------------------------------------------------------


@pytest.mark.invariant("HC-23")
async def test_what_a_compaction_cannot_make_fit_ends_the_run_after_few_tries_and_is_named(world: Any):
    """A result larger than the window stands in the tail (I43)."""
    gate = asyncio.Event()
    gate.set()
    model = model_of(by_prompt({"go": [call("work"), say("never")], "word": say("ok")}), window=1000)
    chat = await (await world.open(model, gate_tool(gate, "x" * 8000))).conversation("a")
    await chat.configure(**SMALL)
    await talk_of(chat, 2)
    settled = await (await chat.submit("go")).wait()
    assert settled.reason == "overflow"
    assert "perdure.tool_result of work) with 2,0" in settled.detail
    assert len(asked(model)) <= 2
    assert len(talked(model)) == 3


@pytest.mark.invariant("HC-23")
async def test_tools_that_fill_the_window_start_no_compaction_that_cannot_help(world: Any):
    used = Usage(input=900, output=10)
    model = model_of(answer(say("ok"), usage=used), window=1000)
    chat = await (await world.open(model)).conversation("a")
    await chat.configure(**SMALL)
    for number in range(5):
        assert (await (await chat.submit(f"{number}")).wait()).text == "ok"
    assert asked(model) == []


async def test_the_conversation_goes_on_once_the_giant_is_older(world: Any):
    gate = asyncio.Event()
    gate.set()
    model = model_of(
        by_prompt({"go": [call("work"), say("never")], "word": say("ok"), "next": say("fine")}), window=1000
    )
    chat = await (await world.open(model, gate_tool(gate, "x" * 8000))).conversation("a")
    await chat.configure(**SMALL)
    await talk_of(chat, 2)
    assert (await (await chat.submit("go")).wait()).reason == "overflow"
    assert (await (await chat.submit("next")).wait()).text == "fine"
    stored = [entry for entry in await entries(chat) if entry.kind == "perdure.tool_result"]
    assert len(text_of(stored[0].messages[0])) == 8000
    assert "characters left out" in text_of(asked(model)[-1].messages[-1])


async def test_a_summariser_that_fails_is_not_asked_again_and_again(world: Any):
    model = model_of(summary=fail("auth"), window=1000)
    chat = await (await world.open(model)).conversation("a")
    await chat.configure(**SMALL)
    await talk_of(chat, 4)
    assert (await (await chat.submit(f"4 {WORDS * 2}")).wait()).text == "ok"
    assert len(asked(model)) == 1


# -- what is said meanwhile, and what dies ----------------------------------------------------------


@pytest.mark.invariant("HC-24")
async def test_nothing_that_is_said_during_a_blocking_compaction_is_lost(world: Any):
    gate = asyncio.Event()
    model = model_of(summary=answer(wait(gate), say("s")), window=1000)
    session = await world.open(model)
    chat = await session.conversation("a")
    await chat.configure(**SMALL)
    await talk_of(chat, 4)
    first = await chat.submit(f"4 {WORDS * 3}")
    await compacting(world, model)
    idle = asyncio.ensure_future(session.wait_idle())
    steer = await chat.submit("steered", when_busy="steer")
    follow = await chat.submit("followed")
    note = await chat.write(NOTE, 1)
    await asyncio.sleep(0)
    assert (chat.busy, idle.done()) == (True, False)
    gate.set()
    assert [(await sent.wait()).text for sent in (first, steer, follow, note)] == ["ok", "ok", "ok", ""]
    assert [text[:5] for text in said(talked(model)[-1])][-3:] == ["4 wor", "steer", "follo"]
    await idle


@pytest.mark.invariant("HC-14")
@pytest.mark.parametrize("kind", ["manual", "threshold"])
async def test_a_compaction_that_the_process_died_in_changes_nothing_and_is_made_again(world: Any, kind: str):
    event = asyncio.Event()
    model = model_of(
        summary=lambda request: answer(say("s")) if event.is_set() else answer(say("half"), wait(event)), window=1000
    )
    session = await world.open(model)
    chat = await session.conversation("a")
    await chat.configure(**SMALL)
    await talk_of(chat, 4)
    before = await entries(chat)
    sent = await chat.submit(f"4 {WORDS * 3}") if kind == "threshold" else None
    task = None if sent else await chat.compact()
    await compacting(world, model)
    event.set()
    session = await world.restart()
    chat = await session.conversation("a")
    assert (await entries(chat))[: len(before)] == before
    assert (await (await chat.submit("what is 2+2")).wait()).text == "ok"
    await chat.wait_idle()
    if task is not None:
        assert isinstance(await session.wait_task(task), Completed)
    assert (await kinds(chat)).count("compaction") == 1
    assert (await chat.usage())["models"][MODEL]["requests"] == (7 if task else 8)


async def test_a_fork_from_before_and_after_a_summary_sees_what_its_point_saw(world: Any):
    model = model_of()
    session = await world.open(model)
    chat = await session.conversation("a")
    settled = await talk_of(chat, 3)
    await session.wait_task(await chat.compact())
    summary = (await entries(chat))[-1]
    early, late = await chat.fork(settled[-1].answer.id), await chat.fork(summary.id)
    await (await early.submit("early")).wait()
    assert [text[:5] for text in said(talked(model)[-1])] == ["0 wor", "1 wor", "2 wor", "early"]
    await (await late.submit("late")).wait()
    assert [text[:5] for text in said(talked(model)[-1])] == ["[What", "2 wor", "late"]
    assert isinstance(await session.wait_task(await late.compact()), Completed)
    assert (await kinds(chat)).count("compaction") == 1


async def test_a_retry_of_a_run_is_not_taken_for_another_compaction_after_a_crash(world: Any):
    """What a run knows of its compactions is in its checkpoints."""
    model = model_of(overflowing(1700))
    session = await world.open(model)
    chat = await session.conversation("a")
    await talk_of(chat, 3)
    sent = await chat.submit(f"3 {WORDS * 9}")
    await compacting(world, model)
    session = await world.restart()
    assert (await session.submission(sent.id).wait()).reason == "overflow"
    assert len(asked(model)) <= 2
