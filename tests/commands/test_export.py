"""`perdure export`: whole transcripts that nothing in them can break out of."""

from __future__ import annotations

import asyncio
import stat
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from markdown_it import MarkdownIt

import perdure
from perdure.cli import cli
from perdure.commands.export_html import Html
from perdure.commands.export_jsonl import Jsonl
from perdure.commands.export_markdown import Markdown, fenced
from perdure.commands.exported import Head
from perdure.commands.text import moment
from perdure.commands.unanswered import Unanswered
from perdure.messages import AssistantMessage, Image, Text, Thinking, ToolCall, ToolMessage, UserMessage
from perdure.records import ConversationId, Entry, EntryId, Seq

EVIL = "</pre><script>alert(1)</script>\x1b]0;pwned\x07\x9b31m\u202e ``` ````"


def invoke(*args: str) -> Result:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a conversation of many entries."""
    monkeypatch.chdir(tmp_path)
    noted = perdure.entry_kind("shop.noted")

    async def work() -> None:
        async with perdure.open(".perdure/store.db", model="demo") as session:
            chat = await session.conversation("till")
            await (await chat.submit(f"Hello {EVIL}")).wait()
            for number in range(230):
                await chat.write(noted, {"number": number})

    asyncio.run(work())
    return tmp_path


@pytest.mark.slow
def test_json_lines_hold_every_entry_from_the_oldest_on(shop: Path) -> None:
    lines = [msgspec.json.decode(line) for line in invoke("export", "till", "--format", "jsonl").stdout.splitlines()]
    head, *entries, end = lines
    assert (head["type"], head["schema"], head["key"]) == ("conversation", 1, "till")
    assert [entry["data"]["number"] for entry in entries[2:]] == list(range(230))
    assert [entry["id"] for entry in entries] == sorted(entry["id"] for entry in entries)
    assert entries[0]["messages"][0]["parts"][0]["text"] == f"Hello {EVIL}"
    assert (end["type"], end["entries"], end["usage"]["models"]["demo"]["requests"]) == ("end", 232, 1)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["md", "jsonl", "html"])
def test_no_control_character_is_written(shop: Path, form: str) -> None:
    text = invoke("export", "till", "--format", form).stdout
    assert not [char for char in text if (ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) < 0xA0]


@pytest.mark.slow
def test_the_ending_of_the_file_says_the_format_and_the_file_is_the_owners_and_new(shop: Path) -> None:
    done = invoke("export", "till", "-o", "out.html")
    assert "232 entries written to out.html" in done.stderr
    assert (shop / "out.html").read_text().startswith("<!doctype html>")
    assert stat.S_IMODE((shop / "out.html").stat().st_mode) == 0o600
    again = CliRunner().invoke(cli, ["export", "till", "-o", "out.html"])
    assert again.exit_code == 2
    assert "is there already" in again.stderr


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))


def entry(*messages: Any) -> Entry:
    return Entry(
        id=EntryId(7), conversation=ConversationId(2), kind="perdure.assistant", seq=Seq(3), at=0.0, messages=messages
    )


EVERYTHING = entry(
    UserMessage(parts=(Text(text=EVIL), Image(media_type="image/png", base64="AAAA"))),
    UserMessage(parts=(Image(media_type="image/svg+xml", base64='"><script>'),)),
    AssistantMessage(
        parts=(
            Thinking(text="a secret thought", model="m", signature="opaque"),
            Text(text="said"),
            ToolCall(name="<b>", raw="{" + EVIL),
        ),
        stop="aborted",
        model="</h2><script>",
    ),
    ToolMessage(call="7.0", name="</summary>", text=EVIL, error="tool_error"),
)


def test_a_page_has_no_script_and_no_tag_that_is_not_its_own() -> None:
    page = Html(thinking=True)
    head = Head(session="<i>", id=1, key=EVIL, title=None, at=0.0)
    tags = Tags()
    tags.feed(
        page.begin(head) + page.entry(EVERYTHING) + page.end(1, {"models": {"<u>": {"requests": 1}}, "tools": {}})
    )
    names = {tag for tag, _ in tags.found}
    assert names <= {
        "html", "meta", "title", "style", "h1", "p", "code", "section", "h2", "small", "div", "details", "summary",
        "pre", "em", "img", "footer", "ul", "li",
    }  # fmt: skip
    assert [attributes["src"] for tag, attributes in tags.found if tag == "img"] == ["data:image/png;base64,AAAA"]
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert "default-src 'none'" in page.begin(head)
    assert "prefers" in page.begin(head) or "color-scheme" in page.begin(head)


@pytest.mark.parametrize("writer", [Markdown, Jsonl, Html])
def test_thinking_is_written_only_where_it_is_asked_for(writer) -> None:
    assert "a secret thought" not in writer(False).entry(EVERYTHING)
    assert "opaque" not in writer(False).entry(EVERYTHING)
    assert "a secret thought" in writer(True).entry(EVERYTHING)


@pytest.mark.parametrize("text", ["plain", "```\nx\n```", "`````", EVIL, ""])
def test_a_fenced_block_ends_where_its_text_ends(text: str) -> None:
    first, *inside, last = fenced(text).split("\n")
    assert last == first
    assert all(last not in line for line in inside)


HOSTILE = [
    "```\nnever closed", "~~~~\nnever closed", "<!-- never closed", "<div><script>alert(1)</script>", "<details>",
    "[key]: https://evil.example", "[^1]: a note", "# Heading\n\nSetext\n===",
    "- a list\n    - that goes on\n\n  1. ```",
    "x\n---", "> quoted\n> ```", "| a | b |\n|---|---|", "\u202e\u2066 turned", "\t<pre>", "a\r\nb",
    "`never closed", "",
]  # fmt: skip


@pytest.mark.parametrize("text", [*HOSTILE, "\n\n".join(HOSTILE), EVIL])
def test_no_message_changes_the_rest_of_a_markdown_document(text: str) -> None:
    writer = Markdown(thinking=True)
    said = entry(
        UserMessage(parts=(Text(text=text), Text(text=text))),
        AssistantMessage(
            parts=(Thinking(text=text, model="m"), Text(text=text), ToolCall(name=text, raw=text)),
            stop="stop",
            model=text,
        ),
        ToolMessage(call="7.0", name="pay", text=text),
    )
    head = Head(session=text, id=1, key=text, title=None, at=0.0)
    document = writer.begin(head) + writer.entry(said) + writer.entry(said) + writer.end(2, {"models": {}})
    env: dict[str, Any] = {}
    tokens = MarkdownIt().parse(document, env)
    headings = [token.tag for token in tokens if token.type == "heading_open" and token.level == 0]
    assert headings == ["h1", *["h2", "h2", "h3", "h3", "h3"] * 2]
    html = [token.content.strip() for token in tokens if token.type == "html_block"]
    assert html == ["<!-- entry 7, " + moment(0.0) + " -->"] * 2
    assert not [child for token in tokens for child in token.children or [] if child.type == "html_inline"]
    assert not env.get("references")
    assert not set(document) & set("\u202e\u2066\r")


def test_what_was_not_answered_says_so_in_every_format() -> None:
    asked = entry(UserMessage(parts=(Text(text="pay"),)))
    why = Unanswered(submission=3, entry=7, reason="model_error", detail="the model is <away>")
    for writer in (Markdown, Jsonl, Html):
        assert "model_error" in unescape(writer(False).entry(asked, why)).replace("\\_", "_")
        assert "model_error" not in writer(False).entry(asked)
    assert "<away>" not in Html(False).entry(asked, why)
    assert "\\<away\\>" in Markdown(False).entry(asked, why)
