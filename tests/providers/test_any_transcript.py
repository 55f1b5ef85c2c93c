"""Whatever a transcript holds, each vendor takes the request that is made of it (K14, I11 to I22)."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.harness.context import render
from perdure.messages import AssistantMessage, Image, Text, Thinking, ToolCall, ToolMessage, UserMessage, call_key
from perdure.model import Finished, Request, ToolSpec
from perdure.providers.vendors import open_model
from perdure.records import ROOT, Entry, EntryId, Seq
from perdure.testing.fakes import FakeAnthropic, FakeOpenAI
from perdure.testing.scripted import ScriptedModel, say

pytestmark = pytest.mark.slow

NAMES = {
    "openai:gpt-6.1-terra": (FakeOpenAI, "OPENAI_BASE_URL", "sealed:"),
    "openai-chat:gpt-6.1-terra": (FakeOpenAI, "OPENAI_BASE_URL", ""),
    "anthropic:claude-sonnet-5-5": (FakeAnthropic, "ANTHROPIC_BASE_URL", "signed:"),
}
TOOL = ToolSpec(name="pay", description="", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})

texts = st.sampled_from(["", " ", "\n", "hello", "wörld 😀", "<system>hi</system>", "<|im_end|>", "a\n\nb"])
calls = st.builds(
    ToolCall,
    name=st.sampled_from(["pay", "", "no such tool", "x" * 90]),
    arguments=st.none() | st.dictionaries(st.sampled_from("ab"), st.integers() | st.text(max_size=3), max_size=2),
    raw=st.none() | st.just('{"a'),
    provider_id=st.none() | st.just("call 1!"),
)
pictures = st.builds(
    Image,
    media_type=st.sampled_from(["image/png", "image/svg+xml"]),
    base64=st.sampled_from(["", "!", base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()]),
)
inputs = st.builds(UserMessage, parts=st.lists(st.builds(Text, text=texts) | pictures, max_size=3).map(tuple))
results = st.builds(
    ToolMessage,
    call=st.builds(call_key, st.integers(1, 7), st.integers(0, 2)),
    name=st.just("pay"),
    text=texts,
    error=st.none() | st.just("interrupted"),
)


def thoughts(name: str, seal: str) -> st.SearchStrategy[Thinking]:
    """As the adapter makes them, and as it never does."""
    piece = st.fixed_dictionaries(
        {"size": st.integers(0, 9), "id": st.sampled_from(["rs_1", "rs_2", "reasoning_content"])},
        optional={"signature": st.just(f'{seal}"s"')},
    )
    provider = name.partition(":")[0].removesuffix("-chat")
    made = st.fixed_dictionaries({"provider": st.just(provider), "parts": st.lists(piece, max_size=2)})
    kept = {"kind": "text", "at": 0, "details": {"phase": "commentary"}}
    strange = st.sampled_from(["s", None, {}, {"provider": provider, "kept": [kept]}])
    return st.builds(
        Thinking, text=texts, model=st.sampled_from([name, "another"]), signature=made | strange, complete=st.booleans()
    )


def transcripts(name: str, seal: str) -> st.SearchStrategy[list[Entry]]:
    parts = st.lists(st.builds(Text, text=texts) | calls | thoughts(name, seal), max_size=4).map(tuple)
    stops = st.sampled_from(["stop", "tool_calls", "length", "aborted", "interrupted"])
    answers = st.builds(AssistantMessage, parts=parts, stop=stops, model=st.just(name))
    listed = st.lists(st.lists(answers | results | inputs, max_size=2).map(tuple), max_size=7)
    return listed.map(
        lambda every: [
            Entry(id=EntryId(id), conversation=ROOT, kind="test", seq=Seq(id), at=0.0, messages=messages)
            for id, messages in enumerate(every, 1)
        ]
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_vendor_takes_what_is_made_of_any_transcript(name: str) -> None:
    fake, variable, seal = NAMES[name]
    server: Any = fake(ScriptedModel(say("Ok."), keep=1))

    async def ask(model: Any, entries: list[Entry]) -> None:
        messages = render(entries, model=name)
        request = Request(model=name, messages=messages, tools=(TOOL,), system="Be brief.")
        assert isinstance([event async for event in model.stream(request)][-1], Finished)

    with asyncio.Runner() as runner:
        runner.run(server.__aenter__())
        model = open_model(name, key=server.key, environment={variable: server.url})

        @settings(max_examples=80)
        @given(transcripts(name, seal))
        def taken(entries: list[Entry]) -> None:
            runner.run(ask(model, entries))

        taken()
        runner.run(model.aclose())
        runner.run(server.__aexit__())
