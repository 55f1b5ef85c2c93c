"""Code under supervision, and the limits that end it (I24, I39)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.harness.limits import Watch
from perdure.harness.supervision import GRACE, Broke, CancelledWithin, Supervised, TimeUp
from perdure.testing.clock import ManualClock, settle

pytestmark = pytest.mark.anyio


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: BaseException) -> None:
    raise error


def outcome(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return type(error).__name__ if error is not None else f"={task.result()}"


async def test_limits_fire_in_order_and_an_ended_one_does_not():
    clock = ManualClock()
    watch, fired = Watch(clock), []
    limits = [watch.limit(n, lambda n=n: fired.append(n)) for n in (3, 1, 2)]
    limits[2].end()
    await clock.advance(10)
    assert fired == [1, 3]
    assert [limit.expired for limit in limits] == [True, True, False]


@pytest.mark.parametrize("extended, fires", [(50.0, 50.0), (3.0, 3.0)])
async def test_a_limit_can_be_set_later_and_sooner(extended: float, fires: float):
    clock = ManualClock()
    fired: list[float] = []
    limit = Watch(clock).limit(20, lambda: fired.append(clock.monotonic()))
    await clock.advance(0)
    limit.extend(extended)
    await clock.advance(100)
    assert fired == [fires]


async def test_thousands_of_limits_that_ended_are_forgotten():
    clock = ManualClock()
    watch = Watch(clock)
    for _ in range(5000):
        watch.limit(1000, print).end()
    assert len(watch._heap) < 600
    watch.close()


async def test_after_close_nothing_fires():
    clock = ManualClock()
    watch, fired = Watch(clock), []
    watch.limit(1, lambda: fired.append(1))
    watch.close()
    watch.limit(1, lambda: fired.append(2))
    await clock.advance(5)
    assert fired == []


async def test_a_value_and_an_error_come_through():
    watch = Watch(ManualClock())

    async def give() -> int:
        return 7

    assert await Supervised(watch, give(), seconds=5).result() == 7
    with pytest.raises(ValueError, match="no"):
        await Supervised(watch, fail(ValueError("no")), seconds=5).result()
    watch.close()


@pytest.mark.parametrize(
    "error", [SystemExit(3), GeneratorExit(), type("Odd", (BaseException,), {})()], ids=["exit", "generator", "odd"]
)
async def test_what_would_end_the_loop_becomes_an_error(error: BaseException):
    with pytest.raises(Broke, match=type(error).__name__):
        await Supervised(Watch(ManualClock()), fail(error)).result()


async def test_a_cancellation_from_within_is_told_apart_from_being_told_to_stop():
    with pytest.raises(CancelledWithin):
        await Supervised(Watch(ManualClock()), fail(asyncio.CancelledError())).result()

    stopped = asyncio.ensure_future(Supervised(Watch(ManualClock()), forever()).result())
    await settle()
    stopped.cancel()
    await settle()
    assert outcome(stopped) == "cancelled"


async def test_a_value_that_comes_before_a_second_cancellation_is_kept_and_the_first_forgotten():
    async def absorb() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "after all"

    async def outer() -> Any:
        found = await Supervised(Watch(ManualClock()), absorb()).result()
        own = asyncio.current_task()
        assert own is not None
        return found, own.cancelling()

    task = asyncio.ensure_future(outer())
    await settle()
    task.cancel()
    await settle()
    assert task.result() == ("after all", 0)


async def test_what_is_not_stoppable_is_only_waited_for_and_told_twice_left_behind():
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    hooks: list[str] = []

    async def thread() -> str:
        return await asyncio.shield(done)

    async def on_stop() -> None:
        hooks.append("stop")

    tasks = [
        asyncio.ensure_future(Supervised(Watch(ManualClock()), thread(), stoppable=False).result(on_stop=on_stop))
        for _ in range(2)
    ]
    await settle()
    for task in tasks:
        task.cancel()
    await settle()
    assert (hooks, [task.done() for task in tasks]) == (["stop", "stop"], [False, False])
    tasks[1].cancel()
    await settle()
    done.set_result("late")
    await settle()
    assert [outcome(task) for task in tasks] == ["=late", "cancelled"]


async def test_at_its_limit_it_is_cancelled_and_after_the_grace_left_behind():
    clock = ManualClock()
    watch, free = Watch(clock), asyncio.Event()

    async def deaf() -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    polite = asyncio.ensure_future(Supervised(watch, forever(), seconds=10).result())
    stuck = Supervised(watch, deaf(), seconds=10)
    left = asyncio.ensure_future(stuck.result())
    await clock.advance(10.1)
    assert (outcome(polite), left.done()) == ("TimeUp", False)
    await clock.advance(GRACE)
    assert (outcome(left), stuck.child.done()) == ("TimeUp", False)
    free.set()
    await settle()
    assert stuck.child.done()


async def test_an_error_on_the_way_out_of_a_time_limit_is_still_the_time_limit():
    clock = ManualClock()

    async def bad_manners() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while leaving")

    task = asyncio.ensure_future(Supervised(Watch(clock), bad_manners(), seconds=1).result())
    await clock.advance(2)
    assert isinstance(task.exception(), TimeUp)


async def test_stopped_before_it_began_nothing_is_left_unawaited():
    task = asyncio.ensure_future(Supervised(Watch(ManualClock()), forever()).result())
    task.cancel()
    await settle()
    assert outcome(task) == "cancelled"
