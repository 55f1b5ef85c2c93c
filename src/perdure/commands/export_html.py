"""A transcript as one page: no scripts, nothing from elsewhere, readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from perdure.commands.exported import Head, arguments_of, used
from perdure.commands.text import as_json, moment, one_line
from perdure.commands.unanswered import Unanswered
from perdure.commands.visible import visible
from perdure.messages import AssistantMessage, Image, Message, Text, Thinking, ToolCall, ToolMessage, UserMessage
from perdure.records import Entry

#: Pictures that a page may show; others are named only.
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --line: #8885; --soft: #8881; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
section {{ border-left: 3px solid var(--line); padding: 0 1rem; margin: 1.2rem 0; }}
section.user {{ border-color: #4a8; background: var(--soft); }}
section.assistant {{ border-color: #58c; }}
h2 {{ font-size: .85rem; margin: 0; font-weight: 600; }}
h2 small {{ font-weight: 400; opacity: .7; }}
.text, pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
pre {{ font: .85rem/1.4 ui-monospace, monospace; background: var(--soft); padding: .6rem; margin: .4rem 0; }}
summary {{ cursor: pointer; font: .85rem ui-monospace, monospace; overflow-wrap: anywhere; }}
.error summary {{ color: #c44; }}
img {{ max-width: 100%; }}
</style>
<h1>{title}</h1>
<p>Session <code>{session}</code>, since {at}</p>
"""


class Html:
    """Sections, one for each entry."""

    def __init__(self, thinking: bool) -> None:
        self._thinking = thinking

    def begin(self, head: Head) -> str:
        return _PAGE.format(title=_text(one_line(head.name)), session=_text(head.session), at=moment(head.at))

    def entry(self, entry: Entry, unanswered: Unanswered | None = None) -> str:
        parts = [each for message in entry.messages for each in self._message(message)]
        if not entry.messages and entry.data is not None:
            parts = [_folded(entry.kind, as_json(entry.data))]
        if unanswered is not None:
            parts.append(f"<p><em>({_text(unanswered.line)})</em></p>")
        if not parts:
            return ""
        kind, name = _whose(entry)
        at = f"{_text(name)} <small>{moment(entry.at)}</small>"
        return f'<section class="{kind}" id="e{entry.id}">\n<h2>{at}</h2>\n' + "\n".join(parts) + "\n</section>\n"

    def end(self, count: int, usage: dict[str, Any]) -> str:
        rows = "".join(f"<li>{_text(name)}: <code>{_text(counts)}</code></li>" for name, counts in used(usage))
        return f"<footer><p>{count} entries</p><ul>{rows}</ul></footer>\n</html>\n"

    def _message(self, message: Message) -> Iterator[str]:
        if isinstance(message, ToolMessage):
            failed = f" ({message.error})" if message.error else ""
            yield _folded(f"← {message.name}{failed}", message.text, error=bool(message.error))
            return
        for part in message.parts:
            match part:
                case Text(text=text):
                    yield f'<div class="text">{_text(text)}</div>'
                case ToolCall():
                    yield _folded(f"→ {part.name}", arguments_of(part))
                case Thinking(text=text):
                    if self._thinking:
                        yield _folded("thinking", text)
                case Image(media_type=kind, base64=data):
                    yield _picture(kind, data)
        if isinstance(message, AssistantMessage) and message.stop not in ("stop", "tool_calls"):
            yield f"<p><em>({_text(message.stop)})</em></p>"


def _whose(entry: Entry) -> tuple[str, str]:
    match entry.messages[0] if entry.messages else None:
        case UserMessage():
            return "user", "user"
        case AssistantMessage(model=model):
            return "assistant", model or "assistant"
        case ToolMessage():
            return "tool", "tool"
        case None:
            return "note", entry.kind


def _folded(head: str, text: str, *, error: bool = False) -> str:
    kind = ' class="error"' if error else ""
    opened = " open" if len(text) <= 2000 else ""
    return f"<details{kind}{opened}><summary>{_text(one_line(head))}</summary><pre>{_text(text)}</pre></details>"


def _picture(kind: str, data: str) -> str:
    if kind in PICTURES and data.isascii() and not set(data) & set("\"'<>& "):
        return f'<img alt="{_text(kind)}" src="data:{kind};base64,{data}">'
    return f"<p><em>({_text(kind)})</em></p>"


def _text(text: str) -> str:
    """Text of anybody: no tag, no attribute, no control character, no turning of the direction of what follows."""
    return escape(visible(text), quote=True)
