"""What is shown of a run: pure, from what is read of it to events, each told once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from perdure.messages import AssistantMessage, text_of
from perdure.records import Entry

Event = dict[str, Any]

#: How an answer ends that was not finished: what was kept of it may come again from the start.
UNFINISHED = frozenset({"error", "interrupted", "aborted"})


class Trail:
    """Invariant: what was told adds up to the texts of the run's assistant entries and of the answer that streams."""

    def __init__(self) -> None:
        #: The round that streams, (round, attempt), and what was told of it.
        self._at: tuple[int, int] | None = None
        self._text = ""
        self._thinking = ""
        #: The newest round whose whole answer was told.
        self._closed = -1
        self._retry: Any = None
        #: Output told, by tool task.
        self._output: dict[str, str] = {}
        #: Assistant entries told: results belong to one of them.
        self.answers: dict[int, None] = {}

    def entry(self, entry: Entry) -> Iterator[Event]:
        """An entry of the run: the part of its text that was not told yet, then the entry."""
        message = entry.messages[0] if entry.messages else None
        if isinstance(message, AssistantMessage):
            self.answers[entry.id] = None
            text = text_of(message)
            if not text.startswith(self._text):
                self._text = ""
            if len(text) > len(self._text):
                yield {"type": "text", "text": text[len(self._text) :]}
            self._text, self._thinking = "", ""
            if message.stop not in UNFINISHED:
                self._closed = max(self._closed, facts(entry).get("round", -1))
        yield {"type": "entry", "entry": entry}

    def live(self, value: Mapping[str, Any]) -> Iterator[Event]:
        """The run's live document: what streams now, and what its tools put out."""
        if value["round"] > self._closed:
            yield from self._streaming(value)
        for task, slot in value["tools"].items():
            told, output = self._output.get(task, ""), slot["output"]
            if output != told:
                self._output[task] = output
                shown = {"text": output[len(told) :]} if output.startswith(told) else {"whole": output}
                yield {"type": "output", "task": int(task), "call": slot["call"], "name": slot["name"], **shown}

    def _streaming(self, value: Mapping[str, Any]) -> Iterator[Event]:
        at = (value["round"], value["attempt"])
        if at != self._at:
            self._at, self._text, self._thinking = at, "", ""
        if value["retry"] is not None and value["retry"] != self._retry:
            self._retry = value["retry"]
            yield {"type": "retry", **value["retry"]}
        for name, told in (("thinking", self._thinking), ("text", self._text)):
            whole = value[name]
            if len(whole) > len(told) and whole.startswith(told):
                yield {"type": name, "text": whole[len(told) :]}
                setattr(self, f"_{name}", whole)


def facts(entry: Entry) -> dict[str, Any]:
    """What an entry of a conversation carries beside its messages."""
    return cast("dict[str, Any]", entry.data) if isinstance(entry.data, dict) else {}


def call_entry(key: str) -> int:
    """The assistant entry that a call key names."""
    return int(key.partition(".")[0])
