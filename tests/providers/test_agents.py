"""Agents on real adapters, end to end: tools, crashes, rate limits, reasoning and usage, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

import perdure
from perdure.app.opening import open_session, open_storage
from perdure.backends.memory import MemoryStorage
from perdure.harness.submissions import Answered, NotAnswered
from perdure.messages import AssistantMessage, Thinking, ToolMessage, text_of
from perdure.model import Usage
from perdure.telemetry import Telemetry
from perdure.testing.clock import ManualClock
from perdure.testing.fakes import reply
from perdure.testing.scripted import answer, by_round, call, fail, hang, say, think
from perdure.testing.strict import broken_pairs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PATIENCE = 60.0
ROUNDS = by_round(
    answer(
        think("Two cities.", signature="s1"),
        say("I look."),
        call("population", {"city": "Berlin"}, id="same"),
        call("population", {"city": "Paris"}, id="same"),
        call("nobody", {"x": 1}, id="same"),
        usage=Usage(input=100, cache_read=20, output=30, reasoning=5),
    ),
    answer(say("5.7 million."), usage=Usage(input=10, cache_read=120, output=3, reasoning=0)),
)


@perdure.tool(replay="safe")
async def population(city: str) -> str:
    """Population of a city, in millions."""
    return {"Berlin": "3.6", "Paris": "2.1"}[city]


REGISTRY = perdure.Registry([perdure.Extension(name="cities", tools=[population])])


async def entries_of(conversation):
    """Oldest first."""
    return [entry async for entry in conversation.history()][::-1]


async def answer_to(submission):
    """The text of its answer."""
    settled = await asyncio.wait_for(submission.wait(), PATIENCE)
    assert isinstance(settled, Answered), settled
    return settled.text


async def until(condition):
    """Let things go on until it is so, for a bounded time."""
    async with asyncio.timeout(PATIENCE):
        for _ in range(10_000_000):
            if await condition():
                return
            await asyncio.sleep(0)


@pytest.fixture
def point(monkeypatch):
    """Makes the environment name the wire's server, as a user's does."""

    def pointed(wire):
        for name, value in wire.vendor.environment(wire.server).items():
            monkeypatch.setenv(name, value)

    return pointed


async def test_an_agent_calls_its_tools_side_by_side_and_its_usage_is_kept(wire, point, tmp_path):
    await wire.serve(ROUNDS)
    point(wire)
    path = str(tmp_path / "store.db")

    async with perdure.open(path, model=wire.vendor.name, registry=REGISTRY) as session:
        conversation = await session.root()
        submission = await conversation.submit("How many live in Berlin and Paris?")
        assert await answer_to(submission) == "5.7 million."
    async with perdure.open(path, model=wire.vendor.name, registry=REGISTRY) as session:
        conversation = await session.root()
        entries, usage = await entries_of(conversation), (await conversation.usage())["models"][wire.vendor.name]
    assert broken_pairs(entries) == []
    results = {
        message.call: (message.text, message.error)
        for entry in entries
        for message in entry.messages
        if isinstance(message, ToolMessage)
    }
    assert sorted(each for each in results.values() if each[1] is None) == [("2.1", None), ("3.6", None)]
    assert [each[1] for each in results.values() if each[1]] == ["tool_unavailable"]
    cost = usage.pop("cost")
    assert usage["requests"] == 2
    assert usage["unknown"] == 0
    assert [usage[bucket] for bucket in ("input", "cache_read", "output")] == [110, 140, 33]
    assert 0 < cost < 0.1


BROKEN = ['{"city": "Ber', '{"city": "Berlin"}"', '{"city": "Berlin",}', "", "[1]"]


async def test_arguments_that_are_no_json_object_run_nothing_and_the_vendor_takes_what_is_sent_back(wire, point):
    ran = []

    @perdure.tool(replay="safe")
    async def clean(city: str = "all") -> str:
        """Delete what is old."""
        ran.append(city)
        return "cleaned"

    calls = [call("clean", each, id=f"c{at}") for at, each in enumerate(BROKEN)]
    await wire.serve([answer(*calls, call("clean", {"city": "Rome"}, id="good")), say("Ok.")])
    point(wire)

    registry = perdure.Registry([perdure.Extension(name="cleaning", tools=[clean])])
    async with perdure.open("memory:", model=wire.vendor.name, registry=registry) as session:
        conversation = await session.root()
        assert await answer_to(await conversation.submit("Clean Berlin.")) == "Ok."
        entries = await entries_of(conversation)

    # An empty text is how vendors send no arguments, and this tool needs none.
    assert sorted(ran) in (["Rome"], ["Rome", "all"])
    assert broken_pairs(entries) == []
    assert len(wire.server.requests) == 2


async def test_reasoning_goes_back_to_its_own_model_across_a_restart_and_not_to_the_next(wires, point, tmp_path):
    anthropic, openai = wires("anthropic"), wires("responses")
    await anthropic.serve(ROUNDS)
    await openai.serve(say("Hello."))
    point(anthropic)
    point(openai)
    path = str(tmp_path / "store.db")

    async with perdure.open(path, model=anthropic.vendor.name, registry=REGISTRY) as session:
        conversation = await session.root()
        await asyncio.wait_for((await conversation.submit("How many?")).wait(), PATIENCE)
    async with perdure.open(path, model=openai.vendor.name, registry=REGISTRY) as session:
        conversation = await session.root()
        await asyncio.wait_for((await conversation.submit("And now?")).wait(), PATIENCE)
        thoughts = [
            part
            for entry in await entries_of(conversation)
            for message in entry.messages
            if isinstance(message, AssistantMessage)
            for part in message.parts
            if isinstance(part, Thinking)
        ]

    assert [(thought.text, thought.model, thought.complete) for thought in thoughts] == [
        ("Two cities.", anthropic.vendor.name, True)
    ]
    (block,) = [
        block
        for message in anthropic.server.requests[1].body["messages"]
        for block in message["content"]
        if block["type"] == "thinking"
    ]
    assert (block["thinking"], block["signature"]) == ("Two cities.", 'signed:"s1"')
    sent = json.dumps(openai.server.requests[0].body)
    assert "Two cities." not in sent
    assert "s1" not in sent
    assert "5.7 million." in sent


async def test_a_rate_limits_hint_becomes_a_durable_wait_that_a_restart_keeps(wire, tmp_path):
    clock, telemetry = ManualClock(start=1000.0), Telemetry()
    storage = MemoryStorage(clock=clock)
    model = await wire.serve([reply(429, {}, {"retry-after": "90"}), say("Ok.")], clock=clock)

    session = await open_session(storage, "main", clock=clock, telemetry=telemetry, model=model)
    conversation = await session.root()
    submission = await conversation.submit("Hello.")
    await session.resume()

    async def retry():
        return (await conversation.live() or {}).get("retry")

    await until(retry)
    told = await retry()
    await session.close()
    session = await open_session(storage.reopened(), "main", clock=clock, telemetry=telemetry, model=model)
    await session.resume()
    await clock.advance(89)
    assert len(wire.server.requests) == 1
    await clock.advance(11)
    text = await answer_to(session.submission(submission.id))
    usage = (await (await session.root()).usage())["models"][wire.vendor.name]
    await session.close()

    assert told is not None
    assert told["kind"] == "rate_limited"
    assert 1090 <= told["at"] <= 1100
    assert text == "Ok."
    assert len(wire.server.requests) == 2
    assert (usage["requests"], usage["unknown"]) == (2, 2)


AGENT = """
import asyncio, sys
import perdure

