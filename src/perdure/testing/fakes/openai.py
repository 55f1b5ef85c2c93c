"""A fake of OpenAI: Chat Completions and Responses, both streamed, and as strict as the real one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from perdure.errors import ModelError
from perdure.messages import AssistantMessage, Image, Message, Text, ToolCall, ToolMessage, UserMessage, UserPart
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

_PING = b": ping\n\n"
_DONE = b"data: [DONE]\n\n"
_FINISH = {"stop": "stop", "tool_calls": "tool_calls", "length": "length", "refusal": "content_filter"}
_ERRORS: Mapping[str, tuple[int, str, str]] = {
    "rate_limited": (429, "rate_limit_exceeded", "Rate limit reached for requests."),
    "quota": (429, "insufficient_quota", "You exceeded your current quota, please check your plan and billing."),
    "overflow": (400, "context_length_exceeded", "This model's maximum context length is 8192 tokens."),
    "auth": (401, "invalid_api_key", "Incorrect API key provided."),
    "invalid": (400, "invalid_request_error", "The request is not valid."),
}


class FakeOpenAI(FakeServer):
    """OpenAI on loopback: `async with FakeOpenAI(script) as server`, then `OPENAI_BASE_URL=server.url`.

    It refuses what OpenAI refuses: a wrong key, calls without results and results without calls, reasoning that this
    server did not encrypt. See `FakeServer` for scripts.
    """

    paths = frozenset({"/v1/chat/completions", "/v1/responses"})
    _base = "/v1"

    def prepare(self, seen: Seen) -> Request:
        if seen.headers.get("authorization") != f"Bearer {self.key}":
            raise self.refusal(ModelError(_ERRORS["auth"][2], kind="auth"))
        body = checked_body(seen)
        if body is None:
            raise _refused("this server only streams: set stream to true")
        wrong = list(_wrong_items(body) if "input" in body else _wrong_messages(body))
        wrong += [
            f"the encrypted content of {item.get('id')} could not be verified"
            for item in body.get("input", ())
            if item.get("type") == "reasoning" and not str(item.get("encrypted_content")).startswith("sealed:")
        ]
        if wrong:
            raise _refused("; ".join(wrong))
        return _request(body)

    def encode(self, events: AsyncIterator[Any], seen: Seen) -> AsyncIterator[bytes]:
        return _responses(events, seen) if "input" in seen.body else _chat(events, seen)

    def refusal(self, error: ModelError) -> Refused:
        status, code, said = _ERRORS.get(error.kind, (500, "server_error", "The server had an error."))
        headers = {} if error.after is None else {"retry-after-ms": str(int(error.after * 1000))}
        message = said if str(error) == "the script fails here" else str(error)
        return Refused(status, {"error": {"message": message, "type": code, "param": None, "code": code}}, headers)

    def interruption(self, error: ModelError, seen: Seen) -> bytes:
        body = self.refusal(error).body["error"]
        if "input" in seen.body:
            return event({"type": "error", "code": body["code"], "message": body["message"], "param": None}, "error")
        return event({"error": body})

    def listing(self, seen: Seen) -> Mapping[str, Any] | None:
        if seen.path.partition("?")[0] != "/v1/models":
            return None
        return {"object": "list", "data": [{"id": self.model.name, "object": "model", "owned_by": "perdure"}]}


def _refused(message: str) -> Refused:
    code = "invalid_request_error"
    return Refused(400, {"error": {"message": message, "type": code, "param": None, "code": code}})


# -- Chat Completions ---------------------------------------------------------------------------


async def _chat(events: AsyncIterator[ModelEvent], seen: Seen) -> AsyncIterator[bytes]:
    model = seen.body["model"]

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({**_chunk(model), "choices": [choice]})

    async for each in events:
        match each:
            case TextDelta(text):
                yield chunk({"role": "assistant", "content": text})
            case ThinkingDelta(text=text):
                if text:
                    yield chunk({"role": "assistant", "reasoning_content": text})
            case CallStart(index, name, provider_id):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": provider_id or f"call_{index}", "type": "function", "function": function}
                yield chunk({"role": "assistant", "tool_calls": [call]})
            case CallDelta(index, arguments):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
            case Heartbeat():
                yield _PING
            case Finished(stop, usage):
                yield chunk({}, _FINISH[stop])
                options: Any = seen.body.get("stream_options") or {}
                if usage is not None and options.get("include_usage"):
                    yield event({**_chunk(model), "choices": [], "usage": _chat_usage(usage)})
                yield _DONE
                return
    raise EOFError


def _chunk(model: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}


def _chat_usage(usage: Usage) -> dict[str, Any]:
    total = (usage.input or 0) + (usage.cache_read or 0) + (usage.cache_write or 0)
    said = (usage.output or 0) + (usage.reasoning or 0)
    told: dict[str, Any] = {"prompt_tokens": total, "completion_tokens": said, "total_tokens": total + said}
    if usage.cache_read is not None:
        written = {} if usage.cache_write is None else {"cache_write_tokens": usage.cache_write}
        told["prompt_tokens_details"] = {"cached_tokens": usage.cache_read, **written}
    if usage.reasoning is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return told


# -- Responses ----------------------------------------------------------------------------------


class _Output:
    """The output items of a response while it streams: one is open at a time."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.items: list[dict[str, Any]] = []
        self.sequence = 0
        self.open: dict[str, Any] | None = None

    def say(self, kind: str, **fields: Any) -> bytes:
        self.sequence += 1
        return event({"type": kind, "sequence_number": self.sequence, **fields}, kind)

    def whole(self, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_700_000_000,
            "status": status,
            "model": self.model,
            "output": self.items if status != "in_progress" else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            **fields,
        }

    def begin(self, item: dict[str, Any]) -> Iterator[bytes]:
        yield from self.end()
        self.open = item
        self.items.append(item)
        yield self.say("response.output_item.added", output_index=self.at, item=item)

    def end(self) -> Iterator[bytes]:
        item, self.open = self.open, None
        if item is None:
            return
        if item["type"] == "function_call":
            yield self.say(
                "response.function_call_arguments.done",
                item_id=item["id"],
                output_index=self.at,
                name=item["name"],
                arguments=item["arguments"],
            )
        yield self.say("response.output_item.done", output_index=self.at, item={**item, "status": "completed"})

    @property
    def at(self) -> int:
        return len(self.items) - 1

    def is_open(self, type: str) -> bool:
        return self.open is not None and self.open["type"] == type


