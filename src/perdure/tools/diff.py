"""What changed in a text: a unified diff within bounds, and how many lines came and went.

Comparing is quadratic, so only what an edit touched is compared, and only where that is short; a large file costs no
more than a look at where its lines end. Contents are UTF-8 as bytes: nothing is decoded that is not shown.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perdure.harness.output import Output
from perdure.values import clean_text

#: Lines around a change.
CONTEXT = 3
#: How many lines of a changed block are compared; a longer one is only counted.
MOST_COMPARED = 1000
#: How many lines are kept to be shown, and how many bytes of one.
MOST_KEPT = 2000
MOST_LINE = 400
#: What a model is shown.
MOST_BYTES = 4096
MOST_LINES = 80


class Span(NamedTuple):
    """A piece of a content, and what took its place."""

    start: int
    end: int
    new: bytes


class Line(NamedTuple):
    """A line of a diff. `old` and `new` are its numbers, or those of the line that comes next there."""

    sign: str  #: " ", "-", "+", or "[" for a note instead of lines
    old: int
    new: int
    text: str


class Difference(NamedTuple):
    """What changed. `lines` are the changed ones and those around them, at most MOST_KEPT or so."""

    lines: list[Line]
    added: int
    removed: int

    def text(self, most_bytes: int = MOST_BYTES, most_lines: int = MOST_LINES) -> str:
        """The hunks, without file names; both ends of what is too long."""
        output = Output(most_bytes, most_lines, keep="both")
        for text in _hunks(self.lines):
            output.feed(text + "\n")
        output.close()
        return output.text().rstrip("\n")


def short_diff(before: str, after: str) -> str:
    """The hunks that lead from one text to another, bounded."""
    return compared(before.encode(), after.encode()).text()


def compared(before: bytes, after: bytes) -> Difference:
    """The difference of two contents."""
    head = _common(before, after)
    if head == len(before) == len(after):
        return Difference([], 0, 0)
    most = min(len(before), len(after)) - head
    tail = _common(before[len(before) - most :][::-1], after[len(after) - most :][::-1])
    return changed(before, [Span(head, len(before) - tail, after[head : len(after) - tail])])


def changed(before: bytes, spans: Sequence[Span]) -> Difference:
    """The difference that replacing the spans makes. They are in order and do not overlap."""
    lines: list[Line] = []
    added = removed = position = shown = 0
    number = 1  # of the line at `position`
    blocks = list(_blocks(before, spans))
    for index, (start, end, new) in enumerate(blocks):
        number += before.count(b"\n", position, start)
        position = start
        kept = len(lines) < MOST_KEPT
        block = _compared_lines(_split(before[start:end]), _split(new), kept)
        if kept:
            above = _above(before, start, shown)
            below = _below(before, end, blocks[index + 1][0] if index + 1 < len(blocks) else len(before))
            first = number - len(above)
            around = [*_plain(above), *block.lines[:MOST_KEPT], *_plain(below)]
            lines.extend(_numbered(around, first, first + added - removed))
            shown = end + sum(map(len, below))
        added, removed = added + block.added, removed + block.removed
    return Difference(lines, added, removed)


# -- where lines begin and end ------------------------------------------------------------------


def _common(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    most = min(len(one), len(other))
    low, step = 0, 64 * 1024
    while low < most and one[low : low + step] == other[low : low + step]:
        low = min(low + step, most)
    high = min(low + step, most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _blocks(before: bytes, spans: Sequence[Span]) -> Iterator[tuple[int, int, bytes]]:
    """Whole lines that change, each with all that is in their place. What shares a line is one block."""
    start = end = 0
    pieces: list[bytes] = []
    for span in spans:
        if pieces and span.start < end:
            pieces[-1] = pieces[-1][: len(pieces[-1]) - (end - span.start)]  # what was taken for the rest of the line
        else:
            if pieces:
                yield start, end, b"".join(pieces)
            start = before.rfind(b"\n", 0, span.start) + 1
            pieces = [before[start : span.start]]
        end = _line_end(before, span)
        pieces += [span.new, before[span.end : end]]
    if pieces:
        yield start, end, b"".join(pieces)


def _line_end(before: bytes, span: Span) -> int:
    """Where the last line that a span changes ends; a span of whole lines changes no further one."""
    whole = span.end > 0 and before[span.end - 1 : span.end] == b"\n"
    if whole and (
        span.new.endswith(b"\n") or (not span.new and before[max(0, span.start - 1) : span.start] in (b"", b"\n"))
    ):
        return span.end
    return before.find(b"\n", span.end) + 1 or len(before)


def _above(before: bytes, start: int, floor: int) -> list[bytes]:
    begin = start
    for _ in range(CONTEXT):
        if begin <= floor:
            break
        begin = before.rfind(b"\n", floor, begin - 1) + 1 or floor
    return _split(before[begin:start])


def _below(before: bytes, end: int, ceiling: int) -> list[bytes]:
    stop = end
    for _ in range(CONTEXT):
        stop = before.find(b"\n", stop, ceiling) + 1 or ceiling
    return _split(before[end:stop])


def _split(content: bytes) -> list[bytes]:
    """Its lines with their ends."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


