"""The tool `edit`: exact replacement in a file, everything else byte for byte as it was."""

from __future__ import annotations

import re
from typing import NamedTuple

from perdure.errors import SandboxError
from perdure.harness.registry import tool
from perdure.tools.context import ToolContext
from perdure.tools.diff import short_diff
from perdure.tools.locks import lock_of
from perdure.values import clean_text

#: How large a file may be for hints about near matches, and how many places are named.
HINTED = 4 * 1024 * 1024
MOST_PLACES = 10


@tool
async def edit(call: ToolContext, path: str, old: str, new: str, all: bool = False) -> str:
    """Replace text in a file, exactly. The line endings of the file are kept.

    Args:
        path: The file, absolute or relative to the working directory.
        old: The text to replace, as it stands in the file, with enough around it to occur only once.
        new: The text to put in its place.
        all: Replace every occurrence.
    """
    sandbox = call.sandbox
    found = await sandbox.info(path)
    if found is None:
        raise SandboxError(f"{path} does not exist: use write to make it")
    async with lock_of(sandbox, path, found):
        before = await sandbox.read(path)
        edited = replace(before, old, new, every=all, name=path)
        await sandbox.write(path, edited.content)
    times = f"{edited.places:,} places" if edited.places != 1 else "1 place"
    diff = short_diff(_shown(before), _shown(edited.content))
    return f"Edited {path} in {times}:\n{diff}"


def _shown(content: bytes) -> str:
    return clean_text(content.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n"))


class Edited(NamedTuple):
    """A file's new content, and how many places changed."""

    content: bytes
    places: int


def replace(content: bytes, old: str, new: str, *, every: bool, name: str) -> Edited:
    """Replace `old` where it stands; a line ending in it matches either kind. Raises SandboxError for the model."""
    old, new = (_lf(text.removeprefix("\ufeff")) for text in (old, new))
    if not old:
        raise SandboxError("old is empty: name the text to replace, or use write for the whole file")
    if old == new:
        raise SandboxError("old and new are the same: nothing would change")
    try:
        pattern = re.compile(rb"\r?\n".join(re.escape(line.encode()) for line in old.split("\n")))
        line_feeds = new.encode()
    except UnicodeEncodeError:
        raise SandboxError("old or new holds a lone surrogate, which no file does") from None
    places = list(pattern.finditer(content))
    if not places:
        raise SandboxError(f"old does not occur in {name} ({_size(content)}){_hint(content, old)}")
    if len(places) > 1 and not every:
        lines = [content.count(b"\n", 0, place.start()) + 1 for place in places[:MOST_PLACES]]
        where = _list(lines, len(places))
        raise SandboxError(
            f"old occurs {len(places):,} times in {name}, at lines {where}: add what stands around the one, or all=true"
        )
    carriage_returns = line_feeds.replace(b"\n", b"\r\n")
    returns = content.count(b"\r\n")
    mostly = returns > content.count(b"\n") - returns

    def ending(place: re.Match[bytes]) -> bytes:
        in_place = b"\r\n" in place[0] if b"\n" in place[0] else mostly
        return carriage_returns if in_place else line_feeds

    return Edited(pattern.sub(ending, content), len(places))


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def _size(content: bytes) -> str:
    return f"{len(content.splitlines()):,} lines, {len(content):,} bytes"


def _list(numbers: list[int], count: int) -> str:
    more = f" and {count - MOST_PLACES:,} more" if count > MOST_PLACES else ""
    return ", ".join(str(number) for number in numbers[:MOST_PLACES]) + more


def _hint(content: bytes, old: str) -> str:
    """Where something like it stands: the same but for white space, or its first line."""
    if len(content) > HINTED:
        return ""
    lines = [" ".join(line.split()) for line in content.decode("utf-8", "replace").split("\n")]
    wanted = [" ".join(line.split()) for line in old.strip("\n").split("\n")]
    starts = [index for index, line in enumerate(lines) if line == wanted[0]]
    alike = [start + 1 for start in starts if lines[start : start + len(wanted)] == wanted]
    if alike and any(wanted):
        return f"; lines that differ only in white space begin at {_list(alike, len(alike))}"
    if starts and wanted[0]:
        places = _list([start + 1 for start in starts], len(starts))
        return f"; its first line stands at {places}, but what follows differs"
    return "; read the file again and copy the text from it"
