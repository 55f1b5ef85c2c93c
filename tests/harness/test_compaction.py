"""Compaction (H26 to H28, H35, I44 to I46): what is summarised, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.harness.summarised import (
    MODEL,
    SMALL,
    WORDS,
    asked,
    calling,
    compacting,
    entries,
    gate_tool,
    hooked,
    kinds,
    model_of,
    said,
    talk_of,
    talked,
)

from perdure.errors import UsageError
from perdure.harness.hooks import Refuse, Summary
from perdure.harness.submissions import NotAnswered
from perdure.messages import text_of, user
from perdure.model import Request, Usage
from perdure.records import Aborted, Completed, Failed
from perdure.session.transaction import entry_kind
from perdure.testing.scripted import Answer, answer, by_prompt, call, fail, say, wait

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")


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
