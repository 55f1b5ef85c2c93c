"""What comes through of an answer: calls, thinking and its signatures, usage; and of a stream that goes wrong."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest

from perdure.errors import ModelError
from perdure.harness.answer import Answer
from perdure.harness.context import render
from perdure.messages import AssistantMessage, Image, Text, Thinking, ToolCall, ToolMessage, UserMessage, calls_of, user
from perdure.model import CallDelta, CallStart, Finished, TextDelta, ThinkingDelta, ToolSpec, Usage
from perdure.providers.local_servers import SERVERS
from perdure.records import ROOT, Entry, EntryId, Seq
from perdure.testing.fakes import reply
from perdure.testing.fakes.anthropic import markers
from perdure.testing.fakes.http import event
from perdure.testing.scripted import answer, call, cut, fail, length, say, think

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LOOKUP = ToolSpec(
    name="lookup",
    description="Population of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01").decode()
TWO_CALLS = answer(
    say("I look."), call("lookup", {"city": "Bérlin"}, id="a", pieces=5), call("lookup", {"city": "東京"}, id="b")
)


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def stored(events, name):
    """The answer as the harness stores it."""
    collected = Answer(name)
    for each in events:
        collected.add(each)
    return msgspec.json.decode(msgspec.json.encode(collected.message()), type=AssistantMessage)


def transcript(*messages):
    return [
        Entry(id=EntryId(id), conversation=ROOT, kind="test", seq=Seq(id), at=0.0, messages=(message,))
        for id, message in enumerate(messages, 1)
    ]


async def test_parallel_calls_come_in_order_with_their_arguments(wire):
    model = await wire.serve(TWO_CALLS)

    events = await wire.read(model, wire.request(tools=(LOOKUP,)))

    assert [event for event in events if isinstance(event, CallStart)] == [
        CallStart(0, "lookup", "a"),
        CallStart(1, "lookup", "b"),
    ]
    texts = ["".join(e.arguments for e in events if isinstance(e, CallDelta) and e.index == at) for at in (0, 1)]
    assert [json.loads(text) for text in texts] == [{"city": "Bérlin"}, {"city": "東京"}]
    assert events[-1] == Finished("tool_calls", None)


def pieces(*calls):
    """Pieces of calls as Chat Completions streams them: number, id, arguments."""
    chunks = []
    for index, id, arguments in calls:
        function = {"arguments": arguments, **({"name": "lookup"} if id else {})}
        delta = {"tool_calls": [{"function": function, "index": index, **({"id": id} if id else {})}]}
        chunks.append({"id": "1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    chunks.append({"id": "1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return b"".join(event({"object": "chat.completion.chunk", "created": 1, **chunk}) for chunk in chunks)


BERLIN, PARIS = '{"city":"Berlin"}', '{"city":"Paris"}'
NUMBERED = {
    "interleaved": [(0, "a", ""), (1, "b", ""), (0, None, '{"city":'), (1, None, PARIS), (0, None, '"Berlin"}')],
    "the same number": [(0, "a", BERLIN), (0, "b", '{"city":'), (0, None, '"Paris"}')],
    "the id repeated": [(0, "a", '{"city":'), (0, "a", '"Berlin"}'), (1, "b", PARIS)],
    "from one": [(1, "a", BERLIN), (2, "b", PARIS)],
    "no number": [(None, "a", BERLIN), (None, "b", PARIS)],
}


@pytest.mark.parametrize("name", NUMBERED)
async def test_calls_stay_apart_however_a_server_numbers_them(wires, name):
    wire = wires("chat")
    model = await wire.serve(reply(200, pieces(*NUMBERED[name])))

    said = stored(await wire.read(model, wire.request(tools=(LOOKUP,))), model.name)

    assert [call.arguments for call in calls_of(said)] == [{"city": "Berlin"}, {"city": "Paris"}]


@pytest.mark.parametrize("piece", [1, 3])
async def test_characters_and_lines_that_packets_cut_in_two_are_whole(wire, piece):
    model = await wire.serve(answer(say("é€😀 — ok", pieces=3), call("lookup", {"city": "東京"})), piece=piece)

    events = await wire.read(model, wire.request(tools=(LOOKUP,)))

    assert text_of(events) == "é€😀 — ok"
    assert calls_of(stored(events, model.name))[0].arguments == {"city": "東京"}


async def test_thinking_with_its_signature_goes_back_to_its_own_model_and_to_no_other(wire):
    first = answer(think("Let me see. ", signature="s1"), say("I look."), call("lookup", {"city": "Berlin"}))
    model = await wire.serve([first, say("3.6 million"), say("Hello.")])
    said = stored(await wire.read(model, wire.request(tools=(LOOKUP,))), model.name)
    entries = transcript(user("Hello."), said, ToolMessage(call="2.0", name="lookup", text="3.6 million"))

    await wire.read(model, wire.request(*render(entries, model=model.name), tools=(LOOKUP,)))
    await wire.read(model, wire.request(*render(entries, model="another:model"), tools=(LOOKUP,)))

    own, others = (json.dumps(seen.body) for seen in wire.server.requests[1:])
    assert "Let me see. " in own
    assert "Let me see. " not in others
    if wire.vendor.name.startswith("openai-chat"):  # this API signs nothing
        assert '"reasoning_content": "Let me see. "' in own
    else:
        assert r"\"s1\"" in own
        assert r"\"s1\"" not in others


async def test_hidden_thinking_goes_back_too(wires):
    for name in ("responses", "anthropic"):
        wire = wires(name)
        model = await wire.serve([answer(think("", signature="hidden"), say("Hi.")), say("Ok.")])
        said = stored(await wire.read(model), model.name)

        await wire.read(model, wire.request(user("Hello."), said, user("And?")))

        assert r"\"hidden\"" in json.dumps(wire.server.requests[1].body)


async def test_thinking_that_was_cut_before_its_signature_is_not_complete(wires):
    wire = wires("anthropic")
    model = await wire.serve(length(think("Let me", complete=False)))

    said = stored(await wire.read(model), model.name)

    assert said.stop == "length"
    (thought,) = said.parts
    assert isinstance(thought, Thinking)
    assert not thought.complete


async def test_results_and_errors_are_sent_in_call_order_with_the_ids_of_their_calls(wire):
    model = await wire.serve(say("Ok."))
    calls = [
        ToolCall(name="lookup", arguments={"city": each}, provider_id=f"call_2_{at}") for at, each in enumerate("ab")
    ]
    results = [
        ToolMessage(call="call_2_0", name="lookup", text="3.6 million"),
        ToolMessage(call="call_2_1", name="lookup", text="outcome unknown", error="interrupted"),
    ]
    said = AssistantMessage(parts=tuple(calls), stop="tool_calls", model=model.name)

    await wire.read(model, wire.request(user("Hi."), said, *results, user("And?"), tools=(LOOKUP,)))

    # The fake refuses results that do not pair; what it understood is what was sent.
    sent = json.dumps(wire.server.requests[0].body)
    assert sent.index("call_2_0") < sent.index("call_2_1")
    assert "outcome unknown" in sent
    marked = '"is_error": true' if wire.vendor.name.startswith("anthropic") else r"{\"error\":\"outcome unknown"
    assert marked in sent


async def test_instructions_pictures_and_tools_are_sent(wire):
    model = await wire.serve(say("Ok."))
    picture = UserMessage(parts=(Text(text="What is this?"), Image(media_type="image/png", base64=PNG)))

    await wire.read(model, wire.request(picture, tools=(LOOKUP,), system="Be brief."))

    asked = wire.server.prepare(wire.server.requests[0])
    assert asked.system == "Be brief."
    assert asked.messages == (picture,)
    assert [(tool.name, tool.description) for tool in asked.tools] == [("lookup", "Population of a city.")]


async def test_anthropic_is_told_what_to_cache_and_the_last_marker_moves_along(wires):
    wire = wires("anthropic")
    model = await wire.serve(say("Ok."))
    first = (user("Hi."),)
    then = (*first, AssistantMessage(parts=(Text(text="Ok."),), model=model.name), user("And?"))

    for messages in (first, then):
        await wire.read(model, wire.request(*messages, tools=(LOOKUP, LOOKUP_ALL), system="Be brief."))

    assert [markers(seen.body) for seen in wire.server.requests] == [
        ["tools.1", "system.0", "messages.0.0"],
        ["tools.1", "system.0", "messages.2.0"],
    ]


LOOKUP_ALL = msgspec.structs.replace(LOOKUP, name="lookup_all")


async def test_usage_is_in_disjoint_buckets_with_its_cost(wire):
    used = Usage(input=1000, cache_read=400, cache_write=70, output=200, reasoning=50)
    model = await wire.serve(answer(say("Ok."), usage=used))

    (finish,) = [event for event in await wire.read(model) if isinstance(event, Finished)]

    assert finish.usage is not None
    assert msgspec.structs.replace(finish.usage, cost=None) == used
    assert 0 < (finish.usage.cost or 0) < 0.1


#: Input that has the cached part in it, and input that has not: as two families of vendors report it.
REPORTED = {
    "anthropic": Usage(input=3, cache_read=19464, cache_write=1124, output=954),
    "chat": Usage(input=2750, cache_read=71552, cache_write=0, output=170, reasoning=0),
}


@pytest.mark.parametrize("name", REPORTED)
async def test_each_way_to_report_cached_input_is_the_same_in_buckets(wires, name):
    wire = wires(name)
    model = await wire.serve(answer(say("Ok."), usage=REPORTED[name]))

    finish = (await wire.read(model))[-1]

    assert msgspec.structs.replace(finish.usage, cost=None) == REPORTED[name]


async def test_usage_that_is_told_with_every_piece_counts_once(wires):
    wire = wires("chat")
    used = {"prompt_tokens": 10, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 4}}
    chunks = [
        {"id": "1", "model": "m", "choices": [choice], "usage": {**used, "completion_tokens": told}}
        for told, choice in [
            (2, {"index": 0, "delta": {"content": "O"}, "finish_reason": None}),
            (5, {"index": 0, "delta": {"content": "k."}, "finish_reason": "stop"}),
        ]
    ]
    model = await wire.serve(reply(200, b"".join(event(each) for each in chunks) + b"data: [DONE]\n\n"))

    finish = (await wire.read(model))[-1]

    assert (finish.usage.input, finish.usage.cache_read, finish.usage.output) == (6, 4, 5)


async def test_usage_that_nobody_told_is_unknown(wire):
    model = await wire.serve(say("Ok."))

    assert (await wire.read(model))[-1] == Finished("stop", None)


async def test_a_local_server_that_tells_half_leaves_the_rest_and_the_cost_unknown(wires):
    wire = wires("chat")
    model = await wire.serve(answer(say("Ok."), usage=Usage(input=10, output=5)), key="none")
    local = await wire.local(f"{wire.server.url}#qwen3")

    finish = (await wire.read(local))[-1]

    assert finish == Finished("stop", Usage(input=10, output=5))
    assert model.name != local.name


@pytest.mark.parametrize("kind", SERVERS)
async def test_each_kind_of_local_server_is_asked_by_its_name(wires, kind):
    wire = wires("chat")
    script = answer(say("I look."), call("lookup", {"city": "Berlin"}), usage=Usage(input=10, output=5))
    await wire.serve(script, key="none")
    model = await wire.local(f"{kind}:qwen3", {SERVERS[kind][1]: wire.server.url})

    events = await wire.read(model, wire.request(tools=(LOOKUP,)))

    assert text_of(events) == "I look."
    assert events[-1] == Finished("tool_calls", Usage(input=10, output=5))
    assert wire.server.requests[0].body["model"] == "qwen3"


async def test_an_answer_at_the_output_limit_says_so(wire):
    model = await wire.serve(length(say("Once"), call("lookup", {"city": "Berlin"})))

    events = await wire.read(model, wire.request(tools=(LOOKUP,)))

    assert isinstance(events[-1], Finished)
    assert events[-1].stop == "length"


async def test_a_refusal_is_one(wire):
    model = await wire.serve(answer(say("I would rather not."), stop="refusal"))

    assert (await wire.read(model))[-1] == Finished("refusal", None)


@pytest.mark.parametrize("break_off", [False, True], ids=["in order", "broken off"])
async def test_a_stream_that_ends_without_a_reason_is_never_finished(wire, break_off):
    model = await wire.serve([answer(say("Once"), cut()), cut()], break_off=break_off)
    kinds = []

    for _ in range(2):
        try:
            assert not any(isinstance(event, Finished) for event in await wire.read(model))
        except ModelError as error:
            kinds.append(error.kind)

    # The first of them just ends: the harness calls that cut. Where nothing of an answer came, there is none to be cut.
    assert kinds == (["cut", "retryable"] if break_off else ["cut"])


GARBAGE = {
    "no JSON": b"event: message_start\ndata: {garbage\n\n",
    "no event": b"<html>\n<body>Welcome to the hotel</body></html>",
    "no UTF-8": b"event: message_start\ndata: \xff\xfe\xfd\n\n",
    "half a character": 'event: message_start\ndata: {"type": "é'.encode()[:-1],
    "half an event": b'event: message_start\ndata: {"type": "mess',
    "another shape": b'event: message_start\ndata: {"choices": 3, "type": "message_start", "message": 7}\n\n',
    "a list": b"event: message_start\ndata: [1, 2]\n\n",
    "nothing": b"",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_a_model_error_and_the_next_request_is_served(wire, name):
    model = await wire.serve([reply(200, GARBAGE[name]), reply(200, GARBAGE[name], cut=True), say("Ok.")])

    for _ in range(2):
        kind = "cut"
        try:
            assert not any(isinstance(event, Finished) for event in await wire.read(model))
        except ModelError as error:
            kind = error.kind
        assert kind in ("cut", "retryable")

    assert text_of(await wire.read(model)) == "Ok."


async def test_a_failure_inside_a_stream_is_what_it_would_be_before(wire):
    kinds = ["retryable", "rate_limited", "overflow", "quota"]
    model = await wire.serve([answer(say("Once"), fail(kind)) for kind in kinds])

    assert [(await wire.failure(model)).kind for _ in kinds] == kinds


async def test_leaving_a_stream_early_closes_its_connection(wire):
    model = await wire.serve([answer(say("Once"), *[say("x")] * 3, cut()), say("Ok.")])
    stream = model.stream(wire.request())

    assert isinstance(await anext(stream), TextDelta | ThinkingDelta)
    await stream.aclose()

    assert text_of(await wire.read(model)) == "Ok."


def chunk(delta, finish=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def claude(type, **fields):
    return event({"type": type, **fields}, type)


NAMELESS = {
    "chat": chunk({"content": "I look.", "tool_calls": [{"index": 0, "id": "a", "function": {"arguments": BERLIN}}]})
    + chunk({}, "tool_calls"),
    "anthropic": claude(
        "message_start",
        message={
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "usage": {"input_tokens": 1, "output_tokens": 1},
        },
    )
    + claude("content_block_start", index=0, content_block={"type": "tool_use", "id": "a", "input": {}})
    + claude("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": BERLIN})
    + claude("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5})
    + claude("message_stop"),
    "responses": claude(
        "response.output_item.added",
        output_index=0,
        item={"id": "f", "type": "function_call", "call_id": "a", "name": None, "arguments": "", "status": "completed"},
    ),
}


async def test_a_call_whose_name_never_came_is_a_failure_and_not_left_out(wire):
    vendor = str(wire.vendor.name).partition(":")[0]
    name = {"openai": "responses", "openai-chat": "chat"}.get(vendor, vendor)
    model = await wire.serve([reply(200, NAMELESS[name])])

    error = await wire.failure(model, wire.request(tools=(LOOKUP,)))

    assert (error.kind, str(error)) == ("retryable", "the model called a tool without saying which")


async def test_an_answer_that_ends_for_calls_and_has_nothing_is_a_failure(wires):
    wire = wires("chat")
    model = await wire.serve([reply(200, chunk({}, "tool_calls")), reply(200, chunk({"content": "x"}, "tool_calls"))])

    assert (await wire.failure(model)).kind == "retryable"
    assert (await wire.read(model))[-1] == Finished("stop", None)


@pytest.mark.parametrize(
    "body, kind, said",
    [
        ({"error": {"message": "no credit left", "code": 402}}, "quota", "no credit left"),
        ({"error": {"message": "not today, sk-live-0123456789abcdef", "code": 403}}, "auth", "not today, [hidden]"),
        ({"error": {"message": "maximum context length is 8192 tokens"}}, "overflow", "8192"),
        ({"error": "overloaded"}, "retryable", "overloaded"),
        ({"error": {"message": "no such model", "code": 404}}, "invalid", "no such model"),
        (b"<html>Welcome to the hotel</html>", "retryable", "Welcome to the hotel"),
        (b"<p>" * 1_000_000, "retryable", "<p><p>"),
    ],
)
async def test_what_is_no_stream_although_its_status_is_200_is_told_in_its_words(wire, body, kind, said):
    kinds = {"content-type": "text/html" if isinstance(body, bytes) else "application/json; charset=utf-8"}
    model = await wire.serve([reply(200, body, kinds)])

    error = await wire.failure(model)

    assert error.kind == kind
    assert said in str(error)
    assert len(str(error)) < 1000


async def test_a_stream_under_a_wrong_kind_is_read(wires):
    wire = wires("chat")
    model = await wire.serve([reply(200, chunk({"content": "Hi."}, "stop"), {"content-type": "application/json"})])

    assert text_of(await wire.read(model)) == "Hi."
