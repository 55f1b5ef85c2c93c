"""A transcript as Markdown: what was said in quotes, and everything else in fenced blocks.

No text of it reaches beyond its own block: a quote ends whatever was begun inside of it, a fence or a list. What a
quote does not hold (HTML, which a page takes over as it is, and names of links, which count in the whole document) goes
into a fenced block that its text cannot end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from perdure.commands.exported import Head, arguments_of, used
from perdure.commands.text import as_json, moment, one_line
from perdure.commands.unanswered import Unanswered
from perdure.commands.visible import visible
from perdure.messages import AssistantMessage, Image, Message, Text, Thinking, ToolCall, ToolMessage, UserMessage
from perdure.records import Entry


class Markdown:
    """Blocks with empty lines between them."""

    def __init__(self, thinking: bool) -> None:
        self._thinking = thinking

    def begin(self, head: Head) -> str:
        return f"# {_escaped(one_line(head.name))}\n\nSession {_escaped(head.session)}, since {moment(head.at)}\n\n"

    def entry(self, entry: Entry, unanswered: Unanswered | None = None) -> str:
        blocks = [each for message in entry.messages for each in self._message(message)]
        if not entry.messages and entry.data is not None:
            blocks = [f"## {_escaped(entry.kind)}", fenced(as_json(entry.data), "json")]
        if unanswered is not None:
            blocks.append(f"*({_escaped(unanswered.line, 500)})*")
        if not blocks:
            return ""
        head = [f"<!-- entry {entry.id}, {moment(entry.at)} -->"]
        return "\n\n".join([*head, *blocks]) + "\n\n"

    def end(self, count: int, usage: dict[str, Any]) -> str:
        lines = [f"- {_escaped(name)}: `{counts}`" for name, counts in used(usage)]
        return "\n".join(["## Used", "", *lines]) + "\n" if lines else ""

    def _message(self, message: Message) -> Iterator[str]:
        match message:
            case ToolMessage(name=name, text=text, error=error):
                yield f"### Result of {_escaped(name)}" + (f" ({_escaped(error)})" if error else "")
                yield fenced(text)
            case UserMessage(parts=parts):
                yield "## User"
                yield from self._parts(parts)
            case AssistantMessage(parts=parts, stop=stop, model=model):
                yield "## Assistant" + (f" ({_escaped(model)})" if model else "")
                yield from self._parts(parts)
                if stop not in ("stop", "tool_calls"):
                    yield f"*({stop})*"

    def _parts(self, parts: tuple[Any, ...]) -> Iterator[str]:
        for part in parts:
            match part:
                case Text(text=text):
                    yield said(text)
                case ToolCall():
                    yield f"### Call of {_escaped(part.name)}"
                    yield fenced(arguments_of(part), "json")
                case Thinking(text=text) if self._thinking:
                    yield "### Thinking"
                    yield fenced(text)
                case Image(media_type=kind):
                    yield f"*({_escaped(kind)})*"
                case _:
                    pass


#: What reaches beyond a quote: a tag, a comment, or what names a link for the whole document.
_REACHES = re.compile(r"<[A-Za-z/!?]|\]:")


def said(text: str) -> str:
    """What somebody said, in a quote where that holds it."""
    text = _clean(text).strip("\n")
    if _REACHES.search(text):
        return fenced(text)
    return "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))


def _clean(text: str) -> str:
    return visible(text.replace("\r\n", "\n"))


def fenced(text: str, info: str = "") -> str:
    """A block that its text cannot end."""
    text = _clean(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{info}\n{text.rstrip(chr(10))}\n{fence}"


def _escaped(text: str, most: int = 200) -> str:
    """In a line of Markdown, as it is."""
    return re.sub(r"([\\`*_\[\]<>#&~|!])", r"\\\1", one_line(text, most))
