"""Settings, usage, held runs, and what other processes hand in (H17, H31, H15, K1a)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure.errors import UsageError
from perdure.harness.harness import Settings
from perdure.harness.registry import Extension, Registry, tool
from perdure.harness.stored import AGENT
from perdure.messages import user
from perdure.model import Usage
from perdure.records import Inbound
from perdure.session.transaction import entry_kind
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, by_round, call, fail, hang, say
from perdure.values import clean

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")


@tool
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


@tool
async def pay(n: int = 0) -> str:
    """Pay."""
    raise ValueError("no money")


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.invariant("HA-40")
async def test_a_conversations_settings_lie_over_the_sessions_and_survive_a_restart(world: Any):
    other = ScriptedModel(say("I am another"), name="other")
    session = await world.open(say("default"), look, pay, models={"other": other})
    chat, plain = await session.conversation("a"), await session.conversation("b")
    await chat.configure(model="other", tools=("look",), follow_up="all")

    session = await world.restart(settings=Settings(max_rounds=7))

    chat, plain = await session.conversation("a"), await session.conversation("b")
    found = await chat.settings()
    assert (found.model, found.tools, found.follow_up, found.max_rounds) == ("other", ("look",), "all", 7)
    assert (await (await chat.submit("go")).wait()).text == "I am another"
    assert [spec.name for spec in other.requests[0].tools] == ["look"]
    assert (await (await plain.submit("go")).wait()).text == "default"


async def test_none_takes_the_sessions_setting_again(world: Any):
    chat = await (await world.open(say("x"))).conversation("a")
    await chat.configure(max_rounds=3)
    await chat.configure(max_rounds=None)
    assert (await chat.settings()).max_rounds == 100


@pytest.mark.parametrize(
    "setting, named",
    [
        ({"colour": "red"}, "colour"),
        ({"colour": None}, "colour"),
        ({"steering": "some"}, "steering"),
        ({"max_rounds": "many"}, "max_rounds"),
        ({"max_rounds": 0}, "max_rounds"),
        ({"tools": "look"}, "tools"),
        ({"tools": [1]}, "tools"),
        ({"model": 7}, "model"),
    ],
)
async def test_a_setting_that_cannot_be_is_refused_by_name_and_changes_nothing(world: Any, setting: Any, named: str):
    chat = await (await world.open(say("x"))).conversation("a")
    await chat.configure(max_rounds=3)
    with pytest.raises(UsageError, match=named):
        await chat.configure(max_queued=5, **setting)
    assert (await chat.settings()).max_queued == 1000


async def test_names_without_code_are_skipped_and_come_back_with_it(world: Any):
    """H31."""
    session = await world.open(by_prompt({"": say("ok")}), look)
    chat = await session.conversation("a")
    await chat.configure(tools=["pay", "look"])
    await (await chat.submit("one")).wait()
    await session.install(Registry([Extension(name="x", tools=[pay, look])]))
    await (await chat.submit("two")).wait()
    offered = [[spec.name for spec in request.tools] for request in world.strict[-1].inner.requests]
    assert offered == [["look"], ["look", "pay"]]  # what comes later stands behind what was sent (H16)


async def test_a_setting_of_a_later_version_does_not_stop_this_one(world: Any):
    chat = await (await world.open(say("ok"))).conversation("a")
    async with chat.commit() as tx:
        (await tx.doc(AGENT))["from_the_future"] = {"x": 1}
    assert (await (await chat.submit("go")).wait()).text == "ok"


async def test_a_settings_change_takes_effect_with_the_next_round(world: Any):
    gate = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "ok"

    other = ScriptedModel(say("from the other"), name="other")
    session = await world.open(by_round(call("wait"), say("never")), wait, models={"other": other})
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: len(session.inspect().tasks) == 2)
    await chat.configure(model="other")
    gate.set()
    assert (await sent.wait()).text == "from the other"


# -- usage --------------------------------------------------------------------------------------


async def test_usage_is_kept_by_model_and_tool_and_the_sessions_is_the_sum(world: Any):
    """H17: failed calls count too; a fork starts at zero."""
    script = by_prompt(
        {
            "one": [
                answer(call("look"), call("pay"), usage=Usage(input=10, output=2)),
                answer(say("ok"), usage=Usage(input=20)),
            ],
            "two": answer(say("ok"), usage=Usage(input=1, cost=0.5)),
        }
    )
    session = await world.open(script, look, pay)
    one, two = await session.conversation("a"), await session.conversation("b")
    done = await (await one.submit("one")).wait()
    await (await two.submit("two")).wait()
    assert await one.usage() == {
        "models": {"scripted": {"requests": 2, "unknown": 0, "input": 30, "output": 2}},
        "tools": {"look": {"calls": 1, "errors": 0}, "pay": {"calls": 1, "errors": 1}},
    }
    total = await session.usage()
    assert total["models"]["scripted"] == {
        "requests": 3,
        "unknown": 0,
        "input": 31,
        "output": 2,
        "cost": 0.5,
        "unpriced": 2,
    }
    fork = await one.fork(done.answer.id)
    assert await fork.usage() == {"models": {}, "tools": {}}


async def test_usage_and_answer_are_in_one_commit(world: Any):
    session = await world.open(answer(say("ok"), usage=Usage(input=1)))
    chat = await session.conversation("a")
    changes: list[Any] = []
    session.observe(changes.append)
    await (await chat.submit("go")).wait()
    (answered,) = [change for change in changes if any(entry.kind == "perdure.assistant" for entry in change.entries)]
    assert "perdure.usage" in [change.record.kind for change in answered.documents]


# -- held runs ----------------------------------------------------------------------------------


@pytest.mark.invariant("HA-41")
async def test_a_held_run_settles_nothing_says_why_and_goes_on_when_it_is_freed(world: Any):
    """H15, H44: a safe call that keeps killing the process is parked after the third time."""
    deadly = [True]
    begun: list[int] = []

    @tool(replay="safe")
    async def kill() -> str:
        """Kill."""
        begun.append(1)
        if deadly[0]:
            await asyncio.Event().wait()
        return "survived"

    session = await world.open(by_round(call("kill"), say("ok")), kill)
    sent = await (await session.conversation("a")).submit("go")
    for times in range(1, 4):
        await world.until(lambda n=times: len(begun) == n)
        session = await world.restart()
        await session.resume()
    await world.until(lambda: session.inspect().held)
    again = session.submission(sent.id)
    assert await again.status() == "held(parked)"
    waiting = asyncio.ensure_future(again.wait())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()

    deadly[0] = False
    await session.retry(session.inspect().held[0].id)
    assert (await waiting).text == "ok"


# -- handed in ----------------------------------------------------------------------------------


async def handed(world: Any, *items: tuple[str, Any]) -> list[Any]:
    """What became of items that another process had handed in before this start."""
    given = [Inbound(id=world.clock.uuid7(), kind=kind, body=clean(body), at=0.0) for kind, body in items]
    for item in given:
        await world.storage.hand_in("main", item)
    await world.close()
    await world.reopen()
    stored = [await world.storage.read_inbound("main", item.id) for item in given]
    return [msgspec.json.decode(body, type=Inbound).answer for body in stored]


def message(text: str) -> Any:
    return msgspec.to_builtins(user(text))


async def test_what_was_handed_in_is_taken_with_the_next_start_and_answered(world: Any):
    await world.open(say("ok"))
    first, note = await handed(
        world,
        ("input", {"key": "a", "message": message("hello"), "request_id": "r"}),
        ("write", {"key": "a", "kind": "test.note", "data": 1}),
    )
    session = world.session
    assert (await session.submission(first["submission"]).wait()).text == "ok"
    chat = await session.conversation("a")
    assert (await chat.submit("hello", request_id="r")).id == first["submission"]
    await session.submission(note["submission"]).wait()
    assert "test.note" in [entry.kind async for entry in chat.history()]


async def test_an_abort_that_was_handed_in_stops_the_run(world: Any):
    session = await world.open(hang())
    chat = await session.conversation("a")
    sent = await chat.submit("one")
    (answered,) = await handed(world, ("abort", {"key": "a", "reason": "from outside"}))
    assert len(answered["marked"]) == 1
    ended = await world.session.submission(sent.id).wait()
    assert (ended.reason, ended.detail) == ("aborted", "from outside")


@pytest.mark.invariant("HA-42")
@pytest.mark.parametrize(
    "kind, body",
    [
        ("input", None),
        ("input", []),
        ("input", {}),
        ("input", {"message": "hello"}),
        ("input", {"message": {"parts": [{"type": "text"}]}}),
        ("input", {"message": {"type": "user", "parts": []}, "key": ""}),
        ("input", {"message": {"type": "user", "parts": []}, "id": "x"}),
        ("input", {"message": {"type": "user", "parts": []}, "id": 4711}),
        ("input", {"message": {"type": "user", "parts": []}, "when_busy": "now"}),
        ("input", {"message": {"type": "user", "parts": []}, "request_id": 5}),
        ("write", {"data": 1}),
        ("write", {"kind": "perdure.assistant", "data": {"run": 1}}),
        ("write", {"kind": 7}),
        ("abort", {"task": "one"}),
        ("abort", {"submission": 4711}),
        ("abort", {"reason": {"not": "text"}}),
        ("answer", {}),
        ("answer", {"question": 4711}),
        ("answer", {"question": [1]}),
        ("retry", {}),
        ("retry", {"task": "x"}),
        ("retry", None),
        ("dance", {}),
    ],
    ids=range(23),
)
async def test_nothing_that_another_process_hands_in_keeps_the_session_from_opening(
    memory_world: Any, kind: str, body: Any
):
    await memory_world.open(say("ok"))
    bad, good = await handed(memory_world, (kind, body), ("input", {"key": "a", "message": message("hello")}))
    assert set(bad["error"]) == {"type", "message"}
    assert (await memory_world.session.submission(good["submission"]).wait()).text == "ok"


async def test_a_failed_run_is_one_submissions_affair(world: Any):
    session = await world.open(by_prompt({"bad": fail("auth"), "": say("ok")}))
    bad, good = await session.conversation("a"), await session.conversation("b")
    sent = [await bad.submit("bad"), await good.submit("good")]
    assert [(await one.wait()).__class__.__name__ for one in sent] == ["NotAnswered", "Answered"]
