"""The tool `read`: a window of a text file's lines, or the names in a directory."""

from __future__ import annotations

import difflib
import os.path
from typing import NamedTuple

from perdure.errors import SandboxError
from perdure.harness.output import LIMIT_BYTES
from perdure.harness.registry import tool
from perdure.sandbox import FileInfo, Sandbox
from perdure.tools.context import ToolContext
from perdure.tools.kinds import LOOKED_AT, binary_kind
from perdure.values import clean_text

#: Bytes of a file in one answer; what the answer says about them has its place within the limit of all outputs.
MOST_BYTES = LIMIT_BYTES - 1024
#: Lines are counted to the end of files up to this size.
COUNTED = 4 * 1024 * 1024
PIECE = 1024 * 1024
MOST_NAMES = 1000


@tool(replay="safe")
async def read(call: ToolContext, path: str, offset: int = 1, limit: int = 2000) -> str:
    """Read a text file, or list a directory.

    Long files are shown in parts: the last line of the answer then says how to go on.

    Args:
        path: The file or directory, absolute or relative to the working directory.
        offset: The first line to show, counted from 1.
        limit: How many lines to show at most.
    """
    if offset < 1 or limit < 1:
        raise SandboxError(f"offset and limit count lines from 1, not {offset} and {limit}")
    sandbox = call.sandbox
    found = await sandbox.info(path)
    if found is None:
        raise SandboxError(f"{path} does not exist{await _suggestion(sandbox, path)}")
    if found.kind == "directory":
        return await _listing(sandbox, path)
    start = await sandbox.read(path, limit=LOOKED_AT)
    kind = binary_kind(start)
    if kind is not None:
        raise SandboxError(f"{path} is binary and not shown: {kind}, {found.size:,} bytes")
    if not start:
        return "[empty file]"
    return await _lines(sandbox, path, found, offset, min(limit, 2000))


async def _listing(sandbox: Sandbox, path: str) -> str:
    names = await sandbox.names(path, limit=MOST_NAMES + 1)
    shown = "\n".join(clean_text(name) for name in names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        shown += f"\n[only the first {MOST_NAMES:,} names]"
    return shown or "[empty directory]"


async def _suggestion(sandbox: Sandbox, path: str) -> str:
    """What of its directory could be meant."""
    try:
        names = await sandbox.names(os.path.dirname(path) or ".", limit=MOST_NAMES)
    except SandboxError:
        return ""
    near = difflib.get_close_matches(os.path.basename(path), [name.rstrip("/") for name in names], n=3)
    return clean_text(f"; near it: {', '.join(near)}") if near else ""


async def _lines(sandbox: Sandbox, path: str, found: FileInfo, offset: int, limit: int) -> str:
    begin, before = await _start_of(sandbox, path, offset)
    content = await sandbox.read(path, offset=begin, limit=MOST_BYTES + 1)
    if not content:
        unended = await sandbox.read(path, offset=begin - 1, limit=1) != b"\n"
        raise SandboxError(f"{path} has {before + unended:,} lines: there is no line {offset:,}")
    window = cut(content, limit)
    notes: list[str] = []
    last = offset + window.lines - 1
    if window.torn:
        notes.append(f"[line {last} is longer: only its first {len(window.content):,} bytes are shown]")
    if window.more:
        rest = await _count_rest(sandbox, path, found, begin + len(window.content))
        of = f" of {last + rest - window.torn:,}" if rest is not None else ""
        if rest is None or rest > window.torn:
            notes.append(f"[lines {offset:,} to {last:,}{of}; go on with offset={last + 1}]")
    text = window.content.decode("utf-8", "replace")
    if "\ufffd" in text and text.encode() != window.content:
        notes.append("[what is not UTF-8 is shown as \ufffd]")
    text = clean_text(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    if notes and not text.endswith("\n"):
        text += "\n"
    return text + "\n".join(notes)


async def _start_of(sandbox: Sandbox, path: str, line: int) -> tuple[int, int]:
    """Where a line begins, in bytes, and how many lines end before; fewer than asked for where the file ends."""
    position = ended = 0
    while ended < line - 1:
        piece = await sandbox.read(path, offset=position, limit=PIECE)
        if not piece:
            break
        count = piece.count(b"\n")
        if ended + count < line - 1:
            ended, position = ended + count, position + len(piece)
            continue
        at = -1
        while ended < line - 1:
            at, ended = piece.index(b"\n", at + 1), ended + 1
        position += at + 1
    return position, ended


async def _count_rest(sandbox: Sandbox, path: str, found: FileInfo, position: int) -> int | None:
    """How many lines begin or go on after a position; None where counting takes too long."""
    if found.size > COUNTED:
        return None
    rest = await sandbox.read(path, offset=position, limit=COUNTED)
    return rest.count(b"\n") + (1 if rest and not rest.endswith(b"\n") else 0)


class Window(NamedTuple):
    """Whole lines from the beginning of some content, or a part of the first when that is too long."""

    content: bytes
    lines: int
    more: bool
    torn: bool


def cut(content: bytes, limit: int) -> Window:
    """At most `limit` lines and MOST_BYTES. `content` has at least one byte more than that if there is more."""
    end = lines = 0
    while lines < limit:
        at = content.find(b"\n", end, MOST_BYTES)
        if at < 0:
            break
        end, lines = at + 1, lines + 1
    if lines < limit and len(content) <= MOST_BYTES and end < len(content):
        end, lines = len(content), lines + 1
    if end == 0:
        whole = content[:MOST_BYTES].decode("utf-8", "ignore").encode() or content[:MOST_BYTES]
        return Window(whole, 1, more=True, torn=True)
    return Window(content[:end], lines, more=end < len(content), torn=False)
