"""How a request fails: the kinds, the hints, and nothing secret in what is told."""

from __future__ import annotations

import msgspec
import pytest

from perdure.testing.clock import ManualClock
from perdure.testing.fakes import reply
from perdure.testing.scripted import answer, fail, say

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


def openai(message, *, code=None, type=None):
    return {"error": {"message": message, "type": type or code, "param": None, "code": code}}


def anthropic(type, message):
    return {"type": "error", "error": {"type": type, "message": message}}


FAILURES = {
    "openai": {
        "rate limit": (429, openai("Rate limit reached.", code="rate_limit_exceeded", type="requests"), "rate_limited"),
        "quota": (429, openai("You exceeded your current quota.", code="insufficient_quota"), "quota"),
        "payment": (402, openai("Pay first."), "quota"),
        "wrong key": (401, openai("Incorrect API key provided.", code="invalid_api_key"), "auth"),
        "forbidden": (403, openai("Country not supported."), "auth"),
        "overflow": (
            400,
            openai("This model's maximum context length is 9.", code="context_length_exceeded"),
            "overflow",
        ),
        "overflow of llama-server": (
            400,
            openai(
                "the request exceeds the available context size, try increasing it", type="exceed_context_size_error"
            ),
            "overflow",
        ),
        "overflow of vLLM": (
            400,
            {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400},
            "overflow",
        ),
        "too large": (413, b"<html>Request Entity Too Large</html>", "overflow"),
        "bad request": (400, openai("Unsupported value: 'temperature'.", type="invalid_request_error"), "invalid"),
        "unknown model": (404, openai("The model does not exist.", code="model_not_found"), "invalid"),
        "conflict": (409, openai("Try later."), "retryable"),
        "server error": (500, openai("The server had an error.", type="server_error"), "retryable"),
        "overloaded": (503, openai("That model is currently overloaded."), "retryable"),
        "bad gateway": (502, b"<html><h1>502 Bad Gateway</h1></html>", "retryable"),
        "redirect": (307, b"", "invalid"),
    },
    "anthropic": {
        "rate limit": (429, anthropic("rate_limit_error", "Too many tokens per minute."), "rate_limited"),
        "quota": (400, anthropic("invalid_request_error", "Your credit balance is too low."), "quota"),
        "billing": (402, anthropic("billing_error", "Pay first."), "quota"),
        "wrong key": (401, anthropic("authentication_error", "invalid x-api-key"), "auth"),
        "forbidden": (403, anthropic("permission_error", "No."), "auth"),
        "overflow": (
            400,
            anthropic("invalid_request_error", "prompt is too long: 215000 tokens > 200000 maximum"),
            "overflow",
        ),
        "overflow with the answer": (
            400,
            anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit: 9 + 9 > 10"),
            "overflow",
        ),
        "too large": (413, anthropic("request_too_large", "Request exceeds the maximum size"), "overflow"),
        "bad request": (400, anthropic("invalid_request_error", "max_tokens: required"), "invalid"),
        "unknown model": (404, anthropic("not_found_error", "model: claude-nobody"), "invalid"),
        "server error": (500, anthropic("api_error", "Internal server error"), "retryable"),
        "overloaded": (529, anthropic("overloaded_error", "Overloaded"), "retryable"),
        "bad gateway": (502, b"<html><h1>502 Bad Gateway</h1></html>", "retryable"),
        "redirect": (307, b"", "invalid"),
    },
}


async def test_what_a_vendor_says_tells_what_to_do(wire):
    vendor = wire.vendor.name.partition(":")[0].removesuffix("-chat")
    cases = FAILURES[vendor]
    model = await wire.serve([reply(status, body) for status, body, _ in cases.values()])

    found = {name: (await wire.failure(model)).kind for name in cases}

    assert found == {name: kind for name, (_, _, kind) in cases.items()}
    assert len(wire.server.requests) == len(cases), "nothing is tried twice here"


HINTS = {
    "seconds": ({"retry-after": "20"}, 20.0),
    "HTTP date": ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30.0),
    "milliseconds": ({"retry-after-ms": "1500"}, 1.5),
    "reset of requests": ({"x-ratelimit-reset-requests": "6m0s"}, 360.0),
    "reset of tokens": ({"x-ratelimit-reset-tokens": "20ms", "x-ratelimit-remaining-tokens": "0"}, 0.02),
    "reset of Anthropic": ({"anthropic-ratelimit-requests-reset": "2027-01-15T08:01:00Z"}, 60.0),
    "none": ({}, None),
}


