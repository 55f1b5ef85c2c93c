"""K14 as laws: whatever was stored, the context of a request is valid, the same each time, and loses nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.harness.context import INTERRUPTED, STOPPED, render, rendered, wire_id
from perdure.harness.valid import valid
from perdure.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    call_key,
    calls_of,
    text_of,
    user,
)
from perdure.records import ROOT, Edit, Entry, EntryId, Seq

STOPS = ["stop", "tool_calls", "length", "refusal", "aborted", "error", "interrupted"]
MODELS = st.sampled_from(["demo", "other"])

texts = st.sampled_from(["", " ", "\n\t", "hello", "wörld ", "[interrupted]", "a\n\nb"])
arguments = st.none() | st.dictionaries(st.sampled_from(["a", "b"]), st.integers() | st.text(max_size=3), max_size=2)
calls = st.builds(
    ToolCall,
    name=st.sampled_from(["pay", "lookup", "", "no such tool", "x" * 90]),
    arguments=arguments,
    raw=st.none() | st.just('{"a'),
    provider_id=st.none() | st.just("call_1"),
)
thoughts = st.builds(Thinking, text=texts, model=MODELS, signature=st.none() | st.just("s"), complete=st.booleans())
answers = st.builds(
    AssistantMessage,
    parts=st.lists(st.builds(Text, text=texts) | calls | thoughts, max_size=4).map(tuple),
    stop=st.sampled_from(STOPS),
    model=MODELS,
)
pictures = st.builds(
    Image, media_type=st.sampled_from(["image/png", "", "text/html"]), base64=st.sampled_from(["", "aGk="])
)
inputs = st.builds(UserMessage, parts=st.lists(st.builds(Text, text=texts) | pictures, max_size=3).map(tuple))
results = st.builds(
    ToolMessage,
    call=st.builds(call_key, st.integers(1, 9), st.integers(0, 3)) | st.text(max_size=4),
    name=st.sampled_from(["pay", "lookup", ""]),
    text=texts,
    error=st.none() | st.sampled_from(["interrupted", "timeout"]),
)
messages = st.lists(answers | results | inputs, max_size=2).map(tuple)
edits = st.lists(st.builds(Edit, entry=st.integers(0, 9), messages=st.none() | messages), max_size=2).map(tuple)
rounds = st.fixed_dictionaries({"run": st.integers(1, 2) | st.none(), "round": st.integers(1, 3) | st.text(max_size=1)})
notes = st.none() | rounds | st.lists(st.integers(), max_size=2) | st.just({})


@st.composite
def transcripts(draw: st.DrawFn) -> list[Entry]:
    """Up to eight entries; the last one may stand first, as a head does."""
    entries = [
        Entry(
            id=EntryId(id),
            conversation=ROOT,
            kind="test",
            seq=Seq(id),
            at=0.0,
            messages=draw(messages),
            edits=draw(edits),
            data=draw(notes),
        )
        for id in range(1, draw(st.integers(0, 8)) + 1)
    ]
    return entries[-1:] + entries[:-1] if draw(st.booleans()) else entries


def entry(id: int, *said: Message, data: Any = None) -> Entry:
    return Entry(id=EntryId(id), conversation=ROOT, kind="test", seq=Seq(id), at=0.0, messages=said, data=data)


def answer(*parts: Text | Thinking | ToolCall, stop: Any = "stop") -> AssistantMessage:
    return AssistantMessage(parts=parts, stop=stop, model="demo")


def call(name: str = "pay", id: str = "call_1") -> ToolCall:
    return ToolCall(name=name, arguments={}, provider_id=id)


def result(id: str = "call_1", name: str = "pay") -> ToolMessage:
    return ToolMessage(call=id, name=name, text="paid")


@pytest.mark.slow
@given(transcripts(), MODELS)
def test_any_transcript_renders_to_what_a_strict_provider_takes(entries: list[Entry], model: str):
    assert valid(render(entries, model=model), model=model) == []


@pytest.mark.slow
@given(transcripts(), MODELS)
def test_any_transcript_renders_to_the_same_bytes_each_time(entries: list[Entry], model: str):
    again = msgspec.json.decode(msgspec.json.encode(entries), type=list[Entry])

    assert msgspec.json.encode(render(entries, model=model)) == msgspec.json.encode(render(again, model=model))


@pytest.mark.slow
@given(transcripts(), st.lists(st.integers(0, 8), max_size=3), MODELS)
def test_a_transcript_that_grows_renders_as_if_it_were_rendered_at_once(
    entries: list[Entry], sizes: list[int], model: str
):
    before = None
    for size in [*sorted(sizes), len(entries)]:
        before = rendered(entries[:size], model=model, before=before)

        assert before.request() == render(entries[:size], model=model)


def test_of_a_transcript_that_grows_only_the_new_is_rendered():
    said = [entry(1, user("go")), entry(2, answer(call())), entry(3, result(call_key(2, 0)))]
    first = rendered(said, model="demo")
    more = [*said, entry(4, answer(call())), entry(5, result(call_key(4, 0)))]

    second = rendered(more, model="demo", before=first)

    assert all(now is before for now, before in zip(second.messages, first.messages, strict=False))
    assert second.request() == render(more, model="demo")


@pytest.mark.slow
@given(transcripts())
def test_rendering_leaves_the_entries_as_they_are(entries: list[Entry]):
    before = msgspec.json.encode(entries)

    render(entries, model="demo")

    assert msgspec.json.encode(entries) == before


@pytest.mark.slow
@given(transcripts())
def test_a_rendered_context_renders_to_itself(entries: list[Entry]):
    """But for the ids of calls, which say where a call is stored."""
    once = render(entries, model="demo")
    keys = {wire_id(0, at): call_key(1, at) for at in range(1000)}
    places = {call.provider_id: at for at, call in enumerate(call for each in once for call in calls_of(each))}
    stored = tuple(
        msgspec.structs.replace(each, call=keys[wire_id(0, places[each.call])])
        if isinstance(each, ToolMessage)
        else each
        for each in once
    )

    twice = render([entry(1, *stored)], model="demo")

    def without_ids(context: tuple[Message, ...]) -> list[Any]:
        return [
            [type(each).__name__, text_of(each), [(call.name, call.arguments) for call in calls_of(each)]]
            for each in context
        ]

    assert without_ids(twice) == without_ids(once)


@pytest.mark.slow
@given(transcripts())
def test_without_edits_everything_that_was_said_and_finished_is_in_the_context(entries: list[Entry]):
    plain = [msgspec.structs.replace(each, edits=()) for each in entries]
    context = render(plain, model="demo")
    said = [
        part.text
        for each in context
        if not isinstance(each, ToolMessage)
        for part in each.parts
        if isinstance(part, Text)
    ]

    for message in (message for each in plain for message in each.messages if not isinstance(message, ToolMessage)):
        if isinstance(message, UserMessage) or message.stop not in STOPPED:
            assert all(part.text in said for part in message.parts if isinstance(part, Text) and part.text.strip())


@pytest.mark.slow
@given(transcripts())
def test_a_later_input_changes_nothing_before_it(entries: list[Entry]):
    """Providers cache what they saw before."""
    context = render([*entries, entry(20, user("first"))], model="demo")

    assert (
        render([*entries, entry(20, user("first")), entry(21, user("second"))], model="demo")[: len(context)] == context
    )


def test_a_stopped_answer_is_left_out_only_when_its_own_run_answered_the_round():
    partial = entry(2, answer(Text(text="so"), stop="error"), data={"run": 5, "round": 2})
    cases = {
        ("same round", 5, 2): False,
        ("later round", 5, 3): False,
        ("earlier round", 5, 1): True,
        ("other run", 6, 2): True,
    }

    for (name, run, number), offered in cases.items():
        other = entry(4, answer(Text(text="done")), data={"run": run, "round": number})
        context = render([entry(1, user("hi")), partial, entry(3, user("hm")), other], model="demo")
        assert any(INTERRUPTED in text_of(each) for each in context) is offered, name


def test_an_unchanged_message_is_not_copied():
    said = [user("hi"), answer(Text(text="hello")), user("bye")]

    context = render([entry(id, message) for id, message in enumerate(said, 1)], model="demo")

    assert all(mine is theirs for mine, theirs in zip(said, context, strict=True))


@pytest.mark.parametrize(
    "said, violation",
    [
        ([], "there is no message"),
        ([answer(Text(text="hi")), user("hi")], "message 0: the first message is not the user's"),
        ([user("hi"), answer(Text(text="hi"))], "message 1: the last message is an answer"),
        (
            [user("hi"), answer(Text(text="a")), answer(Text(text="b")), user("c")],
            "message 2: an answer follows an answer",
        ),
        ([user(" ")], "message 0: an empty text"),
        ([UserMessage(parts=())], "message 0: a user message without content"),
        ([UserMessage(parts=(Image(media_type="image/png", base64=""),))], "message 0: an empty picture"),
        ([user("hi"), answer(), user("hi")], "message 1: an answer without content"),
        ([user("hi"), answer(Text(text="")), user("hi")], "message 1: an empty text"),
        (
            [user("hi"), answer(Text(text="h"), stop="error"), user("hi")],
            "message 1: an answer that never finished (error)",
        ),
        ([user("hi"), answer(call()), user("hi")], "message 2: call 'call_1' has no result before it"),
        ([user("hi"), answer(call())], "at the end: call 'call_1' has no result"),
        ([user("hi"), result()], "message 1: a result for 'call_1', which nobody called"),
        ([user("hi"), answer(call()), result(), result()], "message 3: a second or late result for call 'call_1'"),
        (
            [user("hi"), answer(call()), user("."), user("."), result()],
            "message 4: a second or late result for call 'call_1'",
        ),
        (
            [user("hi"), answer(call(), call(id="call_2")), result("call_2"), result()],
            "message 2: the result of 'call_2' comes before that of 'call_1'",
        ),
        ([user("hi"), answer(call()), result(), answer(call()), result()], "message 3: call id 'call_1' is used twice"),
        (
            [user("hi"), answer(call()), result(name="lookup")],
            "message 2: the result of 'call_1' names 'lookup', the call 'pay'",
        ),
        (
            [user("hi"), answer(call()), ToolMessage(call="call_1", name="pay", text="")],
            "message 2: the result of 'call_1' is empty",
        ),
        (
            [user("hi"), answer(ToolCall(name="pay", raw="{", provider_id="c")), result("c")],
            "message 1: the arguments of call 'c' are no JSON object",
        ),
        ([user("hi"), answer(ToolCall(name="pay", arguments={}))], "message 1: a call of 'pay' without an id"),
        (
            [user("hi"), answer(call("pay ann")), result(name="pay ann")],
            "message 1: the tool name 'pay ann' is not made of 1 to 64 letters, digits, '_' and '-'",
        ),
        (
            [user("hi"), answer(Text(text="a"), Thinking(text="b", model="demo")), user("c")],
            "message 1: incomplete thinking of 'demo'",
        ),
        (
            [user("hi"), answer(Text(text="a"), Thinking(text="b", model="other", complete=True)), user("c")],
            "message 1: thinking of 'other', which 'demo' did not make",
        ),
        (
            [user("hi"), answer(Text(text="a"), Thinking(text="", model="demo", complete=True)), user("c")],
            "message 1: empty thinking",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_rule_names_what_breaks_it(said: list[Message], violation: str):
    assert violation in valid(said, model="demo")


def test_a_valid_context_breaks_no_rule():
    thought = Thinking(text="hm", model="demo", complete=True)
    said = [user("a"), user("b"), answer(thought, call(), call(id="call_2")), result(), result("call_2"), user("c")]

    assert valid(said, model="demo") == []
    assert valid(said) == []
