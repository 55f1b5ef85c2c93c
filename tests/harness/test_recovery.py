"""After the process died (K27, K46, H12, H19, I08, I11, I21, I25)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import AssistantMessage, ToolMessage, text_of
from perdure.session.transaction import entry_kind
from perdure.testing.faults import Relay
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, by_round, call, hang, say
from perdure.testing.strict import StrictModel, broken_pairs

pytestmark = pytest.mark.anyio
NOTE = entry_kind("test.note")


class Effects:
    """Tools whose effects outlive the process; each waits for its gate after its effect."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gate = asyncio.Event()

        @tool(replay="safe")
        async def look(call: Any, n: int = 0) -> str:
            """Look, which can be repeated."""
            self.log.append(f"look {n}")
            call.output(f"looking {n}\n")
            await self.gate.wait()
            return f"saw {n}"

        @tool
        async def pay(call: Any, n: int = 0) -> str:
            """Pay, once."""
            self.log.append(f"pay {n}")
            call.output(f"paying {n}\n")
            await self.gate.wait()
            return f"paid {n}"

        self.look, self.pay = look, pay


async def results(chat: Any) -> list[ToolMessage]:
    found = [
        message async for entry in chat.history() for message in entry.messages if isinstance(message, ToolMessage)
    ]
    return sorted(found, key=lambda message: [int(part) for part in message.call.split(".")])


async def interrupted(world: Any, effects: Effects, *calls: Any, seconds: float = 0.0, **changed: Any) -> Any:
    """A round of these calls, whose process dies in the middle; and the conversation when it was answered after all."""
    session = await world.open(by_round(answer(*calls), say("ok")), effects.look, effects.pay)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: len(effects.log) == len(calls))
    if seconds:
        await world.clock.advance(seconds)
        await world.until(lambda: shown(chat))
    session = await world.restart(**changed)
    effects.gate.set()
    assert (await session.submission(sent.id).wait()).text == "ok"
    return await session.conversation("a")


async def says(chat: Any, text: str) -> bool:
    live = await chat.live()
    return live is not None and live["text"] == text


async def shown(chat: Any) -> bool:
    """Every running call has shown something."""
    live = await chat.live()
    return live is not None and bool(live["tools"]) and all(slot["output"] for slot in live["tools"].values())


@pytest.mark.invariant("HA-20")
async def test_an_unsafe_call_that_may_have_happened_is_never_repeated(world: Any):
    effects = Effects()
    chat = await interrupted(world, effects, call("pay"))
    (found,) = await results(chat)
    assert effects.log == ["pay 0"]
    assert found.error == "interrupted"
    assert "unknown" in found.text


@pytest.mark.invariant("HA-21")
async def test_a_safe_call_runs_again_with_its_stored_arguments(world: Any):
    effects = Effects()
    chat = await interrupted(world, effects, call("look", {"n": 7}))
    (found,) = await results(chat)
    assert effects.log == ["look 7", "look 7"]
    assert (found.error, found.text) == (None, "saw 7")


async def test_each_call_of_a_round_is_settled_once(world: Any):
    effects = Effects()
    chat = await interrupted(world, effects, call("pay", {"n": 1}), call("look", {"n": 2}), call("pay", {"n": 3}))
    found = await results(chat)
    assert sorted(effects.log) == ["look 2", "look 2", "pay 1", "pay 3"]
    assert [message.error for message in found] == ["interrupted", None, "interrupted"]


async def test_what_an_interrupted_call_had_shown_is_kept(world: Any):
    effects = Effects()
    chat = await interrupted(world, effects, call("pay"), seconds=0.2)
    (found,) = await results(chat)
    assert "paying 0" in found.text


async def test_finished_results_are_kept_and_the_others_filled_in(world: Any):
    """I11: three calls, one result, kill; the next request is valid."""
    effects = Effects()

    @tool
    async def quick() -> str:
        """Quick."""
        return "quick"

    round = answer(call("quick"), call("pay", {"n": 1}), call("pay", {"n": 2}))
    session = await world.open(by_prompt({"go": [round, say("ok")], "continue": say("fine")}), quick, effects.pay)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: len(effects.log) == 2 and len(session.inspect().tasks) == 3)
    session = await world.restart()
    assert (await session.submission(sent.id).wait()).text == "ok"
    chat = await session.conversation("a")
    assert [message.error for message in await results(chat)] == [None, "interrupted", "interrupted"]
    assert (await (await chat.submit("continue")).wait()).text == "fine"


