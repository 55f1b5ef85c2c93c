"""Storages that misbehave: what each fault keeps, raises, and does to what stands behind it."""

import asyncio
import itertools
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.backends.memory import MemoryStorage
from perdure.errors import StorageFailed, StorageFull, StorageRejected, StorageUncertain, UsageError
from perdure.records import ConversationId, EntryId, Inbound, Seq
from perdure.storage import Batch, Claim, PutEntry, Storage
from perdure.testing.clock import LoopClock, ManualClock, settle
from perdure.testing.faults import FAULTS, Failing, Fault, RandomFaults, Relay, Slow
from perdure.testing.loop import SimulatedLoop, run

pytestmark = pytest.mark.anyio


def batch(seq: int) -> Batch:
    """A commit with one entry."""
    entry = PutEntry(EntryId(seq), ConversationId(1), None, b"%d" % seq)
    return Batch(seq.to_bytes(16, "big"), Seq(seq), seq + 1, [entry])


async def claimed(storage: Storage) -> Claim:
    return (await storage.claim("s")).claim


async def entries(storage: Storage) -> list[bytes]:
    return (await storage.scan_entries("s", ConversationId(1)))[::-1]


async def outcomes(storage: Storage, claim: Claim, count: int) -> list[object]:
    """Commit 1 to count without waiting in between; seq or the class of the error of each."""
    futures = [storage.commit(claim, batch(seq)) for seq in range(1, count + 1)]
    answers = await asyncio.gather(*futures, return_exceptions=True)
    return [type(answer) if isinstance(answer, Exception) else answer for answer in answers]


# -- the n-th commit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how,error,kept",
    [
        ("before", StorageRejected, False),
        ("refused", StorageRejected, False),
        ("full", StorageFull, False),
        ("lost", StorageUncertain, False),
        ("after", StorageUncertain, True),
        ("poison", StorageFailed, False),
        ("poison_after", StorageFailed, True),
    ],
)
async def test_each_fault_raises_its_error_and_keeps_the_batch_or_not(how, error, kept):
    storage = Failing(MemoryStorage(), 2, how)
    claim = await claimed(storage)
    await storage.commit(claim, batch(1))

    with pytest.raises(error):
        await storage.commit(claim, batch(2))

    assert await entries(storage) == ([b"1", b"2"] if kept else [b"1"])
    assert (await storage.find_commit("s", batch(2).commit_id)) == (2 if kept else None)
    assert storage.struck == [("commit", 2, how)]


@pytest.mark.parametrize("how", ["before", "refused", "full", "lost"])
async def test_what_stands_behind_a_batch_that_was_not_kept_is_refused(how):
    storage = Failing(MemoryStorage(), 2, how)
    claim = await claimed(storage)

    answers = await outcomes(storage, claim, 4)

    assert answers == [1, FAULTS[how].error, StorageRejected, StorageRejected]
    assert await entries(storage) == [b"1"]


async def test_what_stands_behind_a_lost_acknowledgement_is_kept():
    storage = Failing(MemoryStorage(), 2, "after")
    claim = await claimed(storage)

    assert await outcomes(storage, claim, 3) == [1, StorageUncertain, 3]
    assert await entries(storage) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("how", ["before", "refused", "full", "lost"])
async def test_the_same_number_can_be_committed_after_a_fault_that_kept_nothing(how):
    storage = Failing(MemoryStorage(), 1, how)
    claim = await claimed(storage)
    with pytest.raises(FAULTS[how].error):
        await storage.commit(claim, batch(1))

    assert await storage.commit(claim, batch(1)) == 1


async def test_space_is_short_for_as_many_commits_as_told():
    storage = Failing(MemoryStorage(), 1, "full", times=3)
    claim = await claimed(storage)

    for _ in range(3):
        with pytest.raises(StorageFull):
            await storage.commit(claim, batch(1))

    assert await storage.commit(claim, batch(1)) == 1


@pytest.mark.parametrize("how", ["poison", "poison_after"])
async def test_after_a_poisoning_every_write_fails_until_it_is_healed(how):
    storage = Failing(MemoryStorage(), 1, how)
    claim = await claimed(storage)
    with pytest.raises(StorageFailed):
        await storage.commit(claim, batch(1))

    with pytest.raises(StorageFailed):
        await storage.commit(claim, batch(2))
    with pytest.raises(StorageFailed):
        await storage.hand_in("s", Inbound(id="1", kind="note", body=None, at=0.0))
    storage.heal()
    head = (await storage.head("s"))[1]

    assert await storage.commit(claim, batch(head + 1)) == head + 1


async def test_a_refusal_before_admission_is_there_when_the_call_returns():
    storage = Failing(MemoryStorage(), 1, "before")

    answer = storage.commit(await claimed(storage), batch(1))

    assert isinstance(answer.exception(), StorageRejected)


async def test_answers_come_in_the_order_of_admission():
    clock = ManualClock()
    storage = Failing(Slow(MemoryStorage(), clock, itertools.repeat(1.0)), 2, "refused")
    claim = await claimed(storage)
    order = []
    futures = [storage.commit(claim, batch(seq)) for seq in (1, 2, 3)]
    for number, future in enumerate(futures, 1):
        future.add_done_callback(lambda future, number=number: order.append((number, future.exception() is None)))

    await settle()
    early = list(order)
    await clock.advance(1)

    assert early == []
    assert order == [(1, True), (2, False), (3, False)]


