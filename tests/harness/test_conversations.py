"""Transcript in, model context out: each text in tests/conversations is a pair, cut by a line of dashes.

Above it stand stored entries, below it the messages of a request to the model `demo`.
A line that is indented belongs to the line before: the parts of an answer, and the messages that an edit gives.

    10 user: Pay Ann 5                            entry 10 with a user message
    11 answer tool_calls run=7 round=1            an answer with its stop reason and the data of its entry
       think demo: Ann is owed.                   complete thinking of a model; `think-cut` is not complete
       text: I pay.
       call pay {"amount": 5}                     `call-raw pay {"amou` is one that is no JSON object
    12 result 11.0 pay: paid                      `result 11.0 pay timeout: ...` is an error
    13 omit 12                                    an edit; `13 replace 12` is followed by indented messages
    14 nothing                                    an entry without messages

In messages, a call ends with the id that it has on the wire: `call pay {"amount":5} as call_11_0`.
Texts are written as JSON strings where they are not one plain line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perdure.harness.context import render
from perdure.harness.valid import valid
from perdure.messages import (
    AssistantMessage,
    AssistantPart,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from perdure.records import ROOT, Edit, Entry, EntryId, Seq

CONVERSATIONS = sorted((Path(__file__).parents[1] / "conversations").glob("*.txt"))


def blocks(text: str) -> list[tuple[str, list[str]]]:
    """The lines that are not indented, each with the indented ones below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            found[-1][1].append(line)
        else:
            found.append((line, []))
    return found


def dedented(lines: list[str]) -> str:
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    return "\n".join(line[margin:] for line in lines)


def unquoted(text: str) -> str:
    return json.loads(text) if text.startswith('"') else text


def quoted(text: str) -> str:
    return text if text and text == text.strip() and "\n" not in text and text[0] != '"' else json.dumps(text)


def parse_part(line: str) -> AssistantPart:
    word, _, rest = line.strip().partition(" ")
    if word == "text:":
        return Text(text=unquoted(rest))
    if word in {"think", "think-cut"}:
        model, _, text = rest.partition(": ")
        return Thinking(text=unquoted(text), model=model, signature="s", complete=word == "think")
    name, _, arguments = rest.partition(" ")
    if word == "call-raw":
        return ToolCall(name=unquoted(name), raw=arguments, provider_id="same")
    assert word == "call", line
    return ToolCall(name=unquoted(name), arguments=json.loads(arguments), provider_id="same")


def parse_message(line: str, below: list[str]) -> Message:
    head, _, text = line.partition(": ")
    words = head.rstrip(":").split()
    if words[0] == "user":
        return UserMessage(parts=(Text(text=unquoted(text)),))
    if words[0] == "picture":
        return UserMessage(parts=(Image(media_type="image/png", base64=text.strip()),))
    if words[0] == "result":
        error: Any = words[3] if len(words) > 3 else None
        return ToolMessage(call=words[1], name=words[2], text=unquoted(text), error=error)
    assert words[0] == "answer", line
    stop: Any = next((word for word in words[1:] if "=" not in word), "stop")
    return AssistantMessage(parts=tuple(map(parse_part, below)), stop=stop, model="demo")


def parse_entry(line: str, below: list[str]) -> Entry:
    number, _, rest = line.partition(" ")
    messages: tuple[Message, ...] = ()
    edits: tuple[Edit, ...] = ()
    if rest.startswith(("omit ", "replace ")):
        shown = tuple(parse_message(*block) for block in blocks(dedented(below)))
        target = EntryId(int(rest.split()[1]))
        edits = (Edit(entry=target, messages=None if rest.startswith("omit") else shown),)
    elif rest != "nothing":
        messages = (parse_message(rest, below),)
    fields = {key: int(value) for key, value in re.findall(r"\b(run|round)=(\d+)", rest.split(":")[0])}
    id = int(number)
    return Entry(
        id=EntryId(id),
        conversation=ROOT,
        kind="test",
        seq=Seq(id),
        at=0.0,
        messages=messages,
        edits=edits,
        data=fields or None,
    )


def written(message: Message) -> str:
    if isinstance(message, UserMessage):
        return "\n".join(
            f"user: {quoted(part.text)}" if isinstance(part, Text) else f"picture: {part.base64}"
            for part in message.parts
        )
    if isinstance(message, ToolMessage):
        error = f" {message.error}" if message.error else ""
        return f"result {message.call} {message.name}{error}: {quoted(message.text)}"
    lines = [f"answer {message.stop}"]
    for part in message.parts:
        if isinstance(part, Text):
            lines.append(f"   text: {quoted(part.text)}")
        elif isinstance(part, Thinking):
            lines.append(f"   think {part.model}: {quoted(part.text)}")
        else:
            arguments = json.dumps(part.arguments, separators=(",", ":"))
            lines.append(f"   call {part.name} {arguments} as {part.provider_id}")
    return "\n".join(lines)


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
def test_a_transcript_renders_to_the_context_written_below_it(path: Path):
    stored, expected = re.split(r"^-{3,}\n", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)
    entries = [parse_entry(*block) for block in blocks(stored)]

    messages = render(entries, model="demo")

    assert "\n".join(map(written, messages)) == expected.strip()
    assert valid(messages, model="demo") == []
