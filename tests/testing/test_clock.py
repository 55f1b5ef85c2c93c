"""The manual clock: stands still, wakes in order, mints from a seed."""

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import UsageError
from perdure.testing.clock import ManualClock, settle

pytestmark = pytest.mark.anyio


async def test_a_sleeper_wakes_when_its_time_has_come_and_not_before():
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(10))

    await clock.advance(9.5)
    early = sleeper.done()
    await clock.advance(0.5)

    assert (early, sleeper.done(), clock.monotonic()) == (False, True, 10.0)


async def test_sleepers_wake_in_the_order_of_their_deadlines_and_see_that_time():
    clock, seen = ManualClock(start=1000.0), []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((seconds, clock.now()))

    async with asyncio.TaskGroup() as group:
        for seconds in (3, 1, 2, 1):
            group.create_task(sleep(seconds))
        await clock.advance(5)

    assert seen == [(1, 1001.0), (1, 1001.0), (2, 1002.0), (3, 1003.0)]
    assert clock.now() == 1005.0


async def test_who_goes_to_sleep_on_the_way_is_woken_on_the_way():
    clock, ticks = ManualClock(), []

    async def tick() -> None:
        while True:
            await clock.sleep(2)
            ticks.append(clock.monotonic())

    ticking = asyncio.create_task(tick())
    await clock.advance(7)
    ticking.cancel()

    assert ticks == [2.0, 4.0, 6.0]


async def test_the_loop_settles_between_two_sleepers():
    clock, seen = ManualClock(), []

    async def long_way() -> None:
        await clock.sleep(1)
        for _ in range(20):
            await asyncio.sleep(0)
        seen.append("first, after a long way")

    async def direct() -> None:
        await clock.sleep(2)
        seen.append("second")

    async with asyncio.TaskGroup() as group:
        group.create_task(direct())
        group.create_task(long_way())
        await clock.advance(2)

    assert seen == ["first, after a long way", "second"]


async def test_a_cancelled_sleeper_is_forgotten():
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(10))
    await settle()

    sleeper.cancel()
    await settle()

    assert clock.next_deadline() is None


async def test_the_next_deadline_is_that_of_the_first_sleeper():
    clock = ManualClock()
    sleepers = [asyncio.create_task(clock.sleep(seconds)) for seconds in (7, 3)]
    await settle()

    assert clock.next_deadline() == 3.0

    await clock.advance(7)
    await asyncio.gather(*sleepers)


async def test_sleeping_for_nothing_needs_no_advance():
    clock = ManualClock()

    await clock.sleep(0)
    await clock.sleep(-1)

    assert clock.monotonic() == 0.0


async def test_the_wall_clock_can_be_set_back_while_monotonic_time_goes_on():
    clock = ManualClock(start=1000.0)
    await clock.advance(10)

    clock.shift(-500)

    assert (clock.now(), clock.monotonic()) == (510.0, 10.0)


async def test_a_clock_does_not_advance_backwards():
    with pytest.raises(UsageError, match=r"-1.*shift"):
        await ManualClock().advance(-1)


@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_a_seed_mints_the_same_ids_again_and_another_seed_others(one, other):
    def mint(seed: int) -> tuple[object, ...]:
        clock = ManualClock(seed=seed)
        return clock.token(), clock.uuid7(), clock.random(), clock.token()

    assert mint(one) == mint(one)
    assert (mint(one) == mint(other)) == (one == other)


async def test_uuids_are_of_version_7_and_ordered_by_time():
    clock = ManualClock(start=1_700_000_000.0)

    ids = []
    for _ in range(20):
        ids.append(clock.uuid7())
        await clock.advance(0.001)

    assert ids == sorted(ids)
    assert all(
        re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", text) for text in ids
    )


async def test_tokens_are_sixteen_bytes_and_do_not_repeat():
    clock = ManualClock()

    tokens = {clock.token() for _ in range(1000)}

    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {16}
