"""Agent events (H30): derived from what each commit did to a conversation's view, never stored.

`_RULES` says what becomes of which part of the view, `_ENTRIES` what becomes of which kind of entry. What a later
version shows in the view is told here by one more line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec

from perdure.deltas import Op
from perdure.harness.stored import ASSISTANT, COMPACTION, RESET, TOOL_RESULT
from perdure.messages import ToolMessage, calls_of
from perdure.records import Entry, Record, Submission, SubmissionId, Task, TaskId
from perdure.surface.events import (
    Compacted,
    EntryAdded,
    Event,
    Events,
    JobChanged,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    QuestionClosed,
    QuestionOpened,
    QueueChanged,
    RetryScheduled,
    RunEnded,
    RunStarted,
    SettingsChanged,
    Snapshot,
    SubmissionSettled,
    ToolDetails,
    ToolEnded,
    ToolOutput,
    ToolStarted,
    TranscriptReset,
    UsageChanged,
)
from perdure.surface.frames import QuestionInfo
from perdure.views.frame import Moment, Step

_Part: TypeAlias = Literal["thinking", "text"]
#: Below `live`: the parts of an answer that streams, and the operations that concern one.
_SHOWN: tuple[_Part, ...] = ("thinking", "text")
_PATHS = frozenset({("thinking",), ("text",), ()})


class AgentEvents:
    """Tells of a conversation's view in agent events."""

    def whole(self, now: Moment) -> Events:
        return Events(seq=now.seq, events=(Snapshot(view=now.value),))

    def step(self, before: Moment, step: Step, now: Moment) -> Events | None:
        events = tuple(events_of(before.value, step, now.value))
        return Events(seq=now.seq, events=events) if events else None


EVENTS = AgentEvents()


def events_of(before: dict[str, Any], step: Step, now: dict[str, Any]) -> Iterator[Event]:
    """What happened between two values of a conversation's view. A pure function."""
    happened = _Happened(before, step, now)
    for part, rule in _RULES:
        if part in happened.ops:
            yield from rule(happened)


class _Happened:
    """A step of the view, as the rules look at it."""

    def __init__(self, before: dict[str, Any], step: Step, now: dict[str, Any]) -> None:
        self.before = before
        self.now = now
        self._entries = step.entries
        #: Operations by the part of the view that they change, with the path below it: ("text",) for /live/text.
        self.ops: dict[str, list[tuple[tuple[str, ...], Op]]] = {}
        for op in step.ops:
            part, *below = op["path"].split("/")[1:]
            self.ops.setdefault(part, []).append((tuple(below), op))
        #: Records that left the view, by path.
        self.ended = {each.path: each.record for each in step.ended}

    @cached_property
    def entries(self) -> Sequence[Entry]:
        """New entries. A window that slid says nothing of those that left it."""
        if self._entries is not None:
            return self._entries
        added = [op["value"] for _, op in self.ops.get("entries", ()) if op["op"] == "add"]
        return [msgspec.convert(entry, Entry) for entry in added]

    @property
    def was_open(self) -> bool:
        """Whether a part of an answer had been seen."""
        live = self.before["live"]
        return live is not None and bool(live["text"] or live["thinking"])

    @cached_property
    def answered(self) -> bool:
        """Whether an answer, or what was kept of one, became an entry."""
        return any(entry.kind == ASSISTANT.name for entry in self.entries)

    @cached_property
    def anew(self) -> bool:
        """Whether what `live` shows of an answer now belongs to another one than what it showed before."""
        before, now = self.before["live"], self.now["live"]
        if before is None or now is None or self.before["run"] != self.now["run"] or self.answered:
            return True
        if (before["round"], before["attempt"]) != (now["round"], now["attempt"]):
            return True
        return any(op["op"] != "append" for below, op in self.ops.get("live", ()) if below[:1] in _PATHS)

    def ended_as(self, path: str, record: type[Record]) -> Any:
        """The record that left the view there; None where a look missed it."""
        found = self.ended.get(path)
        return None if found is None else msgspec.convert(found, record)

    def keys(self, part: str) -> list[str]:
        """Members of a part that changed, each once; all of them where the part was replaced."""
        found: dict[str, None] = {}
        for below, _ in self.ops[part]:
            if below:
                found[below[0]] = None
            else:
                found |= dict.fromkeys([*(self.before[part] or ()), *(self.now[part] or ())])
        return list(found)


# -- entries ------------------------------------------------------------------------------------


def _entry_events(happened: _Happened) -> Iterator[Event]:
    for entry in happened.entries:
        yield from _ENTRIES.get(entry.kind, _other)(happened, entry)


def _answer(happened: _Happened, entry: Entry) -> Iterator[Event]:
    if not happened.was_open:
        data: dict[str, Any] = entry.data or {}
        live: dict[str, Any] = happened.before["live"] or {}
        yield MessageStarted(run=data.get("run", 0), round=data.get("round", 0), attempt=live.get("attempt", 1))
    yield MessageEnded(entry=entry)


def _result(happened: _Happened, entry: Entry) -> Iterator[Event]:
    for message in entry.messages:
        if isinstance(message, ToolMessage):
            yield ToolEnded(call=message.call, name=message.name, error=message.error, entry=entry)


def _reset(happened: _Happened, entry: Entry) -> Iterator[Event]:
    yield TranscriptReset(entry=entry)


def _compacted(happened: _Happened, entry: Entry) -> Iterator[Event]:
    yield Compacted(entry=entry)


def _other(happened: _Happened, entry: Entry) -> Iterator[Event]:
    yield EntryAdded(entry=entry)


_ENTRIES: Mapping[str, Callable[[_Happened, Entry], Iterator[Event]]] = {
    ASSISTANT.name: _answer,
    TOOL_RESULT.name: _result,
    RESET.name: _reset,
    COMPACTION.name: _compacted,
}