async def main():
    path, model = sys.argv[1:]
    async with perdure.open(path, model=model) as session:
        conversation = await session.root()
        sent = await conversation.submit("Tell me a story.")
        while "Once upon a" not in ((await conversation.live()) or {}).get("text", ""):
            await session.until(lambda: True)
            await asyncio.sleep(0)
        print(sent.id, flush=True)
        await sent.wait()

perdure.run(main)
"""


async def test_a_process_that_is_killed_while_an_answer_streams_asks_again_and_keeps_what_was_shown(
    wires, point, tmp_path
):
    wire = wires("chat")
    await wire.serve([answer(say("Once upon a "), hang()), say("There was a king.")])
    point(wire)
    path = str(tmp_path / "store.db")

    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, path, wire.vendor.name, stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    assert agent.stdout is not None
    sent = int(await asyncio.wait_for(agent.stdout.readline(), PATIENCE))
    agent.kill()
    await agent.wait()
    await asyncio.wait_for(wire.server.until(lambda: wire.server.dropped), PATIENCE)
    async with perdure.open(path, model=wire.vendor.name) as session:
        text = await answer_to(session.submission(sent))
        conversation = await session.root()
        entries = await entries_of(conversation)
        usage = (await conversation.usage())["models"][wire.vendor.name]

    assert text == "There was a king."
    answers = [message for entry in entries for message in entry.messages if isinstance(message, AssistantMessage)]
    assert [(text_of(each), each.stop) for each in answers] == [
        ("Once upon a ", "interrupted"),
        ("There was a king.", "stop"),
    ]
    assert len(wire.server.requests) == 2
    assert (usage["requests"], usage["unknown"]) == (2, 2)
    assert broken_pairs(entries) == []


async def test_no_key_is_in_the_store(wire, point, tmp_path):
    await wire.serve([reply(401, {"error": {"message": "wrong key"}}), say("Ok.")])
    wire.server.key = "sk-a-key-that-must-not-be-kept-0123"
    point(wire)
    path = tmp_path / "store.db"

    async with perdure.open(str(path), model=wire.vendor.name) as session:
        conversation = await session.root()
        for _ in range(2):
            await asyncio.wait_for((await conversation.submit("Hello.")).wait(), PATIENCE)

    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert b"Hello." in stored
    assert b"must-not-be-kept" not in stored


async def test_a_session_opens_and_closes_without_its_models_package_or_key(monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    storage = await open_storage(str(tmp_path / "store.db"), ManualClock(), Telemetry())

    session = await open_session(
        storage, "main", clock=ManualClock(), telemetry=Telemetry(), model="openai:gpt-6.1-terra"
    )
    settled = await asyncio.wait_for((await (await session.root()).submit("Hello.")).wait(), PATIENCE)
    await session.close()
    await storage.close()

    assert isinstance(settled, NotAnswered)
    assert settled.reason == "no_model"
    assert "OPENAI_API_KEY" in (settled.detail or "")


async def test_a_context_that_the_vendor_refuses_is_summarised_and_sent_again_once(wire, point):
    """It says so in its own way; the summary comes from the same model, and counts (H26, H34)."""
    asked = []

    def script(request):
        texts = [text_of(message) for message in request.messages]
        asked.append("summary" if "<record>" in texts[-1] else len(texts))
        if asked[-1] == "summary":
            return answer(say("They spoke of numbers."), usage=Usage(input=50, output=5))
        return fail("overflow") if len(texts) > 4 else answer(say("Ok."), usage=Usage(input=10, output=1))

    await wire.serve(script)
    point(wire)
    async with perdure.open("memory:", model=wire.vendor.name) as session:
        chat = await session.root()
        for number in range(3):
            assert await answer_to(await chat.submit(f"The number is {number}.")) == "Ok."
        kinds = [entry.kind for entry in await entries_of(chat)]
        usage = (await chat.usage())["models"][wire.vendor.name]
    assert asked[:4] == [1, 3, 5, "summary"]
    assert asked[4:] in ([3], [4])  # some take two user messages as one
    assert kinds.count("perdure.compaction") == 1
    assert (usage["requests"], usage["input"]) == (5, 80)