# -- what a block becomes -----------------------------------------------------------------------


class _Block(NamedTuple):
    lines: list[tuple[str, str]]  #: sign and text
    added: int
    removed: int


def _compared_lines(old: list[bytes], new: list[bytes], kept: bool) -> _Block:
    """The lines of a block, told apart where it is short enough; only counted unless they are kept."""
    if old and new and max(len(old), len(new)) > MOST_COMPARED:
        note = f"[{len(old):,} lines became {len(new):,}: too many to show]"
        return _Block([("[", note)], len(new), len(old))
    if len(old) <= 1 and len(new) <= 1:
        codes = [("replace", 0, len(old), 0, len(new))]
    else:
        codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    lines: list[tuple[str, str]] = []
    added = removed = 0
    for code, one, two, three, four in codes:
        if code == "equal":
            lines += _plain(old[one:two]) if kept else []
            continue
        gone, came = old[one:two], new[three:four]
        added, removed = added + len(came), removed + len(gone)
        if not kept:
            continue
        at = _common(gone[0], came[0]) if gone and came else 0
        for sign, those in (("-", gone), ("+", came)):
            lines += [(sign, _text(line, at)) for line in those[:MOST_KEPT]]
    return _Block(lines, added, removed)


def _plain(lines: list[bytes]) -> list[tuple[str, str]]:
    return [(" ", _text(line, 0)) for line in lines]


def _text(line: bytes, at: int) -> str:
    """A line as it is shown. Of a long one, what is around `at`: there it changed."""
    unended = "" if line.endswith(b"\n") else "\n\\ No newline at end of file"
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) <= MOST_LINE:
        return _decoded(line) + unended
    start = max(0, min(at - MOST_LINE // 4, len(line) - MOST_LINE))
    part = _decoded(line[start : start + MOST_LINE]).strip("\ufffd")
    rest = len(line) - start - MOST_LINE
    head = f"[{start:,} bytes …]" if start else ""
    return f"{head}{part}{f'[… {rest:,} bytes]' if rest else ''}{unended}"


def _decoded(line: bytes) -> str:
    return clean_text(line.decode("utf-8", "replace").removeprefix("\ufeff"))


def _numbered(lines: list[tuple[str, str]], old: int, new: int) -> Iterator[Line]:
    for sign, text in lines:
        yield Line(sign, old, new, text)
        old += sign in " -"
        new += sign in " +"


# -- hunks --------------------------------------------------------------------------------------


def _hunks(lines: list[Line]) -> Iterator[str]:
    """The changed lines with CONTEXT lines around them, each group under its header."""
    group: list[Line] = []
    plain = CONTEXT  # how many unchanged lines end the group
    for line in lines:
        if group and (line.sign == " ") and _follows(group[-1], line):
            group.append(line)
            plain += 1
            continue
        if line.sign == "[" or (group and not _follows(group[-1], line)):
            yield from _hunk(group)
            group, plain = [], 0
        if line.sign == "[":
            yield line.text
            continue
        if line.sign != " " and plain > 2 * CONTEXT and any(each.sign != " " for each in group):
            yield from _hunk(group[: len(group) - plain + CONTEXT])
            group = group[-CONTEXT:]
        group.append(line)
        plain = plain + 1 if line.sign == " " else 0
    yield from _hunk(group)


def _follows(last: Line, line: Line) -> bool:
    return line.old - last.old == (last.sign in " -") and line.new - last.new == (last.sign in " +")


def _hunk(group: list[Line]) -> Iterator[str]:
    changes = [index for index, line in enumerate(group) if line.sign != " "]
    if not changes:
        return
    group = group[max(0, changes[0] - CONTEXT) : changes[-1] + CONTEXT + 1]
    old = _range(group[0].old, sum(line.sign in " -" for line in group))
    new = _range(group[0].new, sum(line.sign in " +" for line in group))
    yield f"@@ -{old} +{new} @@"
    for line in group:
        yield line.sign + line.text


def _range(first: int, count: int) -> str:
    if count == 1:
        return str(first)
    return f"{first if count else first - 1},{count}"
