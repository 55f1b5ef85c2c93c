"""The front of requests (H16): stored once, changed by notes, rendered anew at a head."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.app.opening import open_session
from perdure.backends.memory import MemoryStorage
from perdure.harness.registry import Extension, Registry, section, tool
from perdure.harness.stored import FRONT
from perdure.messages import UserMessage, text_of, user
from perdure.session.transaction import EntryKind
from perdure.telemetry import Telemetry
from perdure.testing.clock import ManualClock
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, call, hang, say

pytestmark = pytest.mark.anyio
TOOLS = ("look", "turn", "push", "pull")


def made(name: str, text: str = "A tool.") -> Any:
    async def function(n: int = 0) -> str:
        return "done"

    function.__doc__ = text
    return tool(name=name)(function)


def registry(sections: dict[str, str], tools: Any = (), **more: Any) -> Registry:
    parts = [section(name, text) for name, text in sections.items()]
    given_tools = [made(each) if isinstance(each, str) else each for each in tools]
    return Registry([Extension(name="x", sections=parts, tools=given_tools), *more.get("others", ())])


def requests(world: Any) -> list[Any]:
    return world.strict[-1].inner.requests


def front(request: Any) -> tuple[str, list[str]]:
    return request.system, [spec.name for spec in request.tools]


def extends(later: Any, earlier: Any) -> bool:
    """Whether a provider that cached the earlier request finds all of it at the front of the later one."""

    def bytes_of(items: Any) -> list[bytes]:
        return [msgspec.json.encode(item) for item in items]

    messages, before = bytes_of(later.messages), bytes_of(earlier.messages)
    tools, sent = bytes_of(later.tools), bytes_of(earlier.tools)
    return later.system == earlier.system and tools[: len(sent)] == sent and messages[: len(before)] == before


async def newest(chat: Any, kind: str) -> Any:
    async for entry in chat.history():
        if entry.kind == kind:
            return entry
    raise AssertionError(f"no {kind}")


async def ask(chat: Any, text: str = "go") -> None:
    await (await chat.submit(text)).wait()


@pytest.mark.invariant("HP-1")
async def test_a_section_that_changes_is_told_in_a_note_and_the_front_stays(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=registry({"role": "You sell.", "tone": "Be kind."}))
    chat = await session.conversation("a")
    await ask(chat)
    await session.install(registry({"role": "You buy.", "new": "Be quick."}))
    await ask(chat)

    first, second = requests(world)
    assert first.system == second.system == "You sell.\n\nBe kind."
    assert extends(second, first)
    told = text_of(second.messages[-1])
    assert 'Section "role" now is:\nYou buy.' in told
    assert 'Section "new" now is:\nBe quick.' in told
    assert 'Section "tone" is taken back.' in told
    await ask(chat)
    assert len(requests(world)[2].messages) == len(second.messages) + 2  # nothing changed: no further note


@pytest.mark.invariant("HP-2")
async def test_new_tools_stand_behind_the_others_and_removed_ones_are_refused_and_said_so(world: Any):
    script = by_prompt({"first": say("ok"), "second": [answer(call("look"), call("push")), say("ok")]})
    session = await world.open(script, registry=registry({}, ["look", "turn"]))
    chat = await session.conversation("a")
    await ask(chat, "first")
    await session.install(registry({}, ["push", "turn"]))
    await ask(chat, "second")

    first, second, _ = requests(world)
    assert (front(first)[1], front(second)[1]) == (["look", "turn"], ["look", "turn", "push"])
    assert extends(second, first)
    assert "New tools: push." in text_of(second.messages[-1])
    assert "refused: look." in text_of(second.messages[-1])
    found = [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"][::-1]
    assert [(result.name, result.error) for result in found] == [("look", "tool_unavailable"), ("push", None)]
    assert "no longer available" in found[0].text


async def test_the_front_survives_a_restart_and_code_that_is_gone(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=registry({"role": "You sell."}, ["look"]))
    await ask(await session.conversation("a"))
    before = requests(world)[0]
    session = await world.restart(registry=registry({}, []))
    chat = await session.conversation("a")
    await ask(chat)

    after = requests(world)[-1]
    assert extends(after, before)
    assert [spec.description for spec in after.tools] == ["A tool."]


async def test_a_changed_description_is_told_and_changed_parameters_render_the_front_anew(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=registry({}, ["look"]))
    chat = await session.conversation("a")
    await ask(chat)
    await session.install(registry({}, [made("look", "Look twice.")]))
    await ask(chat)

    @tool(name="look")
    async def other(far: bool) -> str:
        """Look."""
        return "saw"

    await session.install(registry({}, [other]))
    await ask(chat)

    first, second, third = requests(world)
    assert extends(second, first)
    assert "Look twice." in text_of(second.messages[-1])
    assert list(third.tools[0].parameters["properties"]) == ["far"]
    assert not any("Look twice." in text_of(message) for message in third.messages if isinstance(message, UserMessage))


@pytest.mark.invariant("HP-3")
async def test_a_head_renders_the_front_anew_and_notes_from_before_are_not_sent(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=registry({"role": "one"}))
    chat = await session.conversation("a")
    await ask(chat)
    await session.install(registry({"role": "two"}))
    await ask(chat)
    kept = await newest(chat, "perdure.prompt")
    async with chat.commit() as tx:  # as a compaction does that keeps the note
        tx.append(chat.id, EntryKind("test.head"), messages=(user("summary"),), head=kept.id)
    await ask(chat)
    await ask(chat)

    systems = [request.system for request in requests(world)]
    assert systems == ["one", "one", "two", "two"]
    assert "now is" not in "".join(text_of(message) for message in requests(world)[2].messages)
    assert extends(requests(world)[3], requests(world)[2])


async def test_a_section_may_be_a_function_of_conversation_settings_and_day(world: Any):
    parts = [section("who", lambda scope: f"{scope.conversation} {scope.settings.max_rounds} {scope.day}")]
    session = await world.open(by_prompt({"": say("ok")}), registry=Registry([Extension(name="x", sections=parts)]))
    chat = await session.conversation("a")
    await chat.configure(max_rounds=7)
    await ask(chat)
    await world.clock.advance(86_400.0)
    await ask(chat)

    first, second = requests(world)
    assert first.system == f"{chat.id} 7 1970-01-01"
    assert "1970-01-02" in text_of(second.messages[-1])


async def test_a_section_that_fails_stays_what_it_was_and_is_reported(world: Any):
    fails: list[bool] = []

    def text(scope: Any) -> str:
        if fails:
            raise ValueError("no text today")
        return "fine"

    parts = [section("a", text), section("b", "rest")]
    session = await world.open(by_prompt({"": say("ok")}), registry=Registry([Extension(name="x", sections=parts)]))
    chat = await session.conversation("a")
    await ask(chat)
    fails.append(True)
    await ask(chat)

    assert [request.system for request in requests(world)] == ["fine\n\nrest", "fine\n\nrest"]
    assert len(requests(world)[1].messages) == 3
    assert (await chat.failures())["section a"]["error"] == "ValueError: no text today"


async def test_instructions_of_a_conversation_lie_over_the_sessions(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), instructions="for all")
    chat, other = await session.conversation("a"), await session.conversation("b")
    await chat.configure(instructions="for a")
    await ask(chat)
    await ask(other)
    await chat.configure(instructions="for a, later")
    await ask(chat)

    assert [request.system for request in requests(world)] == ["for a", "for all", "for a"]
    assert "for a, later" in text_of(requests(world)[2].messages[-1])


async def test_a_fork_keeps_the_front_that_it_was_forked_with(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=registry({"role": "one"}, ["look"]))
    chat = await session.conversation("a")
    await ask(chat)
    at = await newest(chat, "perdure.assistant")
    await session.install(registry({"role": "two"}, ["look", "turn"]))
    await ask(chat)
    child = await chat.fork(at.id)
    await ask(child)

    first, _, third = requests(world)
    assert extends(third, first)
    assert "two" in text_of(third.messages[-1])


async def test_a_fork_that_does_not_see_a_note_does_not_rely_on_it(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=registry({"role": "one"}))
    chat = await session.conversation("a")
    await ask(chat)
    await session.install(registry({"role": "two"}))
    await ask(chat)
    asked = await newest(chat, "perdure.user")  # before the note
    child = await chat.fork(asked.id)
    await ask(child)

    assert requests(world)[2].system == "two"


async def test_a_request_that_an_older_version_pinned_is_sent_as_it_would_be_now(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=registry({"role": "one"}, ["look"]))
    chat = await session.conversation("a")
    await ask(chat)
    async with chat.commit() as tx:  # a store from before this document
        draft = await tx.doc(FRONT)
        draft.clear()
    await session.install(registry({"role": "two"}, ["look"]))
    await ask(chat)

    assert front(requests(world)[1]) == ("two", ["look"])


async def test_a_recovered_request_is_the_same_request_though_the_code_changed(world: Any):
    session = await world.open([hang()], registry=registry({"role": "one"}, ["look"]))
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: requests(world))
    before = requests(world)[0]
    again = ScriptedModel([say("ok")], clock=world.clock)
    session = await world.restart(registry=registry({"role": "two"}, ["look", "turn"]), model=again)
    await session.submission(sent.id).wait()

    assert front(again.requests[0]) == front(before) == ("one", ["look"])
    assert again.requests[0].messages == before.messages


@pytest.mark.invariant("HP-4")
async def test_the_front_costs_no_commit_and_nothing_while_nothing_changes(world: Any):
    session = await world.open(
        by_prompt({"": [answer(call("look"))] * 5 + [say("ok")]}), registry=registry({"r": "x" * 5000}, ["look"])
    )
    chat = await session.conversation("a")
    changes: list[Any] = []
    session.observe(changes.append)
    await ask(chat)
    await ask(chat)

    touched = [change for change in changes for document in change.documents if document.record.kind == "perdure.front"]
    assert len(touched) == 1
    assert len(touched[0].entries) == 1  # with the input


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("section"), st.sampled_from("abc"), st.sampled_from(["", "one", "two"])),
        st.tuples(st.just("tools"), st.sets(st.sampled_from(TOOLS)), st.just("")),
        st.tuples(st.just("head"), st.just(""), st.just("")),
        st.tuples(st.just("restart"), st.just(""), st.just("")),
    ),
    max_size=24,
)


@pytest.mark.slow
@pytest.mark.invariant("HP-1")
@settings(max_examples=25)
@given(steps=STEPS)
async def test_every_request_extends_the_one_before_except_at_heads(steps: list[Any]):
    """Over fifty rounds: what a provider has cached is found again, whatever becomes of sections and tools."""
    clock, telemetry = ManualClock(start=1000.0), Telemetry()
    storage = MemoryStorage(clock=clock)
    model = ScriptedModel(lambda request: say("ok"), clock=clock)
    texts, tools = {"a": "base"}, {"look"}

    async def opened() -> Any:
        session = await open_session(
            storage.reopened(),
            "main",
            clock=clock,
            telemetry=telemetry,
            model=model,
            registry=registry(texts, sorted(tools)),
        )
        return session, await session.conversation("a")

    session, chat = await opened()
    heads: set[int] = set()
    for at in range(50):
        what, which, text = steps[at // 2] if at % 2 and at // 2 < len(steps) else ("", "", "")
        if what == "section":
            texts = {**texts, which: text}
        elif what == "tools":
            tools = set(which)
        elif what == "head":
            heads.add(at)
            await (await chat.reset()).wait()
        if what == "restart":
            await session.close()
            storage = storage.reopened()
            session, chat = await opened()
        elif what:
            await session.install(registry({name: text for name, text in texts.items() if text}, sorted(tools)))
        await ask(chat, f"round {at}")
    await session.close()

    sent = model.requests
    assert len(sent) == 50
    for at in range(1, 50):
        assert at in heads or extends(sent[at], sent[at - 1]), at
    now = {name: text for name, text in texts.items() if text}
    assert all(f'"{name}" now is:\n{text}' in seen(sent[-1]) or text in sent[-1].system for name, text in now.items())


def seen(request: Any) -> str:
    return "\n".join(text_of(message) for message in request.messages)