async def test_handing_in_can_fail_with_the_item_kept():
    storage = Failing(MemoryStorage(), 1, "after", op="hand_in")
    item = Inbound(id="1", kind="note", body="hello", at=0.0)

    with pytest.raises(StorageUncertain):
        await storage.hand_in("s", item)

    assert await storage.hand_in("s", item) == item
    assert storage.count["hand_in"] == 2


async def test_an_unknown_fault_and_a_number_that_never_comes_are_told():
    with pytest.raises(UsageError, match=r"'sideways'.*before, refused"):
        Failing(MemoryStorage(), 1, "sideways")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="counted from 1"):
        Failing(MemoryStorage(), 0)


# -- by chance ----------------------------------------------------------------------------------


@given(st.integers(0, 10_000))
def test_random_faults_replay_with_their_seed_and_are_told_truly(seed):
    rates = dict.fromkeys(FAULTS, 0.08)

    async def main(loop: SimulatedLoop) -> tuple[list[object], list[bytes], list[Any]]:
        clock = LoopClock(loop, seed)
        storage = RandomFaults(MemoryStorage(clock), clock.random, rates)
        claim = await claimed(storage)
        answers: list[object] = []
        for _ in range(30):
            head = (await storage.head("s"))[1]
            try:
                answers.append(await storage.commit(claim, batch(head + 1)))
            except Exception as error:
                answers.append(type(error).__name__)
                storage.poisoned = False
        return answers, await entries(storage), list(storage.struck)

    first = run(seed, main)
    answers, kept, struck = first.value
    believed = [b"%d" % answer for answer in answers if isinstance(answer, int)]

    assert run(seed, main) == first
    assert [answer for answer in answers if not isinstance(answer, int)] == [
        FAULTS[how].error.__name__ for _, _, how in struck
    ]
    assert len(kept) == len(believed) + sum(FAULTS[how].kept for _, _, how in struck)
    assert set(believed) <= set(kept)


async def test_looking_up_a_commit_can_fail_while_the_connection_is_not_back():
    storage = RandomFaults(MemoryStorage(), Random(0).random, {}, lookup=1.0)
    await claimed(storage)

    with pytest.raises(StorageUncertain):
        await storage.find_commit("s", b"x")
    storage.heal()

    assert await storage.find_commit("s", b"x") is None


# -- slowly -------------------------------------------------------------------------------------


async def test_slow_acknowledgements_come_in_order_after_their_delays():
    clock, seen = ManualClock(), []
    storage = Slow(MemoryStorage(), clock, [3.0, 1.0, 5.0])
    claim = await claimed(storage)
    for seq in (1, 2, 3):
        storage.commit(claim, batch(seq)).add_done_callback(
            lambda done: seen.append((done.result(), clock.monotonic()))
        )

    kept = await entries(storage)
    in_flight = storage.in_flight
    await clock.advance(10)

    assert kept == [b"1", b"2", b"3"]
    assert (in_flight, storage.most, storage.in_flight) == (3, 3, 0)
    assert seen == [(1, 3.0), (2, 3.0), (3, 5.0)]


async def test_a_slow_storage_judges_at_the_call_and_tells_later():
    clock = ManualClock()
    storage = Slow(MemoryStorage(), clock, itertools.repeat(1.0))
    claim = await claimed(storage)

    good, bad = storage.commit(claim, batch(1)), storage.commit(claim, batch(7))
    await settle()
    early = (good.done(), bad.done())
    await clock.advance(1)

    assert early == (False, False)
    assert good.result() == 1
    assert isinstance(bad.exception(), StorageRejected)


async def test_closing_a_slow_storage_waits_for_what_was_admitted():
    clock = ManualClock()
    storage = Slow(MemoryStorage(), clock, [2.0])
    answer = storage.commit(await claimed(storage), batch(1))

    closing = asyncio.create_task(storage.close())
    await clock.advance(1)
    early = closing.done()
    await clock.advance(1)

    assert (early, closing.done(), answer.result()) == (False, True, 1)


async def test_a_caller_that_gave_up_does_not_disturb_the_others():
    clock = ManualClock()
    storage = Slow(MemoryStorage(), clock, itertools.repeat(1.0))
    claim = await claimed(storage)
    first, second = storage.commit(claim, batch(1)), storage.commit(claim, batch(2))

    first.cancel()
    await clock.advance(1)

    assert second.result() == 2


# -- the wrapper --------------------------------------------------------------------------------


def test_a_relay_passes_on_the_whole_port():
    inner = MemoryStorage(ManualClock())
    relay = Relay(inner)
    names = [name for name in (*Storage.__annotations__, *vars(Storage)) if not name.startswith("_")]

    assert len(names) > 20
    assert all(getattr(relay, name) == getattr(inner, name) for name in names)


def test_faults_can_be_listed_for_a_suite_that_runs_them_all():
    assert all(isinstance(fault, Fault) for fault in FAULTS.values())
    assert {fault.kept for fault in FAULTS.values()} == {True, False}