# -- the live run -------------------------------------------------------------------------------


def _message_events(happened: _Happened) -> Iterator[Event]:
    """The partial answer grows; or it is over without an entry, when it is shown no more."""
    if happened.anew:
        if happened.was_open and not happened.answered:
            yield MessageEnded()
        return
    grown: list[tuple[_Part, str]] = [
        (part, op["value"]) for below, op in happened.ops["live"] for part in _SHOWN if below == (part,)
    ]
    if grown and not happened.was_open:
        yield _message_started(happened)
    for part, text in grown:
        yield MessageDelta(part=part, text=text)


def _next_message_events(happened: _Happened) -> Iterator[Event]:
    """What is shown already of the next one, told after the one before it has ended."""
    live = happened.now["live"]
    if not happened.anew or live is None or not (live["text"] or live["thinking"]):
        return
    yield _message_started(happened)
    for part in _SHOWN:
        if live[part]:
            yield MessageDelta(part=part, text=live[part])


def _message_started(happened: _Happened) -> MessageStarted:
    live = happened.now["live"]
    return MessageStarted(run=happened.now["run"], round=live["round"], attempt=live["attempt"])


def _retry_events(happened: _Happened) -> Iterator[Event]:
    live = happened.now["live"]
    before: dict[str, Any] = happened.before["live"] or {}
    retry = None if live is None else live["retry"]
    if retry is not None and retry != before.get("retry"):
        yield RetryScheduled(kind=retry["kind"], message=retry["message"], at=retry["at"])


def _tool_events(happened: _Happened) -> Iterator[Event]:
    live = happened.now["live"]
    if live is None:
        return
    before = happened.before["live"] if happened.before["run"] == happened.now["run"] else None
    known: dict[str, Any] = {} if before is None else before["tools"]
    for task, slot in live["tools"].items():
        if task not in known:
            arguments = _arguments(happened.now, slot["call"])
            yield ToolStarted(task=TaskId(int(task)), call=slot["call"], name=slot["name"], arguments=arguments)
            if slot["output"]:
                yield ToolOutput(task=TaskId(int(task)), call=slot["call"], text=slot["output"], whole=True)
    for below, op in happened.ops["live"]:
        match below:
            case ("tools", task, "output") if task in known and task in live["tools"]:
                whole = op["op"] != "append"
                call = live["tools"][task]["call"]
                yield ToolOutput(task=TaskId(int(task)), call=call, text=op["value"], whole=whole)
            case ("tools", task, "details", *_) if task in known and task in live["tools"]:
                slot = live["tools"][task]
                yield ToolDetails(task=TaskId(int(task)), call=slot["call"], details=slot.get("details"))
            case _:
                pass


def _arguments(now: dict[str, Any], call: str) -> dict[str, Any] | None:
    """The arguments of a call, from the entry that asked for it."""
    wanted, _, index = call.partition(".")
    for entry in reversed(now["entries"]):
        if str(entry["id"]) == wanted:
            calls = [each for message in msgspec.convert(entry, Entry).messages for each in calls_of(message)]
            return calls[int(index)].arguments if int(index) < len(calls) else None
    return None


def _run_events(happened: _Happened) -> Iterator[Event]:
    before, now = happened.before["run"], happened.now["run"]
    if before is not None:
        task: Task | None = happened.ended_as("/run", Task)
        yield RunEnded(run=before, outcome=None if task is None else task.outcome)
    if now is not None:
        yield RunStarted(run=now)


# -- the other parts ----------------------------------------------------------------------------


def _inbox_events(happened: _Happened) -> Iterator[Event]:
    for key in happened.keys("inbox"):
        if key not in happened.now["inbox"]:
            settled: Submission | None = happened.ended_as(f"/inbox/{key}", Submission)
            if settled is not None:
                yield SubmissionSettled(submission=settled)
    before, now = _queued(happened.before), _queued(happened.now)
    if before != now:
        yield QueueChanged(queued=now)


def _queued(view: dict[str, Any]) -> tuple[SubmissionId, ...]:
    waiting = [int(key) for key, item in view["inbox"].items() if item["state"]["type"] == "queued"]
    return tuple(SubmissionId(id) for id in sorted(waiting))


def _question_events(happened: _Happened) -> Iterator[Event]:
    for key in happened.keys("questions"):
        if key not in happened.now["questions"]:
            task: Task | None = happened.ended_as(f"/questions/{key}", Task)
            yield QuestionClosed(question=TaskId(int(key)), outcome=None if task is None else task.outcome)
        elif key not in happened.before["questions"]:
            yield QuestionOpened(question=msgspec.convert(happened.now["questions"][key], QuestionInfo))


def _settings_events(happened: _Happened) -> Iterator[Event]:
    yield SettingsChanged(settings=happened.now["agent"])


def _usage_events(happened: _Happened) -> Iterator[Event]:
    yield UsageChanged(usage=happened.now["usage"])


def _job_events(happened: _Happened) -> Iterator[Event]:
    for key in happened.keys("jobs"):
        if key in happened.now["jobs"]:
            yield JobChanged(task=TaskId(int(key)), job=happened.now["jobs"][key])


#: Which part of the view each rule looks at, in the order in which its events are told.
_RULES: tuple[tuple[str, Callable[[_Happened], Iterator[Event]]], ...] = (
    ("live", _message_events),
    ("entries", _entry_events),
    ("run", _run_events),
    ("live", _next_message_events),
    ("live", _retry_events),
    ("live", _tool_events),
    ("questions", _question_events),
    ("inbox", _inbox_events),
    ("jobs", _job_events),
    ("usage", _usage_events),
    ("agent", _settings_events),
)
