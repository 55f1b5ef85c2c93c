"""Handing in to a session that another process owns (K1a): durable at once, judged by the owner, found by its item."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.app import HandInSession
from perdure.backends.memory import MemoryStorage
from perdure.errors import NotTaken, OwnerGone
from perdure.testing.clock import ManualClock, settle

pytestmark = pytest.mark.anyio

REMARK = perdure.entry_kind("app.remark")


@pytest.fixture
async def guest(owner: perdure.Session, beside: MemoryStorage, clock: ManualClock) -> HandInSession:
    async with perdure.open(beside, mode="hand-in", clock=clock) as session:
        return session


async def test_an_input_is_taken_by_the_owner_and_answered(
    owner: perdure.Session, guest: HandInSession, clock: ManualClock
) -> None:
    handed = await (await guest.conversation("new")).submit("Hello")
    waiting = asyncio.ensure_future(handed.wait())
    await clock.advance(3)

    settled = await waiting

    assert isinstance(settled, perdure.Answered)
    assert "Hello" in settled.text
    assert len(await (await owner.conversation("new")).entries()) == 2


async def test_a_write_is_taken_without_asking_the_model(guest: HandInSession, clock: ManualClock) -> None:
    chat = await guest.conversation("till")
    handed = await chat.write(REMARK, {"by": "guest"})
    await clock.advance(1)
    assert isinstance(await handed.wait(), perdure.Answered)
    assert [entry.data for entry in await chat.entries()] == [{"by": "guest"}]


async def test_a_reset_is_taken_and_placed_by_the_owner(guest: HandInSession, clock: ManualClock) -> None:
    chat = await guest.conversation("till")
    handed = await chat.reset("Only the till matters.")
    await clock.advance(1)
    assert isinstance(await handed.wait(), perdure.Answered)
    assert [entry.kind for entry in await chat.entries()] == ["perdure.reset"]


async def test_a_compaction_is_started_by_the_owner(
    owner: perdure.Session, guest: HandInSession, clock: ManualClock
) -> None:
    chat = await guest.conversation("till")
    handed = await chat.compact("keep the numbers")
    await clock.advance(1)
    outcome = await owner.wait_task((await handed.taken())["task"])
    assert outcome.result == {"submission": None, "why": "there is nothing older to summarise"}  # type: ignore[union-attr]


async def test_an_item_is_found_by_its_id_before_and_after_it_is_taken(
    guest: HandInSession, clock: ManualClock
) -> None:
    handed = await (await guest.root()).submit("Hello")
    assert (await guest.inbound(handed.id)).taken is None
    await clock.advance(1)
    item = await guest.inbound(handed.id)
    assert item.taken is not None
    assert item.answer == {"submission": 2, "conversation": 1}


async def test_one_request_id_is_one_submission_however_often_it_is_handed_in(
    guest: HandInSession, clock: ManualClock
) -> None:
    chat = await guest.root()
    handed = [await chat.submit("Hello", request_id="order-17") for _ in range(5)]
    await clock.advance(1)
    assert len({(await each.taken())["submission"] for each in handed}) == 1


async def test_what_was_handed_in_is_found_by_its_request_id_before_and_after_it_is_taken(
    guest: HandInSession, clock: ManualClock
) -> None:
    chat = await guest.conversation("till")
    await (await guest.root()).submit("Hello", request_id="order-17")
    handed = await chat.submit("Hello", request_id="order-17")
    again = await chat.handed_in("order-17")
    assert again is not None
    assert again.id == handed.id
    await clock.advance(1)
    assert await chat.handed_in("order-17") is None
    assert (await chat.request("order-17")).id == (await handed.taken())["submission"]


async def test_the_owner_judges_conflicts_and_reject(
    owner: perdure.Session, guest: HandInSession, clock: ManualClock
) -> None:
    await (await owner.root()).submit("demo:hang", request_id="order-17")
    chat = await guest.root()
    other = await chat.submit("something else", request_id="order-17")
    late = await chat.submit("now or never", when_busy="reject")
    await clock.advance(1)
    with pytest.raises(perdure.RequestConflict, match="order-17"):
        await other.taken()
    with pytest.raises(perdure.ConversationBusy):
        await late.wait()


async def test_a_submission_is_withdrawn_from_outside(
    owner: perdure.Session, guest: HandInSession, clock: ManualClock
) -> None:
    chat = await owner.root()
    running, queued = await chat.submit("demo:hang"), await chat.submit("later")
    first, second = await guest.abort_submission(queued.id), await guest.abort_submission(running.id)
    await clock.advance(1)
    assert await first.taken() == {"withdrawn": "aborted"}
    assert await second.taken() == {"withdrawn": "already_placed"}
    assert await queued.status() == "unanswered(aborted)"


async def test_a_conversation_is_aborted_from_outside(
    owner: perdure.Session, guest: HandInSession, clock: ManualClock
) -> None:
    chat = await owner.conversation("till")
    running, queued = await chat.submit("demo:hang"), await chat.submit("later")
    await settle()
    handed = await (await guest.conversation("till")).abort(queue="keep", reason="closing time")
    await clock.advance(1)
    assert len((await handed.taken())["marked"]) == 1
    assert await running.wait() == perdure.NotAnswered(
        reason="aborted", detail="closing time", entry=(await chat.entries())[-1].id
    )
    assert await queued.status() == "queued"


async def test_a_question_is_answered_from_outside_and_only_once(
    owner: perdure.Session, guest: HandInSession, clock: ManualClock
) -> None:
    chat = await owner.root()
    async with chat.commit() as tx:
        question = tx.ask({"pay": 5})
    (open_question,) = await (await guest.root()).questions()
    first = await guest.answer(open_question.id, True, by="ann")
    second = await guest.answer(open_question.id, False, by="bob")
    await clock.advance(1)
    await first.taken()
    with pytest.raises(perdure.AlreadyAnswered, match="ann"):
        await second.taken()
    assert (await owner.wait_task(question.id)).result == {"answer": True, "by": "ann"}  # type: ignore[union-attr]


async def test_what_cannot_be_retried_is_refused_by_the_owner(guest: HandInSession, clock: ManualClock) -> None:
    handed = await guest.retry(77)
    await clock.advance(1)
    with pytest.raises(perdure.NotFound, match="77"):
        await handed.taken()


async def test_without_an_owner_a_waiter_is_told_and_the_item_stays(storage: MemoryStorage, clock: ManualClock) -> None:
    async with perdure.open(storage, clock=clock):
        pass
    async with perdure.open(storage.reopened(), mode="hand-in", clock=clock) as guest:
        handed = await (await guest.root()).submit("Hello")
        with pytest.raises(OwnerGone, match=handed.id):
            await handed.taken()
    async with perdure.open(storage, clock=clock) as session:
        answer = (await guest.inbound(handed.id)).answer
        assert isinstance(await session.submission(answer["submission"]).wait(), perdure.Answered)


async def test_an_owner_that_goes_before_it_answered_ends_the_wait(storage: MemoryStorage, clock: ManualClock) -> None:
    async with perdure.open(storage, clock=clock) as session:
        await session.resume()
        async with perdure.open(storage.reopened(), mode="hand-in", clock=clock) as guest:
            handed = await (await guest.root()).submit("demo:hang")
            waiting = asyncio.ensure_future(handed.wait())
            await clock.advance(1)
            assert not waiting.done()
        await session.close()
        await clock.advance(2)
        with pytest.raises(OwnerGone):
            await waiting


async def test_an_owner_that_takes_nothing_for_ten_seconds_is_reported_and_the_item_stays(clock: ManualClock) -> None:
    deaf = MemoryStorage(clock)  # its sessions do not look for items
    async with perdure.open(deaf, clock=clock), perdure.open(deaf.reopened(), mode="hand-in", clock=clock) as guest:
        handed = await (await guest.root()).submit("Hello")
        waiting = asyncio.ensure_future(handed.taken())
        await clock.advance(9.5)
        assert not waiting.done()
        await clock.advance(2)
        with pytest.raises(NotTaken, match=rf"worker {deaf.worker.id}.*take_over=True"):
            await waiting
        assert (await guest.inbound(handed.id)).taken is None


async def test_nothing_is_handed_in_to_a_session_that_nobody_opened(beside: MemoryStorage, owner: object) -> None:
    async with perdure.open(beside, mode="hand-in", session="elsewhere") as guest:
        with pytest.raises(perdure.NotFound, match="'elsewhere'"):
            await (await guest.root()).submit("Hello")
    assert [each.key for each in await beside.sessions()] == ["main"]


async def test_only_what_was_submitted_settles(guest: HandInSession, clock: ManualClock) -> None:
    handed = await guest.abort_task(1)
    await clock.advance(1)
    with pytest.raises(perdure.UsageError, match="nothing to settle"):
        await handed.wait()


@perdure.tool
async def pay(amount: int, to: str) -> str:
    """Pay an amount to someone."""
    return f"paid {amount} to {to}"


async def ask_first(call: perdure.CallToJudge) -> perdure.Ask:
    return perdure.Ask("really?")


async def paying(owner: perdure.Session, clock: ManualClock) -> perdure.Submission:
    await owner.install(perdure.Registry([perdure.Extension(name="shop", tools=[pay], before_tool=[ask_first])]))
    sent = await (await owner.conversation("till")).submit("Pay 5 to Ann")
    while not owner.inspect().questions:
        await clock.advance(0.1)
    return sent


async def test_a_call_is_decided_from_outside_by_what_fits_it_and_only_once(
    owner: perdure.Session, guest: HandInSession, clock: ManualClock
) -> None:
    sent = await paying(owner, clock)
    (question,) = await (await guest.conversation("till")).questions()
    assert question.call is not None
    assert (question.call.name, question.call.arguments) == ("pay", {"amount": 5, "to": "Ann"})
    values = (perdure.Edit({"amount": "much"}), perdure.Edit({"amount": 3, "to": "Ben"}), False)
    items: list[Any] = []
    for value in values:
        items.append(await question.answer(value, by="guest"))
        await clock.advance(1)
    refused, handed, late = items

    with pytest.raises(perdure.UsageError, match="do not fit pay"):
        await refused.taken()
    assert await handed.taken() == {"answered": question.id}
    with pytest.raises(perdure.AlreadyAnswered, match="guest"):
        await late.taken()
    settled = await sent.wait()
    assert isinstance(settled, perdure.Answered)
    assert "paid 3 to Ben" in settled.text


async def test_a_steer_from_outside_denies_what_is_asked(
    owner: perdure.Session, guest: HandInSession, clock: ManualClock
) -> None:
    await paying(owner, clock)
    chat = await guest.conversation("till")
    (question,) = await chat.questions()
    await chat.submit("forget it", when_busy="steer")
    await clock.advance(3)
    with pytest.raises(perdure.AlreadyAnswered, match="steer"):
        await owner.answer(question.id, True)


async def test_whoever_only_looks_sees_the_question_and_cannot_answer(
    owner: perdure.Session, beside: MemoryStorage, clock: ManualClock
) -> None:
    sent = await paying(owner, clock)
    async with perdure.open(beside, mode="read", clock=clock) as looking:
        (question,) = await (await looking.conversation("till")).questions()
        assert await looking.submission(sent.id).status() == "asks"
        with pytest.raises(perdure.UsageError, match="hand-in"):
            await question.answer(True)
