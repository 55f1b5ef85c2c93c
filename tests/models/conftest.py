"""A small agent loop without durability: entries, context, model, tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from perdure.harness.context import render
from perdure.messages import AssistantMessage, AssistantPart, Message, Text, ToolCall, ToolMessage, call_key, user
from perdure.model import CallDelta, CallStart, Finished, Model, Request, TextDelta, ToolSpec
from perdure.records import ROOT, Entry, EntryId, Seq

#: Runs a call: a text, or the error code and text of a failure.
Run = Callable[[str, dict[str, Any]], str | tuple[Any, str]]


class Talk:
    """One conversation. `calls` are those that ran, in order; `rounds` how many each round had; `said` the answers."""

    def __init__(self, model: Model, tools: Sequence[ToolSpec], run: Run) -> None:
        self.model, self.tools, self.run = model, tuple(tools), run
        self.entries: list[Entry] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.rounds: list[int] = []
        self.said: list[str] = []
        self.stops: list[str] = []

    def append(self, message: Message) -> Entry:
        id = len(self.entries) + 1
        entry = Entry(id=EntryId(id), conversation=ROOT, kind="test", seq=Seq(id), at=0.0, messages=(message,))
        self.entries.append(entry)
        return entry

    async def ask(self, prompt: str, *, rounds: int = 20, attempt: int = 1) -> str:
        """The final answer; results are stored in reverse order, as if the last call had been the fastest."""
        self.append(user(prompt))
        for _ in range(rounds):
            answer = await self.answer(attempt)
            entry = self.append(answer)
            calls = [part for part in answer.parts if isinstance(part, ToolCall)]
            if not calls:
                return self.said[-1]
            self.rounds.append(len(calls))
            results = [self.result(call_key(entry.id, index), call, answer.stop) for index, call in enumerate(calls)]
            for result in reversed(results):
                self.append(result)
        raise AssertionError(f"no answer within {rounds} rounds")

    async def answer(self, attempt: int = 1) -> AssistantMessage:
        parts: list[AssistantPart] = []
        calls: dict[int, tuple[CallStart, str]] = {}
        text, stop = "", "error"
        context = render(self.entries, model=self.model.name)
        request = Request(model=self.model.name, messages=context, tools=self.tools, options={"attempt": attempt})
        async for event in self.model.stream(request):
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, CallStart):
                calls[event.index] = (event, "")
            elif isinstance(event, CallDelta):
                calls[event.index] = (calls[event.index][0], calls[event.index][1] + event.arguments)
            elif isinstance(event, Finished):
                stop = event.stop
        self.said.append(text)
        self.stops.append(stop)
        parts += [Text(text=text)] if text else []
        parts += [_call(start, arguments) for start, arguments in calls.values()]
        return AssistantMessage(parts=tuple(parts), stop=stop, model=self.model.name)

    def result(self, key: str, call: ToolCall, stop: str) -> ToolMessage:
        if call.arguments is None:
            return ToolMessage(call=key, name=call.name, text="no JSON object", error="invalid_arguments")
        if call.name not in {tool.name for tool in self.tools}:
            return ToolMessage(call=key, name=call.name, text="there is no such tool", error="tool_unavailable")
        if stop == "length":
            return ToolMessage(call=key, name=call.name, text="the answer was cut", error="truncated")
        self.calls.append((call.name, call.arguments))
        outcome = self.run(call.name, call.arguments)
        if isinstance(outcome, tuple):
            return ToolMessage(call=key, name=call.name, text=outcome[1], error=outcome[0])
        return ToolMessage(call=key, name=call.name, text=outcome)


def _call(start: CallStart, arguments: str) -> ToolCall:
    try:
        found = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict):
        return ToolCall(name=start.name, raw=arguments, provider_id=start.provider_id)
    return ToolCall(name=start.name, arguments=found, provider_id=start.provider_id)


def spec(name: str, description: str, properties: Mapping[str, Any], required: Sequence[str] | None = None) -> ToolSpec:
    needed = list(properties) if required is None else list(required)
    schema = {"type": "object", "properties": dict(properties), "required": needed, "additionalProperties": False}
    return ToolSpec(name=name, description=description, parameters=schema)


TEXT: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}


@pytest.fixture(scope="session")
def shop() -> tuple[ToolSpec, ...]:
    """The built-in tools and some that nobody wrote the demo model for."""
    return (
        spec("read", "Read a text file.", {"path": TEXT, "limit": {"type": "integer", "default": 2000}}, ["path"]),
        spec("write", "Write a text file, whole.", {"path": TEXT, "content": TEXT}),
        spec("edit", "Replace a text in a file.", {"path": TEXT, "old": TEXT, "new": TEXT}),
        spec(
            "bash",
            "Run a shell command.",
            {"command": TEXT, "timeout": {"anyOf": [NUMBER, {"type": "null"}], "default": None}},
            ["command"],
        ),
        spec("pay", "Pay someone.", {"amount": INTEGER, "to": TEXT}),
        spec("lookup", "Population of a city.\n\nFrom a table.", {"city": TEXT}),
        spec("add", "Add two numbers.", {"a": NUMBER, "b": NUMBER}),
        spec(
            "send_email",
            "Send an email.",
            {"to": {"type": "array", "items": {"type": "string", "format": "email"}}, "subject": TEXT, "body": TEXT},
        ),
        spec(
            "book_flight",
            "Book a flight between two airports.",
            {
                "origin": TEXT,
                "destination": TEXT,
                "date": {"type": "string", "format": "date"},
                "seats": {"type": "integer", "minimum": 1, "maximum": 9},
                "cabin": {"type": "string", "enum": ["economy", "business"]},
                "refundable": {"type": "boolean"},
            },
        ),
    )


@pytest.fixture
def talk() -> Callable[..., Talk]:
    """Begins a conversation: `talk(model, tools)`; calls answer "done" unless `run` says otherwise."""

    def begin(model: Model, tools: Sequence[ToolSpec], run: Run = lambda name, arguments: f"{name} is done") -> Talk:
        return Talk(model, tools, run)

    return begin
