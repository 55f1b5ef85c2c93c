"""Agent events: what happens in a conversation, as its commits say (H30, H39)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.harness.registry import tool
from perdure.surface import events as told
from perdure.testing.clock import settle
from perdure.testing.scripted import answer, call, fail, say, think, wait
from perdure.views.watch import MOST_PENDING

pytestmark = pytest.mark.anyio
NOTE = perdure.entry_kind("test.note")
NOISE = ("UsageChanged", "QueueChanged", "SubmissionSettled")


async def heard(events: Any) -> list[Any]:
    """Every event that is told by now."""
    found: list[Any] = []
    while True:
        reading = asyncio.ensure_future(anext(events))
        await settle()
        if not reading.done():
            reading.cancel()
            await asyncio.wait([reading])
            return found
        batch = reading.result()
        assert told.decode_events(batch.encoded) == batch
        found += batch.events


def names(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events if type(event).__name__ not in NOISE]


def of(events: list[Any], kind: Any) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def gated(gate: asyncio.Event) -> Any:
    @tool
    async def work(call: perdure.ToolCall, n: int) -> str:
        """Work."""
        call.output("half\n")
        call.details({"n": n})
        await gate.wait()
        return "done"

    return work


@pytest.mark.invariant("V-9")
async def test_a_run_is_told_from_its_start_to_its_end(memory_world: Any):
    script = [answer(say("I work"), call("work", {"n": 1})), answer(think("hm"), say("ok"))]
    gate = asyncio.Event()
    chat = await (await memory_world.open(script, gated(gate))).conversation("a")
    async with chat.events() as events:
        sent = await chat.submit("go")
        await settle()
        await memory_world.clock.advance(0.2)
        gate.set()
        done = await memory_world.running(sent.wait())
        found = await heard(events)
    assert names(found) == [
        "Snapshot",
        "EntryAdded",
        "RunStarted",
        "MessageStarted",
        "MessageEnded",
        "ToolStarted",
        "ToolOutput",
        "ToolDetails",
        "ToolEnded",
        "MessageStarted",
        "MessageEnded",
        "RunEnded",
    ]
    (started,) = of(found, told.ToolStarted)
    (output,) = of(found, told.ToolOutput)
    (ended,) = of(found, told.ToolEnded)
    assert (started.name, started.arguments) == ("work", {"n": 1})
    assert (output.text, output.call) == ("half\n", started.call)
    assert (ended.call, ended.error) == (started.call, None)
    (run,) = of(found, told.RunEnded)
    assert run.outcome is not None
    assert run.outcome.result == {"answer": done.answer.id}
    assert of(found, told.MessageEnded)[-1].entry == done.answer


async def test_an_answer_that_streams_is_told_in_pieces_that_make_its_text(memory_world: Any):
    gates = [asyncio.Event() for _ in range(3)]
    parts = [part for n, gate in enumerate(gates) for part in (say(f"piece {n} "), wait(gate))]
    chat = await (await memory_world.open([answer(think("hm"), *parts)])).conversation("a")
    async with chat.events() as events:
        sent = await chat.submit("go")
        for gate in gates:
            await settle()
            await memory_world.clock.advance(0.2)
            gate.set()
        await memory_world.running(sent.wait())
        found = await heard(events)
    assert len(of(found, told.MessageStarted)) == len(of(found, told.MessageEnded)) == 1
    deltas = of(found, told.MessageDelta)
    assert "".join(delta.text for delta in deltas if delta.part == "thinking") == "hm"
    assert "".join(delta.text for delta in deltas if delta.part == "text") == "piece 0 piece 1 piece 2 "
    kinds = [event for event in names(found) if event.startswith("Message")]
    assert kinds == ["MessageStarted", *["MessageDelta"] * len(deltas), "MessageEnded"]


async def test_a_failed_attempt_ends_its_message_says_when_it_is_repeated_and_the_next_begins_anew(memory_world: Any):
    gate = asyncio.Event()
    script = [answer(say("half"), wait(gate), fail()), answer(say("whole"))]
    chat = await (await memory_world.open(script)).conversation("a")
    async with chat.events() as events:
        sent = await chat.submit("go")
        await settle()
        await memory_world.clock.advance(0.2)
        gate.set()
        await memory_world.running(sent.wait())
        found = await heard(events)
    shown = [name for name in names(found) if name.startswith(("Message", "Retry"))]
    assert shown == [
        "MessageStarted",
        "MessageDelta",
        "MessageEnded",
        "RetryScheduled",
        "MessageStarted",
        "MessageEnded",
    ]
    assert [event.attempt for event in of(found, told.MessageStarted)] == [1, 2]
    assert of(found, told.RetryScheduled)[0].kind == "retryable"


async def test_thinking_of_which_nothing_was_kept_ends_without_an_entry(memory_world: Any):
    gate = asyncio.Event()
    script = [answer(think("hm"), wait(gate), fail()), answer(say("whole"))]
    chat = await (await memory_world.open(script)).conversation("a")
    async with chat.events() as events:
        sent = await chat.submit("go")
        await settle()
        await memory_world.clock.advance(0.2)
        gate.set()
        await memory_world.running(sent.wait())
        ends = of(await heard(events), told.MessageEnded)
    assert [end.entry is None for end in ends] == [True, False]


async def test_whatever_was_started_is_ended_once_when_the_run_is_aborted(memory_world: Any):
    gate = asyncio.Event()
    script = [answer(call("work", {"n": 1}), call("work", {"n": 2}), call("nothing"))]
    chat = await (await memory_world.open(script, gated(gate))).conversation("a")
    async with chat.events() as events:
        await chat.submit("go")
        await chat.submit("later")
        await settle()
        await memory_world.running(chat.abort())
        found = await heard(events)
    calls = sorted(event.call for event in of(found, told.ToolStarted))
    ends = {event.call: event.error for event in of(found, told.ToolEnded)}
    assert len(calls) == 2
    assert [ends[key] for key in calls] == ["aborted", "aborted"]
    assert sorted(ends.values()) == ["aborted", "aborted", "tool_unavailable"]
    (end,) = of(found, told.RunEnded)
    assert type(end.outcome).__name__ == "Aborted"
    settled = [event.submission.state for event in of(found, told.SubmissionSettled)]
    assert sorted(state.detail for state in settled) == ["aborted by the user", "aborted by the user"]


async def test_the_queue_is_told_as_it_changes_and_the_next_run_starts_with_the_end_of_the_one_before(
    memory_world: Any,
):
    gate = asyncio.Event()
    chat = await (await memory_world.open([answer(wait(gate), say("1")), say("2")])).conversation("a")
    async with chat.events() as events:
        first = await chat.submit("one")
        second = await chat.submit("two")
        gate.set()
        await memory_world.running(second.wait())
        found = await heard(events)
    assert [event.queued for event in of(found, told.QueueChanged)] == [(second.id,), ()]
    runs = [name for name in names(found) if name.startswith("Run")]
    assert runs == ["RunStarted", "RunEnded", "RunStarted", "RunEnded"]
    assert [event.submission.id for event in of(found, told.SubmissionSettled)] == [first.id, second.id]


async def test_a_question_is_told_when_it_opens_and_with_its_answer_when_it_closes(memory_world: Any):
    session = await memory_world.open()
    chat = await session.conversation("a")
    async with chat.events() as events:
        async with chat.commit() as tx:
            question = tx.ask({"allow": "rm"})
        await session.answer(question.id, True, by="ann")
        found = await heard(events)
    (opened,) = of(found, told.QuestionOpened)
    (closed,) = of(found, told.QuestionClosed)
    assert (opened.question.id, opened.question.payload) == (question.id, {"allow": "rm"})
    assert closed.question == question.id
    assert closed.outcome is not None
    assert closed.outcome.result == {"answer": True, "by": "ann"}


async def test_settings_and_entries_of_ones_own_are_told(memory_world: Any):
    chat = await (await memory_world.open()).conversation("a")
    async with chat.events() as events:
        await chat.configure(max_rounds=3)
        await chat.write(NOTE, {"n": 1})
        found = await heard(events)
    assert of(found, told.SettingsChanged)[0].settings == {"max_rounds": 3}
    assert of(found, told.EntryAdded)[0].entry.data == {"n": 1}


async def test_a_reader_who_falls_behind_is_given_a_new_snapshot_instead(memory_world: Any):
    chat = await (await memory_world.open()).conversation("a")
    async with chat.events() as events:
        await heard(events)
        for number in range(MOST_PENDING + 5):
            await chat.write(NOTE, number)
        (snapshot,) = await heard(events)
        assert isinstance(snapshot, told.Snapshot)
        assert snapshot.view["entries"][-1]["data"] == MOST_PENDING + 4
        await chat.write(NOTE, "next")
        assert names(await heard(events)) == ["EntryAdded"]


async def test_after_a_restart_in_the_middle_of_an_answer_the_snapshot_has_the_part_and_the_next_attempt_is_told(
    world: Any,
):
    script = [answer(say("half"), wait(asyncio.Event())), answer(say("whole"))]
    session = await world.open(script)
    chat = await session.conversation("a")
    async with chat.events() as events:
        await chat.submit("go")

        async def half() -> None:
            async for batch in events:
                if of(list(batch.events), told.MessageDelta):
                    return

        await world.running(half())
    session = await world.restart()
    chat = await session.conversation("a")
    async with chat.events() as events:
        await session.resume()

        async def ended() -> list[Any]:
            found: list[Any] = []
            async for batch in events:
                found += batch.events
                if of(found, told.RunEnded):
                    break
            return found

        found = await world.running(ended())
    snapshot = found[0]
    assert snapshot.view["entries"][-1]["messages"][0]["stop"] == "interrupted"
    assert [end.entry.messages[0].stop for end in of(found, told.MessageEnded)] == ["stop"]
    assert len(of(found, told.MessageStarted)) == 1
