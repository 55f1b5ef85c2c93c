"""Streams of servers that are not quite what their API says."""

from __future__ import annotations

import pytest

from perdure.model import Finished, TextDelta, ToolSpec
from perdure.testing.fakes import reply
from perdure.testing.fakes.http import event

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LOOKUP = ToolSpec(name="lookup", description="", parameters={"type": "object", "properties": {}})


def text_of(events):
    return "".join(each.text for each in events if isinstance(each, TextDelta))


def chunk(delta, finish=None, **fields):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(
        {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **fields}
    )


def typed(type, **fields):
    return event({"type": type, **fields}, type)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
@pytest.mark.parametrize("piece", [1, 2, 1000])
async def test_a_mark_of_the_byte_order_before_a_stream_is_no_part_of_it(wires, piece, kind):
    wire = wires("chat")
    body = b"\xef\xbb\xbf" + chunk({"content": "Hi"}) + chunk({"content": "."}, "stop")
    model = await wire.serve([reply(200, body, {"content-type": kind})], piece=piece)

    assert text_of(await wire.read(model)) == "Hi."


def claude(*, start, end):
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], **start}
    return (
        typed("message_start", message=message)
        + typed("content_block_start", index=0, content_block={"type": "text", "text": ""})
        + typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi."})
        + typed("content_block_stop", index=0)
        + typed("message_delta", delta={"stop_reason": "end_turn"}, **end)
        + typed("message_stop")
    )


COUNTS = {"input_tokens": 3, "output_tokens": 5}


@pytest.mark.parametrize(
    "start, end, used",
    [
        ({}, {"usage": COUNTS}, (3, 5)),
        ({"usage": None}, {"usage": COUNTS}, (3, 5)),
        ({}, {"usage": {"output_tokens": 5}}, None),
        ({}, {}, None),
        ({"usage": {"input_tokens": 3, "output_tokens": 0}}, {}, (3, 0)),
        ({"usage": {"input_tokens": 3, "output_tokens": 0}}, {"usage": {"output_tokens": 5}}, (3, 5)),
    ],
)
async def test_a_server_that_speaks_as_anthropic_may_leave_the_usage_out(wires, start, end, used):
    wire = wires("anthropic")
    model = await wire.serve([reply(200, claude(start=start, end=end))])

    events = await wire.read(model)

    assert text_of(events) == "Hi."
    assert isinstance(events[-1], Finished)
    usage = events[-1].usage
    assert (None if usage is None else (usage.input, usage.output)) == used


@pytest.mark.parametrize("details", [{"cached_tokens": "x"}, [1], "x", {"cached_tokens": -4}])
async def test_odd_details_of_a_usage_are_left_out_without_a_warning(wires, details, recwarn):
    wire = wires("chat")
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "prompt_tokens_details": details}
    model = await wire.serve([reply(200, chunk({"content": "Hi."}, "stop", usage=usage))])

    events = await wire.read(model)
    assert text_of(events) == "Hi."
    assert (events[-1].usage.input, events[-1].usage.output) == (10, 3)
    assert [str(each.message) for each in recwarn.list] == []


@pytest.mark.parametrize("usage", [{"prompt_tokens": "x", "completion_tokens": None}, {"prompt_tokens": 1.5}, [], 7])
async def test_a_usage_that_counts_nothing_is_unknown_without_a_warning(wires, usage, recwarn):
    wire = wires("chat")
    model = await wire.serve([reply(200, chunk({"content": "Hi."}, "stop", usage=usage))])

    events = await wire.read(model)
    assert text_of(events) == "Hi."
    assert events[-1] == Finished("stop", None)
    assert [str(each.message) for each in recwarn.list] == []


@pytest.mark.parametrize("first", [0, 1])
async def test_a_nameless_call_after_a_named_one_is_a_failure(wires, first):
    wire = wires("chat")
    named = {"index": first, "id": "a", "function": {"name": "lookup", "arguments": "{}"}}
    nameless = {"index": 1 - first, "id": "b", "function": {"arguments": "{}"}}
    model = await wire.serve([reply(200, chunk({"tool_calls": [named, nameless]}) + chunk({}, "tool_calls"))])

    error = await wire.failure(model, wire.request(tools=(LOOKUP,)))

    assert (error.kind, str(error)) == ("retryable", "the model called a tool without saying which")


async def test_a_nameless_call_before_a_named_one_is_a_failure(wires):
    wire = wires("chat")
    calls = [
        {"index": 0, "id": "b", "function": {"arguments": "{}"}},
        {"index": 1, "id": "a", "function": {"name": "lookup", "arguments": "{}"}},
    ]
    model = await wire.serve([reply(200, chunk({"tool_calls": calls}) + chunk({}, "tool_calls"))])

    assert (await wire.failure(model, wire.request(tools=(LOOKUP,)))).kind == "retryable"
