"""Hooks around requests, answers, calls and rounds (H24, H40): what they may change, and what their failures do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure.harness.consult import before_compact
from perdure.harness.hooks import CompactionToDo, Refuse, Replace, Summary
from perdure.harness.loadout import Uses
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import UserMessage, text_of, user
from perdure.records import TaskId
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, by_round, call, fail, hang, say

pytestmark = pytest.mark.anyio


@tool
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


@tool
async def break_down() -> str:
    """Break."""
    raise ValueError("broken")


def bringing(**hooks: Any) -> Registry:
    return Registry([Extension(name="x", tools=[look, break_down], **hooks)])


def requests(world: Any) -> list[Any]:
    return world.strict[-1].inner.requests


async def results(chat: Any) -> list[Any]:
    return [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"][::-1]


# -- before_request -----------------------------------------------------------------------------


async def test_before_request_replaces_the_messages_of_that_request_only(world: Any):
    async def shorten(seen: Any) -> Any:
        return [user("in short")] if len(seen.messages) == 1 else None

    session = await world.open(by_prompt({"": say("ok")}), registry=bringing(before_request=[shorten]))
    chat = await session.conversation("a")
    await (await chat.submit("a long question")).wait()
    await (await chat.submit("another")).wait()

    first, second = requests(world)
    assert [text_of(message) for message in first.messages] == ["in short"]
    assert [text_of(message) for message in second.messages] == ["a long question", "ok", "another"]


@pytest.mark.invariant("HX-12")
async def test_a_recovered_request_is_what_hooks_had_made_of_it_whatever_they_say_now(world: Any):
    async def before(seen: Any) -> Any:
        return [user("as it was"), *seen.messages[1:]]

    async def later(seen: Any) -> Any:
        return [user("as it would be")]

    session = await world.open([hang()], registry=bringing(before_request=[before]))
    sent = await (await session.conversation("a")).submit("go")
    await world.until(lambda: requests(world))
    for again in (bringing(before_request=[later]), bringing()):
        model = ScriptedModel([hang()], clock=world.clock)
        session = await world.restart(registry=again, model=model)
        await session.resume()
        await world.until(lambda model=model: model.requests)
        assert model.requests[0].messages == (user("as it was"),)
    model = ScriptedModel([say("done")], clock=world.clock)
    session = await world.restart(model=model)
    assert (await session.submission(sent.id).wait()).text == "done"


@pytest.mark.invariant("HX-12")
async def test_a_retry_sends_what_hooks_had_made_and_asks_them_once(world: Any):
    asked: list[int] = []

    async def count(seen: Any) -> Any:
        asked.append(len(asked))
        return [user(f"try {len(asked)}")]

    session = await world.open([fail(), say("ok")], registry=bringing(before_request=[count]))
    chat = await session.conversation("a")
    assert (await world.running((await chat.submit("go")).wait())).text == "ok"
    assert [text_of(request.messages[0]) for request in requests(world)] == ["try 1", "try 1"]


@pytest.mark.invariant("HX-13")
@pytest.mark.parametrize("said", ["text", [], ["no message"], [user("")], 7])
async def test_messages_that_no_provider_takes_are_passed_over_and_reported(world: Any, said: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=bringing(before_request=[lambda seen: said]))
    chat = await session.conversation("a")
    assert (await (await chat.submit("go")).wait()).text == "ok"
    assert [text_of(message) for message in requests(world)[0].messages] == ["go"]
    assert (await chat.failures())["x.before_request"]["times"] == 1


# -- after_response, on_yield -------------------------------------------------------------------


@pytest.mark.invariant("HX-15")
async def test_after_response_observes_each_committed_answer(world: Any):
    seen: list[Any] = []
    session = await world.open(
        by_round(answer(call("look")), say("done")), registry=bringing(after_response=[seen.append])
    )
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    await world.until(lambda: len(seen) == 2)
    stored = [entry.id async for entry in chat.history() if entry.kind == "perdure.assistant"][::-1]
    assert [each.entry for each in seen] == stored
    assert [each.round for each in seen] == [0, 1]


@pytest.mark.invariant("HX-14")
async def test_on_yield_goes_on_with_a_user_message_in_the_commit_of_the_answer(world: Any):
    async def once(seen: Any) -> Any:
        return "and the tests?" if text_of(seen.message) == "done" else None

    script = by_prompt({"and the tests?": say("they pass"), "go": say("done")})
    session = await world.open(script, registry=bringing(on_yield=[once]))
    chat = await session.conversation("a")
    changes: list[Any] = []
    session.observe(changes.append)
    settled = await (await chat.submit("go")).wait()

    assert settled.text == "they pass"
    kinds = [[entry.kind for entry in change.entries] for change in changes if change.entries]
    assert kinds == [["perdure.user"], ["perdure.assistant", "perdure.user"], ["perdure.assistant"]]


@pytest.mark.invariant("HX-14")
async def test_on_yield_for_ever_ends_at_the_limit_of_rounds(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=bringing(on_yield=[lambda seen: "go on"]))
    chat = await session.conversation("a")
    await chat.configure(max_rounds=4)
    assert (await (await chat.submit("go")).wait()).reason == "limit"
    assert len(requests(world)) == 4


async def test_a_crash_while_on_yield_is_asked_repeats_the_request_and_asks_again(world: Any):
    asked: list[int] = []
    gate = asyncio.Event()

    async def wait(seen: Any) -> Any:
        asked.append(1)
        await gate.wait()

    session = await world.open(by_prompt({"": say("ok")}), registry=bringing(on_yield=[wait]))
    sent = await (await session.conversation("a")).submit("go")
    await world.until(lambda: asked)
    session = await world.restart()
    gate.set()
    assert (await session.submission(sent.id).wait()).text == "ok"
    assert len(asked) == 2


# -- after_tool, after_tools --------------------------------------------------------------------


async def test_after_tool_may_replace_a_result_and_each_sees_what_the_one_before_made(world: Any):
    async def hide(seen: Any) -> Any:
        return Replace(seen.text.replace("saw", "***"))

    async def shout(seen: Any) -> Any:
        return Replace(seen.text + "!", error="tool_error" if seen.error else None)

    script = by_round(answer(call("look", {"n": 3}), call("break_down")), say("ok"))
    session = await world.open(script, registry=bringing(after_tool=[hide, shout]))
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    assert [(found.text, found.error) for found in await results(chat)] == [
        ("*** 3!", None),
        ("ValueError: broken!", None),
    ]


@pytest.mark.invariant("HX-15")
async def test_after_tools_observes_every_result_of_a_round_before_the_next_request(world: Any):
    seen: list[Any] = []

    async def watch(done: Any) -> None:
        seen.append((done.round, [(each.name, each.text) for each in done.results], len(requests(world))))

    script = by_round(answer(call("look", {"n": 1}), call("nothing"), call("look", {"n": 2})), say("ok"))
    session = await world.open(script, registry=bringing(after_tools=[watch]))
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    (found,) = seen
    assert (found[0], found[2]) == (0, 1)
    assert [name for name, _ in found[1]] == ["look", "nothing", "look"]
    assert (found[1][0][1], found[1][2][1]) == ("saw 1", "saw 2")


async def test_after_tools_observes_the_last_round_of_a_run_that_ends_at_its_limit(world: Any):
    seen: list[int] = []
    session = await world.open(
        by_prompt({"": answer(call("look"))}), registry=bringing(after_tools=[lambda done: seen.append(done.round)])
    )
    chat = await session.conversation("a")
    await chat.configure(max_rounds=2)
    assert (await (await chat.submit("go")).wait()).reason == "limit"
    assert seen == [0, 1]


# -- before_compact -----------------------------------------------------------------------------


@pytest.mark.parametrize("said", [None, Refuse("not now"), Summary("short"), "nonsense", Summary("")])
async def test_before_compact_may_refuse_or_give_the_summary(world: Any, said: Any):
    session = await world.open(say("ok"), registry=bringing(before_compact=[lambda seen: said]))
    chat = await session.conversation("a")
    harness = chat._harness
    seen = CompactionToDo(conversation=chat.id, reason="manual", messages=(user("old"),))
    found = await before_compact(harness, harness.installed.loadout(Uses()), seen, TaskId(7))
    assert found == (said if said in (Refuse("not now"), Summary("short")) else None)
    assert bool(await chat.failures()) == (said in ("nonsense", Summary("")))


# -- failures -----------------------------------------------------------------------------------


async def raises(seen: Any) -> Any:
    raise ValueError("the rules are gone")


async def leaves(seen: Any) -> Any:
    raise SystemExit(1)


async def cancels(seen: Any) -> Any:
    raise asyncio.CancelledError


def nonsense(seen: Any) -> Any:
    return object()


FAILURES = [
    *((name, hook) for name in ("before_request", "on_yield", "after_tool") for hook in (raises, leaves, cancels)),
    *((name, hook) for name in ("after_response", "after_tools") for hook in (raises, leaves, cancels)),
    *((name, nonsense) for name in ("before_request", "on_yield", "after_tool")),
]


@pytest.mark.invariant("HX-10", "HX-11")
@pytest.mark.parametrize("name, hook", FAILURES)
async def test_a_hook_that_fails_is_reported_and_the_run_goes_on(world: Any, name: str, hook: Callable[[Any], Any]):
    told: list[Any] = []
    world.telemetry.attach("test", ["perdure.hook.failed"], lambda event, sizes, about: told.append(about["hook"]))
    session = await world.open(by_round(answer(call("look")), say("ok")), registry=bringing(**{name: [hook]}))
    chat = await session.conversation("a")
    assert (await (await chat.submit("go")).wait()).text == "ok"
    assert (await results(chat))[0].text == "saw 0"
    await world.until(lambda: chat.failures())
    await world.close()
    assert set(told) == {name}


@pytest.mark.invariant("HX-10")
async def test_a_hook_that_takes_too_long_is_ended_and_the_run_goes_on(world: Any):
    async def sleep(seen: Any) -> Any:
        await asyncio.Event().wait()

    registry = Registry([Extension(name="x", tools=[look], on_yield=[sleep], hook_seconds=5)])
    session = await world.open(by_prompt({"": say("ok")}), registry=registry)
    chat = await session.conversation("a")
    assert (await world.running((await chat.submit("go")).wait())).text == "ok"
    assert "TimeUp" in (await chat.failures())["x.on_yield"]["error"]


@pytest.mark.invariant("HX-10")
async def test_a_hook_that_changes_what_it_sees_changes_nothing(world: Any):
    async def meddle(seen: Any) -> Any:
        for message in seen.messages:
            if not isinstance(message, UserMessage) and hasattr(message, "parts"):
                for part in message.parts:
                    getattr(part, "arguments", {})["n"] = 99

    script = by_round(answer(call("look", {"n": 1})), say("ok"))
    session = await world.open(script, registry=bringing(before_request=[meddle]))
    chat = await session.conversation("a")
    await (await chat.submit("go")).wait()
    assert requests(world)[1].messages[1].parts[0].arguments == {"n": 1}
