"""The demo model finds the run that it answers from the end of what was said: old runs cost it nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from perdure.messages import AssistantMessage, Message, Text, ToolCall, ToolMessage, user
from perdure.providers import demo


class Counted(Sequence[Message]):
    """Messages that count how many of them are looked at."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages, self.looked_at = messages, 0

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | Sequence[Message]:
        if isinstance(at, slice):
            return Counted(self.messages[at])
        self.looked_at += 1
        return self.messages[at]

    def __len__(self) -> int:
        return len(self.messages)


def said(text: str, *calls: str) -> AssistantMessage:
    parts = (Text(text=text), *(ToolCall(name=name, arguments={}) for name in calls))
    return AssistantMessage(parts=parts, stop="tool_calls" if calls else "stop", model="demo")


RUN: list[Message] = [user("Pay"), user("[a note]"), said("", "pay"), ToolMessage(call="3.0", name="pay", text="paid")]


def test_the_present_run_is_found_whatever_was_said_before() -> None:
    for before in ([], [user("Hello"), said("Hi")], [*RUN, said("Done"), user("[a note]")]):
        seen = demo._seen([*before, *RUN, user("Hurry")])
        assert (seen.prompts, seen.calls) == (["Pay", "Hurry"], ["pay"])
        assert [result.text for result in seen.results] == ["paid"]


def test_the_length_of_what_was_said_before_costs_nothing() -> None:
    counted = Counted([user("Hello"), said("Hi")] * 1000 + RUN)
    demo._seen(counted)
    assert counted.looked_at <= len(RUN) + 1
