"""Where events go: to a person, or as JSON lines to a program."""

from __future__ import annotations

from typing import Any, Protocol

from perdure.commands.choosing import Chosen
from perdure.commands.output import Output
from perdure.commands.text import as_json, one_line
from perdure.commands.trail import UNFINISHED, Event
from perdure.commands.visible import visible
from perdure.messages import AssistantMessage, ToolMessage, calls_of
from perdure.records import Entry

#: Lines that are shown of a tool's output where it prints faster than it is followed.
TAIL = 10


class Sink(Protocol):
    """Takes events in order. The last one is of type `end` and has the exit code."""

    def emit(self, event: Event) -> None: ...


def _again(retry: Event) -> str:
    """Which attempt comes, and when. A run that waits since an earlier version of perdure does not say that."""
    if "attempt" not in retry:
        return "it is asked again"
    return f"attempt {retry['attempt']} of {retry['attempts']}, waiting {retry['wait']:g} s"


class Lines:
    """One JSON object per line."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def emit(self, event: Event) -> None:
        self._output.say(as_json(event) + "\n")


class Person:
    """What the model says goes to standard output; calls, results and notes, one line each, to standard error."""

    def __init__(self, output: Output) -> None:
        self._output = output
        #: Standard output stands inside a line.
        self._open_line = False
        #: The last line of a tool's output that is not whole yet, by task.
        self._partial: dict[int, str] = {}

    def emit(self, event: Event) -> None:
        match event:
            case {"type": "text", "text": str(text)}:
                self._say(text)
            case {"type": "entry", "entry": Entry() as entry}:
                self._entry(entry)
            case {"type": "accepted" | "resumed", "model": Chosen() as model}:
                self._tell(model.line)
            case {"type": "output", "task": int(task), "text": str(text)}:
                self._tool_output(task, text)
            case {"type": "output", "task": int(task), "whole": str(text)}:
                self._partial.pop(task, None)
                self._tool_output(task, "…\n" + "\n".join(text.split("\n")[-TAIL:]))
            case {"type": "note", "text": str(text)}:
                self._tell(text)
            case {"type": "settled", "submission": id, "status": "done", "text": text}:
                self._say(f"input {id} is answered: {one_line(text)}\n")
            case {"type": "settled", "submission": id, "reason": reason, "detail": detail}:
                self._say(f"input {id} was not answered ({reason}): {one_line(detail)}\n")
            case {"type": "retry", "kind": kind, "message": message}:
                self._tell(f"the model failed ({kind}), {_again(event)}: {message}")
            case {"type": "end"}:
                self._end(event)
            case _:
                pass  # for programs only

    def rest(self) -> None:
        """Nothing more comes for now: end the line."""
        self._close_line()

    def _say(self, text: str) -> None:
        if text:
            self._output.say(visible(text) if self._output.for_person else text)
            self._open_line = not text.endswith("\n")

    def _close_line(self) -> None:
        if self._open_line:
            self._say("\n")

    def _tell(self, text: str, prefix: str = "perdure: ") -> None:
        self._close_line()
        self._output.tell(f"{prefix}{one_line(text, 500)}\n")

    def _tool_output(self, task: int, text: str) -> None:
        """What a tool prints while it works, by whole lines."""
        *lines, rest = (self._partial.get(task, "") + text).split("\n")
        self._partial[task] = rest[-500:]
        for line in lines:
            self._tell(line, "   ")

    def _entry(self, entry: Entry) -> None:
        for message in entry.messages:
            match message:
                case AssistantMessage():
                    self._close_line()
                    if message.stop in UNFINISHED:
                        self._tell(f"this answer was not finished ({message.stop})")
                    for call in calls_of(message):
                        arguments = as_json(call.arguments) if call.arguments is not None else call.raw or ""
                        self._tell(f"{call.name} {arguments}", "-> ")
                case ToolMessage(name=name, text=text, error=error):
                    self._tell(f"{name} failed ({error}): {text}" if error else f"{name}: {text}", "<- ")
                case _:
                    pass

    def _end(self, event: dict[str, Any]) -> None:
        self._close_line()
        match event:
            case {"status": "unanswered", "reason": reason, "detail": detail}:
                self._tell(f"not answered ({reason}): {detail}")
            case {"status": "waiting", "waits": waits}:
                for wait in waits:
                    self._tell(f"{wait['what']}; {wait['remedy']}")
            case {"status": "stopped", "signal": signal, "remedy": remedy}:
                self._tell(f"stopped by {signal}; {remedy}")
            case _:
                pass
