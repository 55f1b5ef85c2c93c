"""Text for people: one line where one line is meant, and nothing that a terminal would obey."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import msgspec

from perdure.commands.visible import visible
from perdure.values import clean_text


def one_line(text: str, most: int = 160) -> str:
    """The text in one line of at most `most` characters."""
    line = visible(" ".join(text[: 4 * most].split()))
    cut = len(line) > most or len(text) > 4 * most
    return line[: most - 1] + "…" if cut else line


def as_json(value: Any) -> str:
    """A value as JSON in one line."""
    return msgspec.json.encode(value).decode()


def moment(at: float) -> str:
    """A time for people, in their time zone."""
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def argument(text: str) -> str:
    """A text argument as it was typed: UTF-8 whatever the locale made of its bytes, without what UTF-8 cannot say."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return clean_text(text)
