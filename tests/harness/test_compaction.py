"""Compaction (H26 to H28, H33 to H35, I43 to I46): what is summarised, when, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import UsageError
from perdure.harness.hooks import Refuse, Summary
from perdure.harness.registry import Extension, Registry, Tool, tool
from perdure.harness.submissions import NotAnswered
from perdure.messages import UserMessage, text_of, user
from perdure.model import Request, Usage
from perdure.records import Aborted, Completed, Entry, Failed
from perdure.session.transaction import entry_kind
from perdure.testing.scripted import Answer, ScriptedModel, answer, by_prompt, call, fail, say, wait

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")
#: About 100 tokens.
WORDS = "word " * 80
MODEL = "scripted"


def is_compaction(request: Request) -> bool:
    return request.options.get("purpose") == "compaction"


def model_of(talk: Any = None, summary: Any = None, *, window: int | None = None) -> ScriptedModel:
    """Writes summaries when it is asked for them, else talks."""
    talk = say("ok") if talk is None else talk
    summary = say("THE SUMMARY") if summary is None else summary

    def script(request: Request) -> Any:
        return summary if is_compaction(request) else talk

    return ScriptedModel(script, context_window=window)


def asked(model: ScriptedModel) -> list[Request]:
    return [request for request in model.requests if is_compaction(request)]


def talked(model: ScriptedModel) -> list[Request]:
    return [request for request in model.requests if not is_compaction(request)]


def said(request: Request) -> list[str]:
    """What the users of a request said, in short."""
    return [text_of(message)[:40].strip() for message in request.messages if isinstance(message, UserMessage)]


async def entries(chat: Any) -> list[Entry]:
    return [entry async for entry in chat.history()][::-1]


async def kinds(chat: Any) -> list[str]:
    return [entry.kind.removeprefix("perdure.") for entry in await entries(chat)]


async def talk_of(chat: Any, count: int) -> list[Any]:
    """So many inputs and answers."""
    return [await (await chat.submit(f"{number} {WORDS}")).wait() for number in range(count)]


def gate_tool(gate: asyncio.Event, text: str = "worked") -> Tool:
    @tool
    async def work() -> str:
        """Wait for the test."""
        await gate.wait()
        return text

    return work


def hooked(*hooks: Any) -> Registry:
    return Registry([Extension(name="test", before_compact=hooks)])


async def calling(world: Any) -> None:
    await world.until(lambda: any(task.kind == "perdure.tool" for task in world.session.inspect().tasks))


async def compacting(world: Any, model: ScriptedModel) -> None:
    await world.until(lambda: asked(model))


#: A small window: requests wait from 600 tokens on, and 100 of the newest are kept.
SMALL = {"compaction_reserve": 400, "compaction_keep_recent": 100, "compaction_background": 0}


# -- asked for --------------------------------------------------------------------------------------


@pytest.mark.invariant("HC-10")
async def test_a_summary_stands_for_what_came_before_the_first_kept_entry_and_nothing_is_removed(world: Any):
    model = model_of()
    session = await world.open(model)
    chat = await session.conversation("a")
    before = [await talk_of(chat, 3), await entries(chat)][1]
    outcome = await session.wait_task(await chat.compact())
    assert isinstance(outcome, Completed)
    assert await session.submission(outcome.result["submission"]).status() == "done"
    summary = (await entries(chat))[-1]
    assert (await entries(chat))[:-1] == before
    assert (summary.kind, summary.head) == ("perdure.compaction", before[-2].id)
    await (await chat.submit("next")).wait()
    assert text_of(talked(model)[-1].messages[0]).endswith("THE SUMMARY")
    assert [text[:5] for text in said(talked(model)[-1])] == ["[What", "2 wor", "next"]


async def test_the_summariser_is_shown_what_is_older_and_the_instructions(world: Any):
    model = model_of()
    session = await world.open(model)
    chat = await session.conversation("a")
    await talk_of(chat, 3)
    await session.wait_task(await chat.compact("keep the test names"))
    [request] = asked(model)
    text = text_of(request.messages[-1])
    assert [word in text for word in ("0 word", "1 word", "[The assistant]", "keep the test names")] == [True] * 4
    assert "You keep the notes" in request.system
    assert request.tools == ()


async def test_the_earlier_summary_is_folded_into_the_new_one(world: Any):
    model = model_of()
    session = await world.open(model)
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    await session.wait_task(await chat.compact())
    await talk_of(chat, 2)
    await session.wait_task(await chat.compact())
    text = text_of(asked(model)[1].messages[-1])
    assert "<notes>\nTHE SUMMARY\n</notes>" in text
    assert text.count("THE SUMMARY") == 1
    await (await chat.submit("next")).wait()
    assert [text[:5] for text in said(talked(model)[-1])] == ["[What", "1 wor", "next"]


async def test_a_conversation_with_nothing_older_is_not_summarised_and_says_so(world: Any):
    model = model_of()
    session = await world.open(model)
    chat = await session.conversation("a")
    outcome = await session.wait_task(await chat.compact())
    assert outcome == Completed(result={"submission": None, "why": "there is nothing older to summarise"})
    assert (asked(model), await entries(chat)) == ([], [])


async def test_instructions_are_a_text(world: Any):
    chat = await (await world.open(model_of())).conversation("a")
    with pytest.raises(UsageError, match="a text, not int"):
        await chat.compact(7)


@pytest.mark.invariant("HC-11")
async def test_a_compaction_is_idle_waits_business_and_leaves_the_conversation_free(world: Any):
    gate = asyncio.Event()
    model = model_of(summary=answer(wait(gate), say("s")))
    session = await world.open(model)
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    task = await chat.compact()
    await compacting(world, model)
    idle = asyncio.ensure_future(chat.wait_idle())
    answered = await (await chat.submit("meanwhile", when_busy="reject")).wait()
    assert (answered.text, chat.busy, idle.done()) == ("ok", False, False)
    gate.set()
    await idle
    assert isinstance(await session.wait_task(task), Completed)
    await (await chat.submit("next")).wait()
    assert [text[:5] for text in said(talked(model)[-1])] == ["[What", "1 wor", "meanw", "next"]


@pytest.mark.invariant("HC-12")
async def test_a_summary_that_is_finished_during_a_run_is_placed_at_the_next_boundary(world: Any):
    gate = asyncio.Event()
    model = model_of(by_prompt({"go": [call("work"), say("done")], "word": say("ok")}))
    session = await world.open(model, gate_tool(gate))
    chat = await session.conversation("a")
    await talk_of(chat, 3)
    sent = await chat.submit("go")
    await calling(world)
    outcome = await session.wait_task(await chat.compact())
    assert [item.type for item in chat.inbox()] == ["summary"]
    gate.set()
    assert (await sent.wait()).text == "done"
    assert (await kinds(chat))[-5:] == ["user", "assistant", "tool_result", "compaction", "assistant"]
    assert await session.submission(outcome.result["submission"]).status() == "done"
    assert [text[:5] for text in said(talked(model)[-1])] == ["[What", "go"]


async def test_a_round_that_still_runs_is_kept_whole(world: Any):
    gate = asyncio.Event()
    model = model_of(by_prompt({"go": [call("work"), say("done")], "word": say("ok")}))
    session = await world.open(model, gate_tool(gate))
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    sent = await chat.submit("go")
    await calling(world)
    await session.wait_task(await chat.compact())
    gate.set()
    await sent.wait()
    assert [type(message).__name__ for message in talked(model)[-1].messages][-2:] == [
        "AssistantMessage",
        "ToolMessage",
    ]


@pytest.mark.invariant("HC-13")
async def test_of_several_summaries_the_furthest_cut_wins_and_the_others_are_stale(world: Any):
    gates = {"first": asyncio.Event(), "second": asyncio.Event()}

    def summary(request: Request) -> Any:
        key = "second" if "second" in text_of(request.messages[-1])[-60:] else "first"
        return answer(wait(gates[key]), say(f"by the {key}"))

    model = model_of(summary=summary)
    session = await world.open(model)
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    first = await chat.compact("first")
    await world.until(lambda: len(asked(model)) == 1)
    await talk_of(chat, 2)
    second = await chat.compact("second")
    gates["second"].set()
    later = await session.wait_task(second)
    gates["first"].set()
    earlier = await session.wait_task(first)
    stale = await session.submission(earlier.result["submission"]).wait()
    assert (type(stale), stale.reason) == (NotAnswered, "stale")
    assert await session.submission(later.result["submission"]).status() == "done"
    assert (await kinds(chat)).count("compaction") == 1


async def test_a_summary_of_what_a_reset_cut_off_is_stale(world: Any):
    gate = asyncio.Event()
    model = model_of(summary=answer(wait(gate), say("s")))
    session = await world.open(model)
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    task = await chat.compact()
    await compacting(world, model)
    await chat.reset("anew")
    gate.set()
    outcome = await session.wait_task(task)
    assert await session.submission(outcome.result["submission"]).status() == "unanswered(stale)"


# -- stopped, refused, failing ----------------------------------------------------------------------


@pytest.mark.invariant("HC-14")
@pytest.mark.parametrize("how", ["conversation", "task"])
async def test_an_abort_stops_a_compaction_and_changes_nothing(world: Any, how: str):
    model = model_of(summary=answer(say("half"), wait(asyncio.Event())))
    session = await world.open(model)
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    before = await entries(chat)
    task = await chat.compact()
    await compacting(world, model)
    await (chat.abort() if how == "conversation" else session.abort_task(task))
    assert isinstance(await session.wait_task(task), Aborted)
    assert await entries(chat) == before
    assert (await (await chat.submit("next")).wait()).text == "ok"
    assert len(said(talked(model)[-1])) == 3
    used = (await chat.usage())["models"][MODEL]
    assert (used["requests"], used["unknown"] >= 1) == (4, True)


async def test_an_abort_of_a_run_ends_the_compaction_that_it_waits_for(world: Any):
    model = model_of(summary=answer(wait(asyncio.Event())), window=1000)
    chat = await (await world.open(model)).conversation("a")
    await chat.configure(**SMALL)
    await talk_of(chat, 4)
    sent = await chat.submit(f"4 {WORDS * 3}")
    await compacting(world, model)
    await chat.abort()
    assert (await sent.wait()).reason == "aborted"
    assert world.session.inspect().tasks == []
    assert "compaction" not in await kinds(chat)


@pytest.mark.invariant("HC-15")
async def test_a_hook_refuses_a_compaction_or_supplies_the_summary(world: Any):
    seen: list[Any] = []

    def hook(todo: Any) -> Any:
        seen.append(todo)
        return Refuse("not now") if todo.instructions == "no" else Summary("by hand")

    model = model_of()
    session = await world.open(model, registry=hooked(hook))
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    assert (await session.wait_task(await chat.compact("no"))).result == {"submission": None, "why": "not now"}
    await session.wait_task(await chat.compact())
    await (await chat.submit("next")).wait()
    assert text_of(talked(model)[-1].messages[0]).endswith("by hand")
    assert asked(model) == []
    assert (seen[0].reason, len(seen[0].messages), seen[0].conversation) == ("manual", 3, chat.id)


async def test_a_hook_that_fails_is_reported_and_decides_nothing(world: Any):
    heard: list[Any] = []

    def hook(todo: Any) -> Any:
        raise ValueError("oops")

    model = model_of()
    session = await world.open(model, registry=hooked(hook))
    session.telemetry.attach("test", ["perdure.hook.failed"], lambda *event: heard.append(event))
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    await session.wait_task(await chat.compact())
    assert ("compaction" in await kinds(chat), len(heard)) == (True, 1)


@pytest.mark.invariant("HC-16")
async def test_a_failing_summary_is_tried_again_visibly_and_each_attempt_counts(world: Any):
    used = Usage(input=7, output=3)
    attempts = {1: fail("retryable"), 2: answer(say("s"), usage=used)}
    model = model_of(summary=lambda request: attempts[request.options["attempt"]])
    session = await world.open(model)
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    task = await chat.compact()

    async def waits() -> bool:
        found = (await chat.compactions()).get(task)
        return found is not None and found["retry"] is not None

    await world.until(waits)
    shown = (await chat.compactions())[task]
    assert (shown["reason"], shown["attempt"], shown["retry"]["kind"]) == ("manual", 2, "retryable")
    assert isinstance(await world.running(session.wait_task(task)), Completed)
    total = (await chat.usage())["models"][MODEL]
    assert (total["requests"], total["unknown"], total["input"], total["output"]) == (4, 3, 7, 3)


@pytest.mark.parametrize("bad", [fail("auth"), say(" "), Answer((say("No."),), "refusal")])
async def test_a_summary_that_cannot_be_had_fails_after_few_attempts_and_changes_nothing(world: Any, bad: Any):
    model = model_of(summary=bad)
    session = await world.open(model)
    chat = await session.conversation("a")
    await talk_of(chat, 2)
    before = await entries(chat)
    outcome = await world.running(session.wait_task(await chat.compact()))
    assert isinstance(outcome, Failed)
    assert (len(asked(model)) <= 2, await entries(chat)) == (True, before)


async def test_a_record_that_is_too_long_for_the_summariser_is_shown_in_portions(world: Any):
    def summary(request: Request) -> Any:
        return fail("overflow") if len(text_of(request.messages[-1])) > 4000 else say(f"notes {len(asked(model))}")

    model = model_of(summary=summary)
    session = await world.open(model)
    chat = await session.conversation("a")
    await chat.configure(compaction_keep_recent=0)
    for number in range(60):
        await chat.write(NOTE, number)
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, messages=(user(f"{number} {WORDS * 10}"),))
    outcome = await session.wait_task(await chat.compact())
    assert isinstance(outcome, Failed)
    assert len(asked(model)) == 5


async def test_notes_are_carried_from_portion_to_portion(world: Any):
    model = model_of(summary=lambda request: say(f"notes {len(asked(model))}"), window=2000)
    session = await world.open(model)
    chat = await session.conversation("a")
    for number in range(40):
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, messages=(user(f"{number} {WORDS}"),))
    await session.wait_task(await chat.compact())
    texts = [text_of(request.messages[-1]) for request in asked(model)]
    assert len(texts) > 2
    assert ["<notes>" in text for text in texts] == [False] + [True] * (len(texts) - 1)
    assert f"notes {len(texts)}" in text_of((await entries(chat))[-1].messages[0])


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