async def test_a_rate_limits_hint_is_taken_in_each_form(wire):
    body = openai("Slow down.", code="rate_limit_exceeded")
    script = [reply(429, body, headers) for headers, _ in HINTS.values()]
    model = await wire.serve([*script, reply(429, openai("Please try again in 1m2.5s."))], clock=ManualClock(start=NOW))

    found = {name: (await wire.failure(model)).after for name in (*HINTS, "in the body")}

    assert found == {name: pytest.approx(after) for name, (_, after) in HINTS.items()} | {
        "in the body": pytest.approx(62.5)
    }


async def test_an_overloaded_server_may_say_when_and_that_a_repetition_will_not_help(wire):
    model = await wire.serve(
        [
            reply(503, {}, {"retry-after": "5"}),
            reply(500, {}, {"x-should-retry": "false"}),
            reply(500, {}, {"x-ratelimit-reset-requests": "9s"}),
        ]
    )

    found = [await wire.failure(model) for _ in range(3)]

    assert [(each.kind, each.after) for each in found] == [("retryable", 5.0), ("invalid", None), ("retryable", None)]


async def test_no_secret_of_an_error_body_goes_on(wire):
    model = await wire.serve([])
    key = wire.server.key
    bodies = [
        openai(f"Incorrect API key provided: {key}. Authorization: Bearer {key}"),
        {"headers": {"Authorization": f"Bearer {key}", "x-api-key": "letmein-987654"}, "trace": f"key={key}"},
        f"<pre>proxy: GET /?key={key}\nX-Api-Key: letmein-987654</pre>".encode(),
        openai("x" * 490 + key + "y" * 100_000),
    ]
    scripted = [reply(status, body) for body in bodies for status in (400, 401, 429, 500)]
    scripted += [answer(say("Once"), fail("retryable", message=f"the key {key} is gone"))]
    model = await wire.serve(scripted, key=key)

    for _ in scripted:
        error = await wire.failure(model)
        assert key not in str(error)
        assert "letmein" not in str(error)
        assert len(str(error)) < 700
        assert error.__cause__ is None
        assert error.__suppress_context__


async def test_nothing_that_is_meant_for_openai_goes_to_another_server(wires, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-meant-for-openai-0123")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-mine")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-of-mine")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway: of-mine\nAuthorization: Bearer of-mine")
    wire = wires("chat")
    await wire.serve(say("Ok."), key="none")
    model = await wire.local(f"{wire.server.url}#qwen3")

    await wire.read(model)

    sent = " ".join(wire.server.requests[0].headers.values())
    assert "of-mine" not in sent
    assert "meant-for-openai" not in sent


async def test_a_misspelt_model_is_told_with_what_may_be_meant(wires):
    wire = wires("responses")
    model = await wire.serve([reply(404, openai("The model does not exist.", code="model_not_found")), reply(500, {})])

    assert "The model does not exist." in str(await wire.failure(model))
    assert str(await wire.failure(model)) == f"{model.name}: 500: the server gave no reason"


async def test_a_server_that_is_not_there_may_be_there_later(wire):
    model = await wire.serve(say("Ok."))
    await wire.server.__aexit__()

    error = await wire.failure(model)

    assert error.kind == "retryable"
    assert "no connection" in str(error)


async def test_a_wrong_key_is_told_with_the_vendors_words(wire):
    model = await wire.serve(say("Ok."))
    wire.server.key = "another"

    error = await wire.failure(model)

    assert error.kind == "auth"
    assert error.after is None
    assert model.name in str(error)
    assert str(error).endswith(f"(the key is read from {wire.vendor.key})")


async def test_what_the_caller_sets_is_sent_but_nothing_makes_it_try_twice(wire):
    model = await wire.serve([reply(500, {}), say("Ok.")], settings={"max_tokens": 123, "max_retries": 5})

    error = await wire.failure(model)

    assert error.kind == "retryable"
    assert len(wire.server.requests) == 1
    sent = wire.server.requests[0].body
    assert 123 in (sent.get("max_tokens"), sent.get("max_output_tokens"), sent.get("max_completion_tokens"))
    assert "max_retries" not in msgspec.json.encode(sent).decode()
