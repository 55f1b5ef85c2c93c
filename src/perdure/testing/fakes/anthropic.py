"""A fake of Anthropic: the Messages API, streamed, and as strict as the real one."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from perdure.errors import ModelError
from perdure.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
)
from perdure.model import (
    CallDelta,
    CallStart,
    Finished,
    Heartbeat,
    ModelEvent,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolSpec,
    Usage,
)
from perdure.testing.fakes.http import FakeServer, Refused, Seen, checked_body, event

_STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "refusal": "refusal"}
_ERRORS: Mapping[str, tuple[int, str, str]] = {
    "rate_limited": (429, "rate_limit_error", "This request would exceed the rate limit for your organization."),
    "quota": (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
    "overflow": (400, "invalid_request_error", "prompt is too long: 215000 tokens > 200000 maximum"),
    "auth": (401, "authentication_error", "invalid x-api-key"),
    "invalid": (400, "invalid_request_error", "The request is not valid."),
    "retryable": (529, "overloaded_error", "Overloaded"),
}
_ID = re.compile(r"[A-Za-z0-9_-]+")
#: What the real one takes of cache markers in one request.
MOST_MARKERS = 4


class FakeAnthropic(FakeServer):
    """Anthropic on loopback: `async with FakeAnthropic(script) as server`, then `ANTHROPIC_BASE_URL=server.url`.

    It refuses what Anthropic refuses: a wrong key, turns that do not alternate, calls whose results do not follow at
    once, thinking that this server did not sign, more than four cache markers. See `FakeServer` for scripts.
    """

    paths = frozenset({"/v1/messages"})

    def prepare(self, seen: Seen) -> Request:
        # The SDK sends a key as one or the other, by its form.
        if self.key not in (
            seen.headers.get("x-api-key"),
            seen.headers.get("authorization", "").removeprefix("Bearer "),
        ):
            raise self.refusal(ModelError(_ERRORS["auth"][2], kind="auth"))
        if "anthropic-version" not in seen.headers:
            raise _refused("anthropic-version: header is required")
        body = checked_body(seen)
        if body is None:
            raise _refused("this server only streams: set stream to true")
        wrong = [*_wrong_turns(body), *_wrong_blocks(body)]
        if wrong:
            raise _refused("; ".join(wrong))
        return _request(body)

    def encode(self, events: AsyncIterator[Any], seen: Seen) -> AsyncIterator[bytes]:
        return _stream(events, seen.body["model"])

    def refusal(self, error: ModelError) -> Refused:
        status, type, said = _ERRORS.get(error.kind, (500, "api_error", "Internal server error"))
        headers = {} if error.after is None else {"retry-after": str(int(error.after))}
        message = said if str(error) == "the script fails here" else str(error)
        return Refused(status, {"type": "error", "error": {"type": type, "message": message}}, headers)

    def interruption(self, error: ModelError, seen: Seen) -> bytes:
        return event(self.refusal(error).body, "error")


def _refused(message: str) -> Refused:
    return Refused(400, {"type": "error", "error": {"type": "invalid_request_error", "message": message}})


# -- the stream ---------------------------------------------------------------------------------


class _Blocks:
    """The content blocks of an answer: one is open at a time."""

    def __init__(self) -> None:
        self.index = -1
        self.open: str | None = None

    def begin(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self.end()
        self.index += 1
        self.open = block["type"]
        yield _event("content_block_start", index=self.index, content_block=block)

    def delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self.index, delta=delta)

    def end(self) -> Iterator[bytes]:
        if self.open is not None:
            self.open = None
            yield _event("content_block_stop", index=self.index)


async def _stream(events: AsyncIterator[ModelEvent], model: str) -> AsyncIterator[bytes]:
    blocks = _Blocks()
    begun = False
    async for each in events:
        if isinstance(each, Heartbeat):
            yield _event("ping")
            continue
        if not begun:
            begun = True
            yield _event("message_start", message=_message(model))
        if isinstance(each, Finished):
            for piece in blocks.end():
                yield piece
            delta = {"stop_reason": _STOPS[each.stop], "stop_sequence": None}
            yield _event("message_delta", delta=delta, usage=_usage(each.usage))
            yield _event("message_stop")
            return
        for piece in _block(each, blocks):
            yield piece
    raise EOFError


def _block(each: ModelEvent, blocks: _Blocks) -> Iterator[bytes]:
    match each:
        case TextDelta(text):
            if blocks.open != "text":
                yield from blocks.begin({"type": "text", "text": ""})
            yield blocks.delta(type="text_delta", text=text)
        case ThinkingDelta(text, signature, done):
            if not text and signature is not None and blocks.open != "thinking":
                yield from blocks.begin({"type": "redacted_thinking", "data": _signed(signature)})
            else:
                if blocks.open != "thinking":
                    yield from blocks.begin({"type": "thinking", "thinking": "", "signature": ""})
                if text:
                    yield blocks.delta(type="thinking_delta", thinking=text)
                if signature is not None:
                    yield blocks.delta(type="signature_delta", signature=_signed(signature))
            if done:
                yield from blocks.end()
        case CallStart(index, name, provider_id):
            id = provider_id or f"toolu_{index}"
            yield from blocks.begin({"type": "tool_use", "id": id, "name": name, "input": {}})
        case CallDelta(_, arguments):
            yield blocks.delta(type="input_json_delta", partial_json=arguments)
        case Heartbeat() | Finished():
            pass


def _signed(signature: Any) -> str:
    return f"signed:{json.dumps(signature)}"


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _message(model: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _usage(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {"output_tokens": 0}
    told = {
        "input_tokens": usage.input,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
    }
    known: dict[str, Any] = {name: count for name, count in told.items() if count is not None}
    known["output_tokens"] = (usage.output or 0) + (usage.reasoning or 0)
    if usage.reasoning is not None:
        known["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return known


# -- what Anthropic refuses, and what was asked -------------------------------------------------


def _wrong_turns(body: Mapping[str, Any]) -> Iterator[str]:
    messages = body["messages"]
    if not messages or messages[0]["role"] != "user":
        yield "messages: first message must use the user role"
    if messages and messages[-1]["role"] != "user":
        yield "messages: the conversation must end with a user message"
    asked: list[str] = []
    for at, message in enumerate(messages):
        if at and message["role"] == messages[at - 1]["role"]:
            yield f"messages.{at}: roles must alternate"
        blocks = _blocks(message)
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        yield from (
            f"messages.{at}: tool_use {id} has no tool_result right after it" for id in asked if id not in answered
        )
        yield from (f"messages.{at}: unexpected tool_use_id {id}" for id in answered if id not in asked)
        if len(set(answered)) < len(answered):
            yield f"messages.{at}: a tool_use has two results"
        first = [block["type"] == "tool_result" for block in blocks]
        if first != sorted(first, reverse=True):
            yield f"messages.{at}: tool_result blocks must come first"
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]


def _wrong_blocks(body: Mapping[str, Any]) -> Iterator[str]:
    for at, message in enumerate(body["messages"]):
        blocks = _blocks(message)
        if not blocks:
            yield f"messages.{at}: content must not be empty"
        for block in blocks:
            if block["type"] == "text" and not block["text"].strip():
                yield f"messages.{at}: text content blocks must contain non-whitespace text"
            signature = {"thinking": "signature", "redacted_thinking": "data"}.get(block["type"])
            if signature and not str(block.get(signature)).startswith("signed:"):
                yield f"messages.{at}: invalid `signature` in `{block['type']}` block"
            if block["type"] == "tool_use" and not (_ID.fullmatch(block["id"]) and isinstance(block["input"], dict)):
                yield f"messages.{at}: tool_use {block['id']!r} is not valid"
    if len(markers(body)) > MOST_MARKERS:
        yield f"a maximum of {MOST_MARKERS} blocks with cache_control may be provided"


def markers(body: Mapping[str, Any]) -> list[str]:
    """Where a request has cache markers: "tools.2", "system.0", "messages.4.1", or "request" for all of it."""
    found = ["request"] if "cache_control" in body else []
    for name in ("tools", "system"):
        listed = body.get(name)
        found += [f"{name}.{at}" for at, each in enumerate(listed or ()) if "cache_control" in each]
    for at, message in enumerate(body["messages"]):
        found += [f"messages.{at}.{n}" for n, block in enumerate(_blocks(message)) if "cache_control" in block]
    return found


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _request(body: Mapping[str, Any]) -> Request:
    """What was asked, as a request of the port: scripts choose by it."""
    system = body.get("system") or ""
    return Request(
        model=body["model"],
        messages=tuple(_messages(body)),
        system=system if isinstance(system, str) else "\n\n".join(block["text"] for block in system),
        tools=tuple(
            ToolSpec(name=tool["name"], description=tool.get("description") or "", parameters=tool["input_schema"])
            for tool in body.get("tools") or ()
        ),
    )


def _messages(body: Mapping[str, Any]) -> Iterator[Message]:
    names: dict[str, str] = {}
    for message in body["messages"]:
        said: list[UserPart] = []
        answer: list[Text | Thinking | ToolCall] = []
        for block in _blocks(message):
            if block["type"] == "tool_result":
                text = "".join(part.get("text", "") for part in _blocks(block))
                error = "tool_error" if block.get("is_error") else None
                id = block["tool_use_id"]
                yield ToolMessage(call=id, name=names.get(id, ""), text=text, error=error)
            elif block["type"] == "tool_use":
                names[block["id"]] = block["name"]
                answer.append(ToolCall(name=block["name"], arguments=block["input"], provider_id=block["id"]))
            elif block["type"] == "image":
                source = block["source"]
                said.append(Image(media_type=source["media_type"], base64=source["data"]))
            elif block["type"] == "text":
                (said if message["role"] == "user" else answer).append(Text(text=block["text"]))
        if said:
            yield UserMessage(parts=tuple(said))
        if message["role"] == "assistant":
            yield AssistantMessage(parts=tuple(answer))