async def _responses(events: AsyncIterator[ModelEvent], seen: Seen) -> AsyncIterator[bytes]:
    out = _Output(seen.body["model"])
    begun = False
    async for each in events:
        if isinstance(each, Heartbeat):
            yield _PING
            continue
        if not begun:
            begun = True
            yield out.say("response.created", response=out.whole("in_progress"))
        for piece in _item(each, out):
            yield piece
        if isinstance(each, Finished):
            return
    raise EOFError


def _item(each: ModelEvent, out: _Output) -> Iterator[bytes]:
    number = len(out.items)
    match each:
        case TextDelta(text):
            if not out.is_open("message"):
                item = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "in_progress"}
                yield from out.begin({**item, "content": []})
            yield _delta(out, "response.output_text.delta", content_index=0, delta=text, logprobs=[])
        case ThinkingDelta():
            yield from _reasoning(each, out, number)
        case CallStart(index, name, provider_id):
            item = {"id": f"fc_{number}", "type": "function_call", "call_id": provider_id or f"call_{index}"}
            yield from out.begin({**item, "name": name, "arguments": "", "status": "in_progress"})
        case CallDelta(_, arguments):
            assert out.open is not None
            out.open["arguments"] += arguments
            yield _delta(out, "response.function_call_arguments.delta", delta=arguments)
        case Finished(stop, usage):
            yield from out.end()
            told = None if usage is None else _response_usage(usage)
            if stop in ("length", "refusal"):
                reason = "max_output_tokens" if stop == "length" else "content_filter"
                whole = out.whole("incomplete", usage=told, incomplete_details={"reason": reason})
                yield out.say("response.incomplete", response=whole)
            else:
                yield out.say("response.completed", response=out.whole("completed", usage=told))
        case Heartbeat():
            pass


def _reasoning(each: ThinkingDelta, out: _Output, number: int) -> Iterator[bytes]:
    if not out.is_open("reasoning"):
        yield from out.begin({"id": f"rs_{number}", "type": "reasoning", "summary": [], "encrypted_content": None})
        part = {"type": "summary_text", "text": ""}
        yield _delta(out, "response.reasoning_summary_part.added", summary_index=0, part=part)
    if each.text:
        yield _delta(out, "response.reasoning_summary_text.delta", summary_index=0, delta=each.text)
    assert out.open is not None
    if each.signature is not None:
        out.open["encrypted_content"] = f"sealed:{json.dumps(each.signature)}"
    if each.done:
        yield from out.end()