async def test_safe_counts_only_when_the_tool_is_safe_at_the_intent_and_now(world: Any):
    """H19."""
    effects = Effects()

    @tool(name="look")
    async def unsafe_now(n: int = 0) -> str:
        """Not safe any more."""
        effects.log.append("unsafe")
        return "never"

    chat = await interrupted(world, effects, call("look"), registry=Registry([Extension(name="x", tools=[unsafe_now])]))
    (found,) = await results(chat)
    assert (effects.log, found.error) == (["look 0"], "interrupted")


async def test_a_tool_that_became_safe_does_not_make_the_old_intent_so(world: Any):
    effects = Effects()

    @tool(name="pay", replay="safe")
    async def safe_now(n: int = 0) -> str:
        """Safe now."""
        effects.log.append("again")
        return "never"

    chat = await interrupted(world, effects, call("pay"), registry=Registry([Extension(name="x", tools=[safe_now])]))
    (found,) = await results(chat)
    assert (effects.log, found.error) == (["pay 0"], "interrupted")


async def test_a_tool_that_vanished_counts_as_unsafe(world: Any):
    effects = Effects()
    chat = await interrupted(world, effects, call("look"), registry=Registry())
    (found,) = await results(chat)
    assert (effects.log, found.error) == (["look 0"], "interrupted")


async def test_a_tool_uninstalled_between_intent_and_execution_was_not_run(world: Any):
    """I20: the pending call to a vanished tool settles as unavailable."""
    first = asyncio.Event()

    @tool(sequential=True)
    async def elder() -> str:
        """First."""
        await first.wait()
        return "ok"

    @tool(sequential=True)
    async def younger() -> str:
        """Second."""
        return "never"

    session = await world.open(by_round(answer(call("elder"), call("younger")), say("ok")), elder, younger)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: any(t.label == "elder" and t.state == "running" for t in session.inspect().tasks))
    await session.install(Registry([Extension(name="x", tools=[elder])]))
    first.set()
    assert (await sent.wait()).text == "ok"
    assert [message.error for message in await results(chat)] == [None, "tool_unavailable"]


async def test_a_clean_close_in_the_middle_of_an_effect_is_an_interruption_too(world: Any):
    """K7: close writes no outcome."""
    effects = Effects()
    session = await world.open(by_round(call("pay"), say("ok")), effects.pay)
    sent = await (await session.conversation("a")).submit("go")
    await world.until(lambda: effects.log)
    await world.close()
    session = await world.reopen()
    assert (await session.submission(sent.id).wait()).text == "ok"
    (found,) = await results(await session.conversation("a"))
    assert (effects.log, found.error) == (["pay 0"], "interrupted")


@pytest.mark.invariant("HA-22")
async def test_the_committed_part_of_an_answer_is_kept_as_interrupted_and_the_request_repeated(world: Any):
    """H12, K46: the lost attempt is counted, its use is unknown."""
    session = await world.open(answer(say("half an"), hang()))
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: world.strict[-1].inner.asked)
    await world.clock.advance(0.2)
    await world.until(lambda: says(chat, "half an"))
    session = await world.restart(model=StrictModel(ScriptedModel(say("a whole answer"))))
    assert (await session.submission(sent.id).wait()).text == "a whole answer"
    chat = await session.conversation("a")
    found = [entry.messages[0] async for entry in chat.history()][::-1]
    assert [text_of(message) for message in found] == ["go", "half an", "a whole answer"]
    assert isinstance(found[1], AssistantMessage)
    assert found[1].stop == "interrupted"
    usage = (await chat.usage())["models"]["scripted"]
    assert (usage["requests"], usage["unknown"]) == (2, 2)


@pytest.mark.invariant("HA-22")
async def test_a_lost_attempt_is_told_of_by_the_recovery_commit_and_once(world: Any):
    """K46: whoever opens the session sees it before anything starts, and it is not told again when the request is."""
    session = await world.open(answer(say("half an"), hang()))
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: world.strict[-1].inner.asked)
    await world.clock.advance(0.2)
    await world.until(lambda: says(chat, "half an"))
    for lost in (1, 1):  # opened twice: what was told is told
        session = await world.restart(model=StrictModel(ScriptedModel(say("a whole answer"))))
        chat = await session.conversation("a")
        assert [text_of(entry.messages[0]) async for entry in chat.history()] == ["half an", "go"]
        assert (await chat.usage())["models"]["scripted"] == {"requests": lost, "unknown": lost}
    assert (await session.submission(sent.id).wait()).text == "a whole answer"
    assert (await chat.usage())["models"]["scripted"]["requests"] == 2


