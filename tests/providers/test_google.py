"""Google's Gemini API through the same adapter: its stream, its signatures on calls, its errors."""

from __future__ import annotations

import json

import pytest

from perdure.errors import ModelError
from perdure.harness.answer import Answer
from perdure.messages import ToolMessage, calls_of, user
from perdure.model import CallStart, Finished, Request, ToolSpec, Usage
from perdure.providers.vendors import open_model
from perdure.testing.fakes import reply
from perdure.testing.fakes.http import FakeServer, event

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NAME = "google:gemini-3.8-flash"
LOOKUP = ToolSpec(
    name="lookup",
    description="Population of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


class Gemini(FakeServer):
    """As much of it as carries whole replies."""

    paths = frozenset({"/v1/models/gemini-3.8-flash:streamGenerateContent"})

    def prepare(self, seen):
        assert seen.headers["x-goog-api-key"] == self.key
        return Request(model=NAME, messages=(user("as sent"),))

    async def encode(self, events, seen):
        async for _ in events:
            yield b""


def chunk(*parts, finish=None, **usage):
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    candidate |= {"finishReason": finish} if finish else {}
    return event({"candidates": [candidate], "responseId": "r1", **({"usageMetadata": usage} if usage else {})})


CALLING = b"".join(
    [
        chunk({"text": "Let me see.", "thought": True}),
        chunk({"text": "I look."}),
        chunk({"functionCall": {"name": "lookup", "args": {"city": "Berlin"}}, "thoughtSignature": "c2lnbmVk"}),
        chunk(
            {"functionCall": {"name": "lookup", "args": {"city": "Paris"}}},
            finish="STOP",
            promptTokenCount=120,
            cachedContentTokenCount=20,
            candidatesTokenCount=30,
            thoughtsTokenCount=5,
            totalTokenCount=155,
        ),
    ]
)


@pytest.fixture
async def gemini():
    async with Gemini([]) as server:
        model = open_model(NAME, environment={"GEMINI_API_KEY": server.key, "GOOGLE_GEMINI_BASE_URL": server.url})
        yield server, model
        await model.aclose()


def script(server, *replies):
    server.model = type(server)(list(replies)).model


async def read(model, *messages):
    request = Request(model=NAME, messages=messages or (user("Hello."),), tools=(LOOKUP,))
    return [each async for each in model.stream(request)]


async def test_calls_thinking_usage_and_signatures_come_and_go_back(gemini):
    server, model = gemini
    script(server, reply(200, CALLING), reply(200, chunk({"text": "5.7 million."}, finish="STOP")))

    events = await read(model)
    collected = Answer(NAME)
    for each in events:
        collected.add(each)
    said = collected.message()
    results = [ToolMessage(call=call.provider_id or "", name=call.name, text="3") for call in calls_of(said)]
    await read(model, user("Hello."), said, *results)

    assert [each.name for each in events if isinstance(each, CallStart)] == ["lookup", "lookup"]
    assert events[-1] == Finished(
        "tool_calls", Usage(input=100, cache_read=20, cache_write=0, output=30, reasoning=5, cost=events[-1].usage.cost)
    )
    assert [call.arguments for call in calls_of(said)] == [{"city": "Berlin"}, {"city": "Paris"}]
    sent = [part for content in server.requests[1].body["contents"] for part in content["parts"]]
    calls = [part for part in sent if "functionCall" in part]
    assert [part.get("thoughtSignature") for part in calls] == ["c2lnbmVk", None]


async def test_a_stream_without_a_reason_to_end_is_cut(gemini):
    server, model = gemini
    script(server, reply(200, chunk({"text": "Once"})))

    assert not any(isinstance(each, Finished) for each in await read(model))


FAILURES = {
    "per minute": (429, "RESOURCE_EXHAUSTED", [{"retryDelay": "14s"}], ("rate_limited", 14.0)),
    "per day": (
        429,
        "RESOURCE_EXHAUSTED",
        [{"violations": [{"quotaId": "RequestsPerDayPerProject"}]}],
        ("quota", None),
    ),
    "wrong key": (400, "INVALID_ARGUMENT", [{"reason": "API_KEY_INVALID"}], ("auth", None)),
    "overloaded": (503, "UNAVAILABLE", [], ("retryable", None)),
    "bad request": (400, "INVALID_ARGUMENT", [], ("invalid", None)),
}


async def test_its_errors_tell_what_to_do(gemini):
    server, model = gemini
    bodies = [
        reply(status, {"error": {"code": status, "status": code, "message": f"no {server.key}", "details": details}})
        for status, code, details, _ in FAILURES.values()
    ]
    long = "The input token count (2000000) exceeds the maximum number of tokens allowed (1000000)."
    overflow = {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": long}}
    script(server, *bodies, reply(400, overflow))

    found = []
    for _ in range(len(bodies) + 1):
        with pytest.raises(ModelError) as caught:
            await read(model)
        found.append((caught.value.kind, caught.value.after))
        assert server.key not in str(caught.value)

    assert found == [expected for *_, expected in FAILURES.values()] + [("overflow", None)]
    assert len(server.requests) == len(found), "nothing is tried twice here"
    assert json.dumps(server.requests[0].body)