def _delta(out: _Output, kind: str, **fields: Any) -> bytes:
    assert out.open is not None
    return out.say(kind, item_id=out.open["id"], output_index=out.at, **fields)


def _response_usage(usage: Usage) -> dict[str, Any]:
    total = (usage.input or 0) + (usage.cache_read or 0) + (usage.cache_write or 0)
    said = (usage.output or 0) + (usage.reasoning or 0)
    return {
        "input_tokens": total,
        "input_tokens_details": {"cached_tokens": usage.cache_read or 0, "cache_write_tokens": usage.cache_write or 0},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": total + said,
    }


# -- what OpenAI refuses, and what was asked ----------------------------------------------------


def _wrong_messages(body: Mapping[str, Any]) -> Iterator[str]:
    open_calls: list[str] = []
    for at, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                yield f"messages[{at}]: no message before it has the tool call {message['tool_call_id']}"
            else:
                open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            yield f"messages[{at}]: no tool message answered {', '.join(open_calls)}"
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        if not message.get("content") and not open_calls:
            yield f"messages[{at}]: it is empty"
        for call in message.get("tool_calls") or ():
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                yield f"messages[{at}]: the arguments of {call['id']} are no object"
    if open_calls:
        yield f"no tool message answered {', '.join(open_calls)}"


def _wrong_items(body: Mapping[str, Any]) -> Iterator[str]:
    calls = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    results = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
    yield from (f"no tool output found for function call {id}" for id in calls if id not in results)
    yield from (f"no tool call found for function call output {id}" for id in results if id not in calls)
    yield from (f"the call {id} stands there twice" for id in set(calls) if calls.count(id) > 1)


def _request(body: Mapping[str, Any]) -> Request:
    """What was asked, as a request of the port: scripts choose by it."""
    listed = body.get("input", body.get("messages"))
    items: list[Any] = [{"role": "user", "content": listed}] if isinstance(listed, str) else list(listed or ())
    system = [_text(item["content"]) for item in items if item.get("role") in ("system", "developer")]
    if body.get("instructions"):
        system.insert(0, body["instructions"])
    return Request(
        model=body["model"],
        messages=tuple(_messages(items)),
        system="\n\n".join(system),
        tools=tuple(_tool(tool) for tool in body.get("tools") or ()),
    )


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    spec = tool.get("function", tool)
    return ToolSpec(name=spec["name"], description=spec.get("description") or "", parameters=spec["parameters"])


def _messages(items: list[Any]) -> Iterator[Message]:
    parts: list[Text | ToolCall] = []  # of the answer that is being put together
    names: dict[str, str] = {}
    for item in [*items, {"role": "end"}]:
        kind = item.get("type")
        if item.get("role") == "assistant" and (text := _text(item.get("content"))):
            parts.append(Text(text=text))
        calls: Any = item.get("tool_calls") or ([item] if kind == "function_call" else ())
        for call in calls:
            asked, id = call.get("function", call), call.get("call_id") or call["id"]
            names[id] = asked["name"]
            parts.append(ToolCall(name=asked["name"], arguments=json.loads(asked["arguments"]), provider_id=id))
        if item.get("role") == "assistant" or kind in ("function_call", "reasoning"):
            continue
        if parts:
            yield AssistantMessage(parts=tuple(parts))
            parts = []
        if kind == "function_call_output" or item.get("role") == "tool":
            id = item.get("call_id") or item["tool_call_id"]
            text = _text(item.get("output", item.get("content")))
            yield ToolMessage(call=id, name=names.get(id, ""), text=text)
        elif item.get("role") == "user":
            yield UserMessage(parts=tuple(_user_parts(item["content"])))


def _user_parts(content: Any) -> Iterator[UserPart]:
    if isinstance(content, str):
        yield Text(text=content)
        return
    for part in content:
        if "text" in part:
            yield Text(text=part["text"])
        else:
            url: Any = part["image_url"]
            text: str = url if isinstance(url, str) else url["url"]
            head, _, data = text.partition(";base64,")
            yield Image(media_type=head.removeprefix("data:"), base64=data)


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part.get("text", "") for part in content)
