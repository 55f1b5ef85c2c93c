"""The simulated loop: seeded order, virtual time, and failures that tell where."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import UsageError
from perdure.testing.clock import LoopClock
from perdure.testing.loop import Endless, SimulatedLoop, Stuck, Unhandled, run

WORKERS = "abcdef"


async def interleave(_loop: SimulatedLoop) -> str:
    """Six tasks that each leave their letter three times."""
    order = []

    async def work(letter: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            order.append(letter)

    async with asyncio.TaskGroup() as group:
        for letter in WORKERS:
            group.create_task(work(letter))
    return "".join(order)


# -- order --------------------------------------------------------------------------------------


@given(st.integers(0, 2**64))
def test_the_same_seed_runs_the_same_trace(seed):
    first, second = run(seed, interleave), run(seed, interleave)

    assert first == second


def test_different_seeds_run_different_orders():
    traces = [run(seed, interleave) for seed in range(50)]

    assert len({trace.value for trace in traces}) == 50
    assert len({trace.digest for trace in traces}) == 50


def test_every_order_of_two_ready_callbacks_is_drawn():
    async def race(loop: SimulatedLoop) -> str:
        order = []
        for letter in "abc":
            loop.call_soon(order.append, letter)
        await asyncio.sleep(1)
        return "".join(order)

    assert {run(seed, race).value for seed in range(100)} == {"abc", "acb", "bac", "bca", "cab", "cba"}


@pytest.mark.slow
def test_the_digest_is_the_same_in_another_process():
    program = (
        "from perdure.testing.loop import fixed_hash_seed, run; import os, asyncio\n"
        "fixed_hash_seed()\n"
        "async def main(loop):\n"
        "    for letter in sorted(set('abcdef'), key=hash): asyncio.create_task(asyncio.sleep(1), name=letter)\n"
        "    await asyncio.sleep(2)\n"
        "print(os.environ['PYTHONHASHSEED'], run(5, main).digest, hash('perdure'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}

    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }

    assert len(outputs) == 1
    assert outputs.pop().startswith("0 ")


# -- time ---------------------------------------------------------------------------------------


def test_a_day_passes_at_once():
    async def main(loop: SimulatedLoop) -> float:
        await asyncio.sleep(86_400)
        return loop.time()

    assert run(0, main).value == 86_400


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 1000))
def test_timers_come_in_the_order_of_their_times(delays, seed):
    async def main(loop: SimulatedLoop) -> list[tuple[float, int]]:
        seen = []

        async def sleep(delay: int) -> None:
            await asyncio.sleep(delay)
            seen.append((loop.time(), delay))

        await asyncio.gather(*(sleep(delay) for delay in delays))
        return seen

    seen = run(seed, main).value

    assert [delay for _, delay in seen] == sorted(delays)
    assert all(time == delay for time, delay in seen)


def test_time_stands_still_while_anything_is_ready():
    async def main(loop: SimulatedLoop) -> tuple[float, bool]:
        timer = loop.call_later(0.001, print)
        for _ in range(1000):
            await asyncio.sleep(0)
        still = loop.time()
        timer.cancel()
        return still, timer.cancelled()

    assert run(3, main).value == (0.0, True)


def test_a_hasty_loop_lets_timers_overtake_ready_callbacks():
    async def main(loop: SimulatedLoop) -> float:
        loop.call_later(1.0, lambda: None)
        for _ in range(100):
            await asyncio.sleep(0)
        return loop.time()

    assert {run(seed, main, haste=0.5).value for seed in range(10)} == {1.0}


def test_a_cancelled_timer_does_not_move_time():
    async def main(loop: SimulatedLoop) -> float:
        async with asyncio.timeout(3600):
            await asyncio.sleep(1)
        return loop.time()

    assert run(1, main).value == 1.0
    assert run(1, main).time == 1.0


# -- asyncio as it is ---------------------------------------------------------------------------


@given(st.integers(0, 1000))
def test_timeouts_cancel_and_groups_fail_as_everywhere(seed):
    async def hang() -> None:
        await asyncio.Event().wait()

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("one")

    async def main(loop: SimulatedLoop) -> list[str]:
        seen = []
        try:
            async with asyncio.timeout(5):
                await hang()
        except TimeoutError:
            seen.append(f"timeout at {loop.time():g}")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(hang())
                group.create_task(fail())
        except* ValueError:
            seen.append(f"group at {loop.time():g}")
        try:
            await asyncio.wait_for(hang(), 1)
        except TimeoutError:
            seen.append(f"wait_for at {loop.time():g}")
        return seen

    assert run(seed, main).value == ["timeout at 5", "group at 6", "wait_for at 7"]


@given(st.integers(0, 1000))
def test_locks_queues_and_shields_keep_their_promises(seed):
    async def main(_loop: SimulatedLoop) -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        lock = asyncio.Lock()
        taken: list[int] = []
        inside = 0

        async def produce(start: int) -> None:
            for number in range(start, start + 5):
                await queue.put(number)

        async def consume() -> None:
            nonlocal inside
            while True:
                number = await queue.get()
                async with lock:
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0)
                    inside -= 1
                taken.append(number)
                queue.task_done()

        consumers = [asyncio.create_task(consume()) for _ in range(3)]
        await asyncio.gather(asyncio.shield(produce(0)), produce(10))
        await queue.join()
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        return taken

    assert sorted(run(seed, main).value) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_tasks_inherit_context_variables():
    who = contextvars.ContextVar("who", default="nobody")

    async def main(_loop: SimulatedLoop) -> tuple[str, str]:
        async def child() -> str:
            await asyncio.sleep(0)
            seen = who.get()
            who.set("child")
            return seen

        who.set("main")
        return await asyncio.create_task(child()), who.get()

    assert run(0, main).value == ("main", "main")


def test_an_abandoned_generator_is_closed_on_the_loop():
    closed = []

    async def numbers():
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(1)
            closed.append(True)

    async def main(_loop: SimulatedLoop) -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(5)

    run(0, main)

    assert closed == [True]


# -- failures -----------------------------------------------------------------------------------


def test_a_deadlock_is_told_with_the_tasks_and_where_they_wait():
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main(_loop: SimulatedLoop) -> None:
        await asyncio.create_task(wait_for_ever(), name="the hanging one")

    with pytest.raises(Stuck) as caught:
        run(7, main)

    assert "seed 7" in str(caught.value)
    assert "the hanging one at Event.wait" in str(caught.value)


def test_what_never_ends_is_ended_after_max_steps():
    async def main(_loop: SimulatedLoop) -> None:
        while True:  # noqa: ASYNC110 - the fault to be found
            await asyncio.sleep(0)

    with pytest.raises(Endless, match="not done after 1000 steps"):
        run(0, main, max_steps=1000)


def test_an_invariant_is_checked_after_every_step():
    world = {"a": 0, "b": 0}
    checks = []

    async def main(_loop: SimulatedLoop) -> None:
        world["a"] += 1
        await asyncio.sleep(0)
        world["b"] += 1

    def check() -> None:
        checks.append(dict(world))
        assert world["a"] == world["b"], "a and b differ"

    with pytest.raises(AssertionError, match="a and b differ") as caught:
        run(11, main, after_step=check)

    assert checks == [{"a": 1, "b": 0}]
    assert "seed 11, step 1" in caught.value.__notes__[0]


@given(st.integers(0, 10_000))
def test_a_failing_seed_fails_at_the_same_step_again(seed):
    async def main(_loop: SimulatedLoop) -> None:
        balance = 100

        async def withdraw() -> None:
            nonlocal balance
            seen = balance
            await asyncio.sleep(0)
            balance = seen - 10

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(withdraw())
        assert balance == 60

    def outcome() -> str:
        try:
            return run(seed, main).digest
        except AssertionError as error:  # an update was lost, as in most orders
            return error.__notes__[0]

    assert outcome() == outcome()


def test_a_race_is_found_by_some_seeds_and_not_by_others():
    async def main(_loop: SimulatedLoop) -> bool:
        account = {"balance": 100}

        async def withdraw() -> None:
            seen = account["balance"]
            await asyncio.sleep(0)
            account["balance"] = seen - 10

        await asyncio.gather(withdraw(), withdraw())
        return account["balance"] == 80

    assert {run(seed, main).value for seed in range(30)} == {True, False}


def test_an_error_in_a_plain_callback_ends_the_run():
    async def main(loop: SimulatedLoop) -> None:
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run(0, main)


def test_an_error_of_a_task_that_nobody_awaits_ends_the_run():
    async def fail() -> None:
        raise ValueError("lost")

    async def main(_loop: SimulatedLoop) -> None:
        asyncio.create_task(fail())  # noqa: RUF006
        await asyncio.sleep(1)

    with pytest.raises(ValueError, match="lost"):
        run(0, main)


def test_a_report_without_an_exception_ends_the_run():
    async def main(loop: SimulatedLoop) -> None:
        loop.call_exception_handler({"message": "something is off"})
        await asyncio.sleep(1)

    with pytest.raises(Unhandled, match="something is off"):
        run(0, main)


def test_tasks_that_outlive_main_are_named_and_cancelled():
    ended = []

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("cancelled")

    async def main(_loop: SimulatedLoop) -> None:
        ended.append(asyncio.create_task(background(), name="background"))
        await asyncio.sleep(1)

    trace = run(0, main)

    assert trace.left == ("background",)
    assert trace.time == 1.0
    assert ended[1:] == ["cancelled"]


# -- what is not there --------------------------------------------------------------------------


def test_there_are_no_threads():
    async def main(_loop: SimulatedLoop) -> None:
        await asyncio.to_thread(print)

    with pytest.raises(UsageError, match="no threads"):
        run(0, main)


def test_the_own_thread_may_call_soon_threadsafe_and_no_other():
    async def main(loop: SimulatedLoop) -> list[object]:
        seen: list[object] = []
        loop.call_soon_threadsafe(seen.append, "own")

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(seen.append, "other")
            except UsageError as error:
                seen.append(type(error))

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        await asyncio.sleep(1)
        return seen

    assert run(0, main).value == [UsageError, "own"]


# -- its clock ----------------------------------------------------------------------------------


def test_a_loop_clock_follows_virtual_time_and_mints_from_its_seed():
    async def main(loop: SimulatedLoop) -> tuple[object, ...]:
        clock = LoopClock(loop, seed=3, start=1_700_000_000.0)
        await clock.sleep(90)
        return clock.now(), clock.monotonic(), clock.random(), clock.token(), clock.uuid7()

    first, second = run(1, main).value, run(2, main).value

    assert first == second
    assert first[:2] == (1_700_000_090.0, 90.0)