async def test_a_session_closes_while_a_transcript_is_read_ahead(world: Any):
    session = await world.open(say("ok"))
    chat = await session.conversation("a")
    await (await chat.submit("one")).wait()
    await world.close()
    session = await world.reopen(model=StrictModel(ScriptedModel(say("ok"))))
    chat = await session.conversation("a")
    sent = await chat.submit("two")
    await world.close()
    session = await world.reopen(model=StrictModel(ScriptedModel(say("ok"))))
    assert (await session.submission(sent.id).wait()).text == "ok"


async def test_a_recovered_request_is_the_same_request(world: Any):
    """H11: model, offered tools and cut-off are pinned, whatever is installed, configured or written meanwhile."""

    @tool
    async def late() -> str:
        """Late."""
        return ""

    effects = Effects()
    session = await world.open(hang(), effects.look)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.until(lambda: world.strict[-1].inner.asked)
    first = world.strict[-1].inner.requests[-1]
    await chat.configure(model="other", tools=[])
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data="written meanwhile", heads_itself=True)

    second = StrictModel(ScriptedModel(say("ok")))
    session = await world.restart(model=second, registry=Registry([Extension(name="x", tools=[effects.look, late])]))
    assert (await session.submission(sent.id).wait()).text == "ok"
    again = second.inner.requests[0]  # type: ignore[attr-defined]
    assert (again.messages, again.tools, again.model) == (first.messages, first.tools, first.model)


@pytest.mark.invariant("HA-23")
@pytest.mark.parametrize("kept", [False, True], ids=["lost", "kept"])
@pytest.mark.parametrize("at", [pytest.param(n, marks=pytest.mark.slow if n % 4 else ()) for n in range(1, 17)])
async def test_wherever_the_process_dies_all_is_settled_nothing_unsafe_repeated_and_the_transcript_valid(
    world: Any, at: int, kept: bool
):
    """From the n-th commit on the store says nothing any more; that one it may still have kept."""
    log: list[str] = []
    world.wrap = lambda storage: Dying(storage, at, kept)
    session = await world.open(SCRIPT, *logging_tools(log))
    accepted: list[int] = []

    async def live() -> None:
        chat = await session.conversation("a")
        for text in ("go", "and"):
            accepted.append((await chat.submit(text, request_id=text)).id)
        await chat.wait_idle()

    living = asyncio.ensure_future(live())
    await world.until(lambda: world.storage.dead or living.done())
    for _ in range(20):
        await asyncio.sleep(0)
    await world.crash()

    world.wrap = lambda storage: storage
    session = await world.reopen()
    chat = await session.conversation("a")
    accepted += [(await chat.submit(text, request_id=text)).id for text in ("go", "and")]
    await chat.wait_idle()
    assert len(set(accepted)) == 2
    assert [await session.submission(id).status() for id in sorted(set(accepted))] == ["done", "done"]
    assert all(log.count(f"pay {n}") <= 1 for n in (1, 2, 3))
    assert broken_pairs([entry async for entry in chat.history()]) == []
    assert session.inspect().tasks == []
    assert session.inspect().submissions == []


class Dying(Relay):
    """Acknowledges nothing from the n-th commit on; keeps that one, if asked to."""

    def __init__(self, inner: Any, at: int, kept: bool) -> None:
        super().__init__(inner)
        self.left, self.kept = at, kept

    @property
    def dead(self) -> bool:
        return self.left <= 0

    def commit(self, claim: Any, batch: Any) -> Any:
        self.left -= 1
        if self.left > 0:
            return self.inner.commit(claim, batch)
        if self.left == 0 and self.kept:
            self.inner.commit(claim, batch)
        return asyncio.get_running_loop().create_future()


SCRIPT = by_prompt(
    {
        "go": [
            answer(say("Let me see."), call("pay", {"n": 1}), call("look", {"n": 1}), call("pay", {"n": 2})),
            answer(call("look", {"n": 2}), call("pay", {"n": 3})),
            say("ok"),
        ],
        "": say("more"),
    }
)


def logging_tools(log: list[str]) -> list[Any]:
    @tool(replay="safe")
    async def look(n: int) -> str:
        """Look."""
        log.append(f"look {n}")
        return f"saw {n}"

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        log.append(f"pay {n}")
        return f"paid {n}"

    return [look, pay]
