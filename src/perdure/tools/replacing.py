"""Exact replacements in a content: pure, and in bytes, so that everything else stays as it was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from perdure.errors import SandboxError
from perdure.tools.diff import Span
from perdure.tools.encodings import is_utf_8
from perdure.tools.nearness import MOST_PLACES, listed, near

#: Other threads run between two stretches of a search.
STRETCH = 4 * 1024 * 1024


@dataclass(frozen=True)  # a schema of arguments can be made of it
class Change:
    """One replacement: `old` must occur once, unless `all` is set."""

    old: str
    new: str
    all: bool = False


class Edited(NamedTuple):
    """A new content, and what was replaced in the old one."""

    content: bytes
    spans: list[Span]


def replace(content: bytes, changes: Sequence[Change], *, name: str) -> Edited:
    """Make all replacements, or none: each is looked for in the content as it is. A line ending matches either kind.

    Raises SandboxError, whose message is for the model.
    """
    found: list[tuple[Span, int]] = []
    for number, change in enumerate(changes, 1):
        which = f"replacement {number} of {len(changes)}: " if len(changes) > 1 else ""
        try:
            found += [(span, number) for span in _spans(content, change, name)]
        except SandboxError as error:
            raise SandboxError(f"{which}{error}") from None
    found.sort(key=lambda each: each[0].start)
    for (one, first), (other, second) in pairwise(found):
        if other.start < one.end:
            raise SandboxError(f"replacements {first} and {second} overlap in {name}: make one of them")
    spans = [span for span, _ in found]
    return Edited(b"".join(_pieces(content, spans)), spans)


def _pieces(content: bytes, spans: Iterable[Span]) -> Iterable[bytes | memoryview]:
    position = 0
    view = memoryview(content)
    for span in spans:
        yield view[position : span.start]
        yield span.new
        position = span.end
    yield view[position:]


def _spans(content: bytes, change: Change, name: str) -> list[Span]:
    """Where one replacement is made."""
    old, new = (text.replace("\r\n", "\n").removeprefix("\ufeff") for text in (change.old, change.new))
    if not old:
        raise SandboxError("old is empty: name the text to replace, or use write for the whole file")
    if old == new:
        raise SandboxError("old and new are the same: nothing would change")
    try:
        wanted, line_feeds = old.encode(), new.encode()
    except UnicodeEncodeError:
        raise SandboxError("old or new holds a lone surrogate, which no file does") from None
    places = _places(content, wanted)
    foreign = not (old.isascii() and new.isascii()) and not is_utf_8(content)
    if not places:
        why = "; the file is not UTF-8, so only ASCII text in it can be named" if foreign else near(content, old, new)
        raise SandboxError(f"old does not occur in {name} ({_size(content)}){why}")
    if foreign:
        raise SandboxError(f"{name} is not UTF-8: put only ASCII text into it, or its encoding would be mixed")
    if len(places) > 1 and not change.all:
        lines = [content.count(b"\n", 0, start) + 1 for start, _ in places[:MOST_PLACES]]
        where = listed(lines, len(places))
        raise SandboxError(
            f"old occurs {len(places):,} times in {name}, at lines {where}: add what stands around the one, or all=true"
        )
    return list(_filled(content, places, line_feeds))


def _places(content: bytes, wanted: bytes) -> list[tuple[int, int]]:
    """Where it stands, from left to right without overlap; each of its lines may end in either way."""
    if b"\n" not in wanted or b"\r" not in content:
        return [(at, at + len(wanted)) for at in _found(content, wanted, len(wanted))]
    lines = wanted.split(b"\n")
    pattern = re.compile(rb"\r?\n".join(map(re.escape, lines)))
    anchor = max(lines, key=len)
    if not anchor or b"\r" in wanted:
        return [place.span() for place in pattern.finditer(content)]
    before = lines[: lines.index(anchor)]
    places: list[tuple[int, int]] = []
    for at in _found(content, anchor, 1):
        start = _start(content, at, before)
        place = None if start is None else pattern.match(content, start)
        if place is not None and place.start() >= (places[-1][1] if places else 0):
            places.append(place.span())
    return places


def _found(content: bytes, wanted: bytes, step: int) -> Iterable[int]:
    """Where it is found, each time looked for `step` bytes further on."""
    at = 0
    for end in range(STRETCH, len(content) + STRETCH, STRETCH):
        while (found := content.find(wanted, at, end + len(wanted) - 1)) >= 0:
            yield found
            at = found + step
        at = max(at, end)


def _start(content: bytes, at: int, before: Sequence[bytes]) -> int | None:
    """Where a text begins of which a line begins at `at`, with these lines before it; None where they are not there."""
    for line in reversed(before):
        if content[at - 1 : at] != b"\n":
            return None
        at -= 2 if content[max(0, at - 2) : at - 1] == b"\r" else 1
        if not content.endswith(line, 0, at):
            return None
        at -= len(line)
    return at


def _filled(content: bytes, places: list[tuple[int, int]], line_feeds: bytes) -> Iterable[Span]:
    """With the line endings of the place; of the file, where the place has none."""
    if b"\n" not in line_feeds:
        yield from (Span(start, end, line_feeds) for start, end in places)
        return
    carriage_returns = line_feeds.replace(b"\n", b"\r\n")
    returns = content.count(b"\r\n") if b"\r" in content else 0
    mostly = returns > 0 and returns > content.count(b"\n") - returns
    for start, end in places:
        place = content[start:end]
        in_place = b"\r\n" in place if b"\n" in place else mostly
        yield Span(start, end, carriage_returns if in_place else line_feeds)


def _size(content: bytes) -> str:
    lines = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    return f"{lines:,} lines, {len(content):,} bytes"
