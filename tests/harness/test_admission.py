"""What is admitted, once, and found again (H1 to H3, H44, I30, I31)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import ConversationBusy, InboxFull, InvalidValue, NotFound, RequestConflict, UsageError
from perdure.harness.harness import Settings
from perdure.messages import Text, UserMessage
from perdure.records import ROOT, Placed
from perdure.session.transaction import EntryKind, entry_kind
from perdure.testing.scripted import ScriptedModel, hang, say

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")


@pytest.mark.invariant("HA-1")
async def test_an_input_to_an_idle_conversation_is_entry_placed_submission_task_and_live_run_in_one_commit(world: Any):
    session = await world.open(hang())
    chat = await session.conversation("a")
    changes: list[Any] = []
    session.observe(changes.append)

    sent = await chat.submit("hello")

    first = changes[-1] if len(changes) == 1 else changes[0]
    assert [entry.kind for entry in first.entries] == ["perdure.user"]
    assert isinstance(first.submissions[sent.id].state, Placed)
    assert [task.kind for task in first.tasks.values()] == ["perdure.generation"]
    assert [change.record.kind for change in first.documents] == ["perdure.live", "perdure.front"]


async def test_a_submission_is_found_by_its_id_after_a_restart(world: Any):
    session = await world.open(say("hi"))
    sent = await (await session.conversation("a")).submit("hello")
    done = await sent.wait()

    session = await world.restart()

    again = session.submission(sent.id)
    assert await again.status() == "done"
    assert (await again.wait()).text == done.text == "hi"


async def test_an_unknown_submission_is_not_found(world: Any):
    session = await world.open()
    with pytest.raises(NotFound):
        await session.submission(12345).status()
    with pytest.raises(NotFound):
        await session.submission(12345).wait()


@pytest.mark.invariant("HA-2")
async def test_one_request_id_is_one_submission_however_often_it_is_sent_at_once(world: Any):
    session = await world.open(say("hi"))
    chat = await session.conversation("a")

    sent = await asyncio.gather(*(chat.submit("pay", request_id="order-1") for _ in range(5)))

    assert len({one.id for one in sent}) == 1
    await sent[0].wait()
    assert world.strict[-1].inner.asked == 1
    assert (await chat.submit("pay", request_id="order-1")).id == sent[0].id  # also when it is settled


async def test_a_request_id_is_the_same_submission_after_a_restart(world: Any):
    session = await world.open(hang())
    sent = await (await session.conversation("a")).submit("pay", request_id="order-1")

    session = await world.restart()

    again = await (await session.conversation("a")).submit("pay", request_id="order-1")
    assert again.id == sent.id


@pytest.mark.parametrize("settled", [False, True])
async def test_a_request_id_with_another_body_is_a_conflict_and_writes_nothing(world: Any, settled: bool):
    session = await world.open(say("hi") if settled else hang())
    chat = await session.conversation("a")
    sent = await chat.submit("pay 5", request_id="order-1")
    if settled:
        await sent.wait()
    before = [entry async for entry in chat.history()]

    with pytest.raises(RequestConflict, match=rf"submission {sent.id}"):
        await chat.submit("pay 6", request_id="order-1")
    with pytest.raises(RequestConflict):
        await chat.write(NOTE, "pay 5", request_id="order-1")

    assert [entry async for entry in chat.history()] == before
    assert chat.inbox() == []


async def test_a_request_id_means_something_else_in_another_conversation(world: Any):
    session = await world.open(say("hi"))
    one = await (await session.conversation("a")).submit("pay 5", request_id="order-1")
    other = await (await session.conversation("b")).submit("pay 6", request_id="order-1")
    assert one.id != other.id


async def test_a_queued_request_is_found_by_its_id_too(world: Any):
    session = await world.open(hang())
    chat = await session.conversation("a")
    await chat.submit("first")
    queued = await chat.submit("second", request_id="two")
    assert (await chat.submit("second", request_id="two")).id == queued.id
    assert len(chat.inbox()) == 1


@pytest.mark.parametrize("request_id", ["", 7, "x" * 1001])
async def test_a_request_id_is_a_text_of_some_length(world: Any, request_id: Any):
    chat = await (await world.open(say("hi"))).conversation("a")
    with pytest.raises(UsageError, match="request id"):
        await chat.submit("hello", request_id=request_id)


async def test_a_request_id_with_broken_characters_is_as_good_as_any(world: Any):
    chat = await (await world.open(say("hi"))).conversation("a")
    sent = await chat.submit("hello", request_id="a\ud800\0")
    assert (await chat.submit("hello", request_id="a\ud800\0")).id == sent.id


@pytest.mark.parametrize("content", [None, 7, ["hello"], {"parts": []}])
async def test_an_input_is_a_text_or_a_message(world: Any, content: Any):
    chat = await (await world.open(say("hi"))).conversation("a")
    with pytest.raises(UsageError):
        await chat.submit(content)
    assert [entry async for entry in chat.history()] == []


async def test_a_message_with_parts_that_are_none_is_refused(world: Any):
    chat = await (await world.open(say("hi"))).conversation("a")
    broken: Any = UserMessage(parts=(Text(text=7),))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        await chat.submit(broken)


async def test_broken_characters_in_an_input_are_cleaned(world: Any):
    chat = await (await world.open(say("hi"))).conversation("a")
    await (await chat.submit("a\0b\ud800c")).wait()
    (entry, *_) = [entry async for entry in chat.history()][::-1]
    assert entry.messages[0].parts[0].text == "a\u2400b\ufffdc"


async def test_reject_writes_nothing_while_a_run_is_live(world: Any):
    chat = await (await world.open(hang())).conversation("a")
    await chat.submit("first")
    with pytest.raises(ConversationBusy):
        await chat.submit("second", when_busy="reject")
    assert chat.inbox() == []
    assert len([entry async for entry in chat.history()]) == 1


async def test_reject_is_an_ordinary_submission_while_idle(world: Any):
    chat = await (await world.open(say("hi"))).conversation("a")
    assert (await (await chat.submit("first", when_busy="reject")).wait()).text == "hi"


async def test_an_unknown_busy_mode_is_named(world: Any):
    chat = await (await world.open(say("hi"))).conversation("a")
    with pytest.raises(UsageError, match="whenever"):
        await chat.submit("first", when_busy="whenever")


async def test_a_full_inbox_says_so_and_keeps_what_it_has(world: Any):
    chat = await (await world.open(hang(), settings=Settings(max_queued=2))).conversation("a")
    await chat.submit("live")
    kept = [await chat.submit(text) for text in ("one", "two")]
    with pytest.raises(InboxFull):
        await chat.submit("three")
    with pytest.raises(InboxFull):
        await chat.write(NOTE, 3)
    assert [item.id for item in chat.inbox()] == [item.id for item in kept]


async def test_accepted_means_stored_a_crash_at_once_loses_nothing(world: Any):
    session = await world.open(hang())
    chat = await session.conversation("a")
    accepted = [await chat.submit(text) for text in ("one", "two", "three")]

    session = await world.restart(model=say_model("fine"))

    settled = [await session.submission(one.id).wait() for one in accepted]
    assert [one.text for one in settled] == ["fine"] * 3


async def test_a_reserved_kind_cannot_be_written(world: Any):
    chat = await (await world.open(say("hi"))).conversation("a")
    with pytest.raises(UsageError, match=r"perdure\.assistant"):
        await chat.write(EntryKind("perdure.assistant"), {})


async def test_the_root_conversation_has_id_1_and_is_found_again(world: Any):
    session = await world.open(say("hi"))
    await (await (await session.root()).submit("hello")).wait()
    session = await world.restart()
    root = await session.root()
    assert root.id == ROOT
    assert len([entry async for entry in root.history()]) == 2


async def test_a_caller_that_gives_up_takes_nothing_back(world: Any):
    """K6, K33: once admitted, cancelling the caller undoes nothing; cancelling a wait cancels no work."""
    chat = await (await world.open(say("hi"))).conversation("a")
    sent = await chat.submit("hello")
    waiting = asyncio.ensure_future(sent.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await sent.wait()).text == "hi"


def say_model(text: str) -> Any:
    return ScriptedModel(say(text))
