"""A short unified diff of two texts that are mostly equal."""

from __future__ import annotations

import difflib
import re

from perdure.harness.output import Output

#: Lines around a change, and how many changed lines are compared: comparing is quadratic.
CONTEXT = 3
MOST_COMPARED = 1000
MOST_BYTES = 4096
MOST_LINES = 80

_HUNK = re.compile(r"^@@ -(\d+)((?:,\d+)?) \+(\d+)((?:,\d+)?) @@")


def short_diff(before: str, after: str) -> str:
    """The hunks, without file names, bounded; a note where too much changed to be compared."""
    old, new = before.split("\n"), after.split("\n")
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    if max(len(old), len(new)) - head - tail > MOST_COMPARED:
        return f"[{len(old) - head - tail:,} lines became {len(new) - head - tail:,}: too many to show]"
    start = max(0, head - CONTEXT)
    end = max(0, tail - CONTEXT)
    lines = difflib.unified_diff(old[start : len(old) - end], new[start : len(new) - end], n=CONTEXT, lineterm="")
    output = Output(MOST_BYTES, MOST_LINES, keep="both")
    for line in list(lines)[2:]:
        output.feed(_moved(line, start) + "\n")
    output.close()
    return output.text().rstrip("\n")


def _common(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def _moved(line: str, by: int) -> str:
    """A hunk's header with the line numbers of the whole texts."""
    return _HUNK.sub(lambda m: f"@@ -{int(m[1]) + by}{m[2]} +{int(m[3]) + by}{m[4]} @@", line)
