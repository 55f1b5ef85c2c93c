"""The rules that every request to a model keeps: what a strict provider would refuse (K14)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.harness.context import STOPPED, TOOL_NAME, filled, thought
from perdure.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    calls_of,
)


def valid(messages: Sequence[Message], *, model: str | None = None) -> list[str]:
    """What a strict provider would refuse in the messages of a request, one sentence each; empty when it takes them.

    With `model`, thinking that another model made is refused, too.
    """
    wrong: list[str] = []
    if not messages:
        return ["there is no message"]
    if not isinstance(messages[0], UserMessage):
        wrong.append("message 0: the first message is not the user's")
    if isinstance(messages[-1], AssistantMessage):
        wrong.append(f"message {len(messages) - 1}: the last message is an answer")
    open_calls: list[ToolCall] = []  # of the answer above, without the results seen so far
    seen: set[str] = set()  # ids of all calls so far
    before: Message | None = None
    for at, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            wrong.extend(f"message {at}: {text}" for text in _wrong_result(message, open_calls, seen))
        else:
            wrong.extend(f"message {at}: call {call.provider_id!r} has no result before it" for call in open_calls)
            open_calls = calls_of(message)
            if isinstance(message, UserMessage):
                wrong.extend(f"message {at}: {text}" for text in _wrong_user(message))
            else:
                if isinstance(before, AssistantMessage):
                    wrong.append(f"message {at}: an answer follows an answer")
                wrong.extend(f"message {at}: {text}" for text in _wrong_answer(message, seen, model))
        before = message
    wrong.extend(f"at the end: call {call.provider_id!r} has no result" for call in open_calls)
    return wrong


def _wrong_result(message: ToolMessage, open_calls: list[ToolCall], seen: set[str]) -> Iterator[str]:
    """Takes the call that the result belongs to from `open_calls`."""
    if not message.text or message.text.isspace():
        yield f"the result of {message.call!r} is empty"
    place = next((at for at, call in enumerate(open_calls) if call.provider_id == message.call), None)
    if place is None:
        if message.call in seen:
            yield f"a second or late result for call {message.call!r}"
        else:
            yield f"a result for {message.call!r}, which nobody called"
        return
    if place != 0:
        yield f"the result of {message.call!r} comes before that of {open_calls[0].provider_id!r}"
    call = open_calls.pop(place)
    if call.name != message.name:
        yield f"the result of {message.call!r} names {message.name!r}, the call {call.name!r}"


def _wrong_user(message: UserMessage) -> Iterator[str]:
    if not message.parts:
        yield "a user message without content"
    for part in message.parts:
        if not filled(part):
            yield "an empty picture" if isinstance(part, Image) else "an empty text"


def _wrong_answer(message: AssistantMessage, seen: set[str], model: str | None) -> Iterator[str]:
    """Adds the ids of the calls to `seen`."""
    if message.stop in STOPPED:
        yield f"an answer that never finished ({message.stop})"
    if not any(isinstance(part, Text | ToolCall) for part in message.parts):
        yield "an answer without content"
    for part in message.parts:
        if isinstance(part, ToolCall):
            yield from _wrong_call(part, seen)
        elif isinstance(part, Thinking):
            if not part.complete:
                yield f"incomplete thinking of {part.model!r}"
            if model is not None and part.model != model:
                yield f"thinking of {part.model!r}, which {model!r} did not make"
            if not thought(part):
                yield "empty thinking"
        elif not part.text or part.text.isspace():
            yield "an empty text"


def _wrong_call(call: ToolCall, seen: set[str]) -> Iterator[str]:
    if not TOOL_NAME.fullmatch(call.name):
        yield f"the tool name {call.name!r} is not made of 1 to 64 letters, digits, '_' and '-'"
    if call.arguments is None or call.raw is not None:
        yield f"the arguments of call {call.provider_id!r} are no JSON object"
    if not call.provider_id:
        yield f"a call of {call.name!r} without an id"
    elif call.provider_id in seen:
        yield f"call id {call.provider_id!r} is used twice"
    else:
        seen.add(call.provider_id)
