"""What a call does and gives back, becomes a bounded result (H20, H21, H43, I24, I60)."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from perdure.errors import HandleExpired, InvalidValue
from perdure.harness.registry import tool
from perdure.session.documents import document
from perdure.testing.scripted import answer, by_round, call, say

pytestmark = pytest.mark.anyio
NOTES = document("test.notes")


async def result_of(world: Any, function: Callable[..., Any], arguments: Any = None, **options: Any) -> Any:
    """The entry of the one call's result."""
    made = tool(**options)(function) if options else tool(function)
    session = await world.open(by_round(call(made.name, arguments or {}), say("ok")), made)
    chat = await session.conversation("a")
    settled = await world.running((await chat.submit("go")).wait())
    assert settled.text == "ok"
    (found,) = [entry async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    return found


class Ugly(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Quiet(BaseException):
    """Not an Exception, as some frameworks raise."""


@pytest.mark.parametrize(
    "error, text",
    [
        (ValueError("no such place"), "ValueError: no such place"),
        (Ugly(), "Ugly: (its message could not be made: RuntimeError)"),
        (Quiet("hm"), "Quiet: hm"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "was cancelled from within"),
        (StopAsyncIteration(), "StopAsyncIteration"),
        (RecursionError("deep"), "RecursionError: deep"),
        (ValueError("bad\ud800\0text"), "ValueError: bad\ufffd\u2400text"),
    ],
    ids=["plain", "ugly", "base", "exit", "cancelled", "stop", "recursion", "characters"],
)
@pytest.mark.invariant("HA-14")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_whatever_a_function_raises_is_an_error_result_with_class_and_message(
    memory_world: Any, error: BaseException, text: str, kind: str
):
    """I24: also a cancellation that nobody asked for, and what would end the process."""

    async def asynchronous() -> str:
        """Fail."""
        raise error

    def synchronous() -> str:
        """Fail."""
        raise error

    found = await result_of(memory_world, asynchronous if kind == "async" else synchronous)
    (message,) = found.messages
    assert message.error == "tool_error"
    assert text in message.text
    assert "Traceback" not in message.text


async def test_a_huge_message_of_an_error_is_clipped(memory_world: Any):
    async def fail() -> str:
        """Fail."""
        raise ValueError("x" * 1_000_000)

    (message,) = (await result_of(memory_world, fail)).messages
    assert len(message.text) < 5000


@pytest.mark.parametrize(
    "value, text",
    [
        (None, ""),
        ("plain", "plain"),
        (7, "7"),
        ({"a": [1, True, None]}, '{"a":[1,true,null]}'),
        (decimal.Decimal("1.10"), "1.10"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (b"bytes", "bytes"),
        ({3, 1, 2}, "[1,2,3]"),
        ("a\0b\ud800", "a\u2400b\ufffd"),
    ],
)
async def test_common_values_become_text_by_fixed_rules(memory_world: Any, value: Any, text: str):
    """I60."""

    async def give() -> Any:
        """Give."""
        return value

    (message,) = (await result_of(memory_world, give)).messages
    assert (message.text, message.error) == (text, None)


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __iter__(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [math.nan, (n for n in range(3)), object(), deep(200), Broken(), {"x": Broken()}, lambda: 1],
    ids=["nan", "generator", "object", "deep", "broken", "broken inside", "function"],
)
async def test_a_value_that_is_no_json_is_an_error_for_the_model_and_loses_nothing(memory_world: Any, value: Any):
    """I60: decided when it enters."""

    async def give() -> Any:
        """Give."""
        return value

    (message,) = (await result_of(memory_world, give)).messages
    assert message.error == "tool_error"


async def test_without_a_return_value_the_result_is_what_was_shown(memory_world: Any):
    async def show(call: Any) -> None:
        """Show."""
        call.output("one\n")
        call.output(b"two\n")

    (message,) = (await result_of(memory_world, show)).messages
    assert message.text == "one\ntwo\n"


async def test_a_result_is_bounded_and_says_what_was_left_out(memory_world: Any):
    async def flood(call: Any) -> str:
        """Flood."""
        for _ in range(1000):
            call.output("y" * 1000)
        return "x" * 1_000_000

    (message,) = (await result_of(memory_world, flood)).messages
    assert len(message.text) < 60 * 1024
    assert "left out" in message.text


async def test_an_error_is_followed_by_what_was_shown_before_it(memory_world: Any):
    async def fail(call: Any) -> str:
        """Fail."""
        call.output("got this far\n")
        raise ValueError("no")

    (message,) = (await result_of(memory_world, fail)).messages
    assert message.text == "ValueError: no\nOutput until then:\ngot this far\n"


async def test_details_and_diagnostics_are_stored_with_the_result_and_not_told_to_the_model(memory_world: Any):
    async def tell(call: Any) -> str:
        """Tell."""
        call.details({"rows": 3})
        call.diagnostic("slow disk")
        return "ok"

    found = await result_of(memory_world, tell)
    assert found.data["details"] == {"rows": 3}
    assert found.data["diagnostics"] == ["slow disk"]
    assert found.messages[0].text == "ok"


async def test_details_and_diagnostics_are_bounded(memory_world: Any):
    refused: list[Exception] = []

    async def tell(call: Any) -> str:
        """Tell."""
        try:
            call.details("x" * 300_000)
        except InvalidValue as error:
            refused.append(error)
        for n in range(1000):
            call.diagnostic(f"{n} " + "d" * 10_000)
        return "ok"

    found = await result_of(memory_world, tell)
    assert len(refused) == 1
    assert len(found.data["diagnostics"]) == 100
    assert found.data["diagnostics"][-1].startswith("999 ")
    assert sum(map(len, found.data["diagnostics"])) < 250_000


async def test_a_call_that_runs_out_of_time_says_that_its_outcome_is_unknown(memory_world: Any):
    ended: list[str] = []

    async def wait(call: Any) -> str:
        """Wait."""
        call.on_cleanup(lambda: ended.append("cleaned"))
        call.output("begun\n")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return "never"

    (message,) = (await result_of(memory_world, wait, timeout=7)).messages
    assert message.error == "timeout"
    assert "7 s" in message.text
    assert "begun" in message.text
    assert ended == ["cancelled", "cleaned"]


async def test_the_time_limit_is_30_seconds_unless_the_tool_says_otherwise(memory_world: Any):
    world = memory_world

    async def wait() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "never"

    made = tool(wait)
    chat = await (await world.open(by_round(call("wait"), say("ok")), made)).conversation("a")
    sent = await chat.submit("go")
    await world.clock.advance(29.9)
    assert await sent.status() == "running"
    await world.clock.advance(0.2)
    assert await sent.status() == "done"


@pytest.mark.parametrize("seconds, ends", [(100.0, 100.0), (2.0, 2.0)])
async def test_a_call_can_ask_for_more_time_or_less(memory_world: Any, seconds: float, ends: float):
    world = memory_world

    @tool
    async def wait(call: Any) -> str:
        """Wait."""
        call.extend(seconds)
        await asyncio.Event().wait()
        return "never"

    chat = await (await world.open(by_round(call("wait"), say("ok")), wait)).conversation("a")
    sent = await chat.submit("go")
    await world.clock.advance(ends - 0.1)
    assert await sent.status() == "running"
    await world.clock.advance(0.2)
    assert await sent.status() == "done"


@pytest.mark.invariant("HA-15")
async def test_a_function_that_ignores_its_time_limit_is_left_behind_without_any_right(memory_world: Any):
    """The run never stays live for it; what it does later changes nothing, and it is shown."""
    world = memory_world
    free = asyncio.Event()
    later: list[Any] = []

    @tool(timeout=3)
    async def deaf(call: Any) -> str:
        """Ignore."""
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        try:
            call.output("later")
        except HandleExpired as error:
            later.append(error)
        try:
            async with call.commit() as tx:
                (await tx.doc(NOTES))["x"] = 1
        except HandleExpired as error:
            later.append(error)
        return "too late"

    session = await world.open(by_round(call("deaf"), say("ok")), deaf)
    chat = await session.conversation("a")
    assert (await world.running((await chat.submit("go")).wait())).text == "ok"
    assert len(session.inspect().detached) == 1
    free.set()
    await world.until(lambda: not session.inspect().detached)
    assert len(later) == 2
    assert await chat.snapshot(NOTES) is None


async def test_a_thread_that_ignores_its_time_limit_does_not_hold_the_run(memory_world: Any):
    free = threading.Event()

    def block(call: Any) -> str:
        """Block."""
        call.on_cleanup(free.set)
        free.wait(30)
        return "never"

    (message,) = (await result_of(memory_world, block, timeout=3)).messages
    assert message.error == "timeout"
    assert free.is_set()  # the clean-up ran


async def test_a_timeout_of_the_tools_own_is_one_too_and_tells_its_own_text(memory_world: Any):
    async def command(call: Any) -> str:
        """Run."""
        call.output("shown")
        raise TimeoutError("printed\n[timed out after 2 s]")

    (message,) = (await result_of(memory_world, command)).messages
    assert message.error == "timeout"
    assert message.text.endswith("\nprinted\n[timed out after 2 s]")


async def test_clean_up_runs_newest_first_and_not_after_success(memory_world: Any):
    trace: list[str] = []

    async def slow_cleanup() -> None:
        trace.append("b")

    def bad_cleanup() -> None:
        trace.append("c")
        raise ValueError("no")

    async def work(call: Any, fail: bool) -> str:
        """Work."""
        call.on_cleanup(lambda: trace.append("a"))
        call.on_cleanup(slow_cleanup)
        call.on_cleanup(bad_cleanup)
        if fail:
            raise ValueError("no")
        return "ok"

    made = tool(work)
    both = answer(call("work", {"fail": True}), call("work", {"fail": False}))
    session = await memory_world.open(by_round(both, say("ok")), made)
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    assert trace == ["c", "b", "a"]
    found = [entry async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    assert any("cleanup failed: ValueError" in (entry.data.get("diagnostics") or []) for entry in found)


async def test_a_clean_up_that_hangs_does_not_hold_the_run(memory_world: Any):
    async def hang() -> None:
        await asyncio.Event().wait()

    async def work(call: Any) -> str:
        """Work."""
        call.on_cleanup(hang)
        raise ValueError("no")

    assert (await result_of(memory_world, work)).messages[0].error == "tool_error"


async def test_synchronous_functions_run_in_a_thread_and_can_use_their_call(memory_world: Any):
    threads: list[int] = []

    def work(call: Any, n: int) -> None:
        """Work."""
        threads.append(threading.get_ident())
        call.extend(60)
        for turn in range(n):
            call.output(f"line {turn}\n")
        call.details({"n": n})
        call.diagnostic("fine")

    found = await result_of(memory_world, work, {"n": 50})
    assert threads != [threading.get_ident()]
    assert found.messages[0].text.count("\n") == 50
    assert found.data["details"] == {"n": 50}


async def test_a_synchronous_wrapper_of_a_coroutine_function_is_awaited(memory_world: Any):
    async def inner() -> str:
        return "inside"

    def wrapped() -> Any:
        """Wrapped."""
        return inner()

    assert (await result_of(memory_world, wrapped)).messages[0].text == "inside"


@pytest.mark.invariant("HA-16")
async def test_a_handle_that_outlives_its_call_is_dead(memory_world: Any):
    """K42: later use raises, and writes nothing."""
    kept: list[Any] = []

    async def work(call: Any) -> str:
        """Work."""
        kept.append(call)
        return "ok"

    await result_of(memory_world, work)
    (call_handle,) = kept
    uses: list[Callable[[], Any]] = [
        lambda: call_handle.output("x"),
        lambda: call_handle.details(1),
        lambda: call_handle.diagnostic("x"),
        lambda: call_handle.on_cleanup(print),
        lambda: call_handle.extend(5),
    ]
    for use in uses:
        with pytest.raises(HandleExpired):
            use()
    with pytest.raises(HandleExpired):
        async with call_handle.commit():
            pass


async def test_a_call_can_commit_documents_of_its_conversation(memory_world: Any):
    async def work(call: Any) -> str:
        """Work."""
        async with call.commit() as tx:
            (await tx.doc(NOTES))["x"] = 1
        return "ok"

    await result_of(memory_world, work)
    chat = await memory_world.session.conversation("a")
    assert await chat.snapshot(NOTES) == {"x": 1}


async def test_a_call_that_submits_inside_its_commit_gets_an_error_and_not_a_deadlock(memory_world: Any):
    async def work(call: Any) -> str:
        """Work."""
        chat = await memory_world.session.find(call.conversation)
        async with call.commit():
            await chat.submit("inside")
        return "never"

    (message,) = (await result_of(memory_world, work)).messages
    assert message.error == "tool_error"
    assert "deadlock" in message.text


async def test_a_call_that_waits_for_its_own_conversation_is_ended_by_its_time_limit(memory_world: Any):
    """It waits for a run that waits for it; bounded, and the follow-up is answered after all."""

    async def work(call: Any) -> str:
        """Work."""
        chat = await memory_world.session.find(call.conversation)
        await (await chat.submit("and then?")).wait()
        return "never"

    made = tool(work)
    session = await memory_world.open(by_round(call("work"), say("ok"), say("then")), made)
    chat = await session.conversation("a")
    first = await chat.submit("go")
    await memory_world.running(chat.wait_idle())
    assert (await first.wait()).text == "ok"
    kinds = [entry.kind async for entry in chat.history()]
    assert kinds.count("perdure.user") == 2


async def test_what_a_function_does_to_its_arguments_changes_nothing_that_is_stored(memory_world: Any):
    async def work(items: list[Any]) -> str:
        """Work."""
        items[0]["a"].append("changed")
        items.append("changed")
        return "ok"

    await result_of(memory_world, work, {"items": [{"a": [1]}]})
    request = memory_world.strict[-1].inner.requests[-1]
    (asked,) = [
        part for message in request.messages for part in getattr(message, "parts", ()) if hasattr(part, "arguments")
    ]
    assert asked.arguments == {"items": [{"a": [1]}]}


async def test_a_tool_name_that_no_model_can_call_is_refused_where_it_is_installed(memory_world: Any):
    @tool(name="a b")
    async def odd() -> str:
        """Odd."""
        return ""

    with pytest.raises(Exception, match="'a b'"):
        await memory_world.open(say("ok"), odd)


@pytest.mark.parametrize("keep", ["head", "tail", "both"])
async def test_a_flood_of_output_is_bounded_in_what_is_stored_of_it(memory_world: Any, keep: Any):
    """What is only added costs what was added; what has to be replaced is stored once a second at most."""
    world = memory_world
    written: list[int] = []

    @tool(keep=keep, timeout=60)
    async def flood(call: Any) -> str:
        """Flood."""
        for _ in range(500):
            call.output("x" * 999 + "\n")
            await world.clock.sleep(0.02)
        return "done"

    session = await world.open(by_round(call("flood"), say("ok")), flood)
    session.observe(lambda change: written.extend(len(repr(document.ops)) for document in change.documents))
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    for _ in range(200):
        await world.clock.advance(0.1)
    assert (await sent.wait()).text == "ok"
    assert sum(written) < 20 * 60_000


async def test_progress_of_many_calls_does_not_keep_the_loop_busy(memory_world: Any):
    """One sleeper for the session: nothing is left behind when the calls are over."""
    world = memory_world

    async def show(call: Any) -> str:
        """Show."""
        call.output("x")
        return "ok"

    made = tool(show)
    session = await world.open(by_round(answer(*[call("show")] * 20), say("ok")), made)
    await (await (await session.conversation("a")).submit("go")).wait()
    await world.clock.advance(1.0)
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert "perdure progress" not in names
