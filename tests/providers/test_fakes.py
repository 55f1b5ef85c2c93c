"""The fakes refuse what the real ones refuse, and understand the rest."""

from __future__ import annotations

import pytest

from perdure.messages import AssistantMessage, Image, Text, ToolCall, ToolMessage, UserMessage, user
from perdure.testing.fakes import FakeAnthropic, FakeOpenAI, Seen
from perdure.testing.fakes.http import Refused

CALL = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c1", "name": "pay", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "paid"}
ITEM = {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "paid"}


def said(*blocks, role="user"):
    return {"role": role, "content": list(blocks) or "Hi."}


def chat(*messages, key=None):
    server = FakeOpenAI([])
    body = {"model": "m", "stream": True, "messages": list(messages)}
    headers = {"authorization": f"Bearer {key or server.key}"}
    return server.prepare(Seen("POST", "/v1/chat/completions", headers, body))


def responses(*items):
    server = FakeOpenAI([])
    body = {"model": "m", "stream": True, "input": list(items)}
    return server.prepare(Seen("POST", "/v1/responses", {"authorization": f"Bearer {server.key}"}, body))


def anthropic(*messages, **more):
    server = FakeAnthropic([])
    body = {"model": "m", "stream": True, "messages": list(messages), **more}
    headers = {"x-api-key": server.key, "anthropic-version": "2026-10-21"}
    return server.prepare(Seen("POST", "/v1/messages", headers, body))


MARKED = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
REFUSED = {
    "a wrong key": lambda: chat(said(), key="another"),
    "chat: a call without its result": lambda: chat(said(), {"role": "assistant", "tool_calls": [CALL]}),
    "chat: a call that something else follows": lambda: chat(
        said(), {"role": "assistant", "tool_calls": [CALL]}, said()
    ),
    "chat: a result without its call": lambda: chat(said(), {"role": "tool", "tool_call_id": "c1", "content": "paid"}),
    "chat: nothing said": lambda: chat({"role": "user", "content": ""}),
    "responses: a call without its result": lambda: responses(said(), ITEM),
    "responses: a result without its call": lambda: responses(said(), OUTPUT),
    "responses: a call twice": lambda: responses(said(), ITEM, ITEM, OUTPUT),
    "responses: reasoning of another": lambda: responses(
        said(), {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "not ours"}
    ),
    "anthropic: an answer first": lambda: anthropic(said(role="assistant"), said()),
    "anthropic: an answer last": lambda: anthropic(said(), said(role="assistant")),
    "anthropic: two turns of one": lambda: anthropic(said(), said()),
    "anthropic: a call without its result": lambda: anthropic(said(), said(USE, role="assistant"), said()),
    "anthropic: a result without its call": lambda: anthropic(said(RESULT)),
    "anthropic: a result twice": lambda: anthropic(said(), said(USE, role="assistant"), said(RESULT, RESULT)),
    "anthropic: a result after a text": lambda: anthropic(
        said(), said(USE, role="assistant"), said({"type": "text", "text": "a"}, RESULT)
    ),
    "anthropic: blank text": lambda: anthropic(said({"type": "text", "text": " "})),
    "anthropic: nothing": lambda: anthropic({"role": "user", "content": []}),
    "anthropic: unsigned thinking": lambda: anthropic(
        said(), said({"type": "thinking", "thinking": "hm", "signature": ""}, role="assistant"), said()
    ),
    "anthropic: five markers": lambda: anthropic(said(*[MARKED] * 5)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_the_vendor_would_refuse_is_refused(name):
    with pytest.raises(Refused) as caught:
        REFUSED[name]()

    assert caught.value.status == (401 if name == "a wrong key" else 400)
    assert caught.value.body["error"]["message"]


ASKED = (
    UserMessage(parts=(Text(text="Pay."), Image(media_type="image/png", base64="aGk="))),
    AssistantMessage(parts=(Text(text="I pay."), ToolCall(name="pay", arguments={}, provider_id="c1"))),
    ToolMessage(call="c1", name="pay", text="paid"),
    user("And?"),
)
UNDERSTOOD = {
    "chat": lambda: chat(
        said(
            {"type": "text", "text": "Pay."}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
        ),
        {"role": "assistant", "content": "I pay.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "paid"},
        {"role": "user", "content": "And?"},
    ),
    "responses": lambda: responses(
        said(
            {"type": "input_text", "text": "Pay."}, {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
        ),
        {"role": "assistant", "content": "I pay."},
        ITEM,
        OUTPUT,
        {"role": "user", "content": "And?"},
    ),
    "anthropic": lambda: anthropic(
        said(
            {"type": "text", "text": "Pay."},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        ),
        said({"type": "text", "text": "I pay."}, USE, role="assistant"),
        said(RESULT, {"type": "text", "text": "And?"}),
    ),
}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_a_request_is_understood_as_it_was_meant(name):
    assert UNDERSTOOD[name]().messages == ASKED
