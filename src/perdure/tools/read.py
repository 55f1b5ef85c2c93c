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
from perdure.tools.encodings import as_utf_8, encoding_of
from perdure.tools.kinds import LOOKED_AT, binary_kind
from perdure.tools.seen import saw
from perdure.values import clean_text

#: Bytes of a file in one answer; what the answer says about them has its place within the limit of all outputs.
MOST_BYTES = LIMIT_BYTES - 1024
#: Lines are counted to the end of files up to this size.
COUNTED = 4 * 1024 * 1024
#: How much is looked through at a time for the line to begin with.
PIECE = 4 * 1024 * 1024
#: UTF-16 can only be shown after all of it was read.
MOST_UTF_16 = 16 * 1024 * 1024
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
    encoding = encoding_of(start)
    kind = binary_kind(start)
    if kind is not None and not (encoding.codec and kind == "unknown kind"):
        raise SandboxError(f"{path} is binary and not shown: {kind}, {found.size:,} bytes")
    content = await _whole(sandbox, path, found) if encoding.codec else None
    shown = await _Source(sandbox, path, found, content).lines(offset, min(limit, 2000)) if start else _EMPTY
    saw(sandbox, call.conversation, found)
    about = {"path": found.path, "bytes": found.size, "encoding": encoding.name}
    call.details({**about, "first": shown.first, "last": shown.last, "lines": shown.total})
    notes = [] if not encoding.codec else [f"[the file is {encoding.name}]"]
    return "\n".join(filter(None, [shown.text.removesuffix("\n") if notes else shown.text, *notes]))


async def _whole(sandbox: Sandbox, path: str, found: FileInfo) -> bytes:
    if found.size > MOST_UTF_16:
        raise SandboxError(
            f"{path} is UTF-16 text of {found.size:,} bytes: more than {MOST_UTF_16:,} are not shown, convert it first"
        )
    content = await sandbox.read(path)
    return as_utf_8(content, encoding_of(content), path)


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
    if os.path.basename(path) in names:
        return ": it is a symbolic link whose target is missing"
    near = difflib.get_close_matches(os.path.basename(path), [name.rstrip("/") for name in names], n=3)
    return clean_text(f"; near it: {', '.join(near)}") if near else ""


class _Shown(NamedTuple):
    """A window of lines with the notes about it; `total` is None where counting all takes too long."""

    text: str
    first: int
    last: int
    total: int | None


_EMPTY = _Shown("[empty file]", 0, 0, 0)


class _Source:
    """The lines of a file, read piece by piece, or those of a content that was made of it."""

    def __init__(self, sandbox: Sandbox, path: str, found: FileInfo, content: bytes | None) -> None:
        self._sandbox = sandbox
        self._path = path
        self._content = content
        self._size = found.size if content is None else len(content)

    async def _read(self, offset: int, limit: int) -> bytes:
        if self._content is not None:
            return self._content[offset : offset + limit]
        return await self._sandbox.read(self._path, offset=offset, limit=limit)

    async def lines(self, offset: int, limit: int) -> _Shown:
        begin, before = await self._start_of(offset)
        content = await self._read(begin, MOST_BYTES + 1)
        if not content:
            unended = begin > 0 and await self._read(begin - 1, 1) != b"\n"
            raise SandboxError(f"{self._path} has {before + unended:,} lines: there is no line {offset:,}")
        window = cut(content, limit)
        notes: list[str] = []
        last = offset + window.lines - 1
        total: int | None = last
        if window.torn:
            notes.append(f"[line {last} is longer: only its first {len(window.content):,} bytes are shown]")
        if window.more:
            rest = await self._count_rest(begin + len(window.content))
            total = last + rest - window.torn if rest is not None else None
            of = f" of {total:,}" if total is not None else ""
            if rest is None or rest > window.torn:
                notes.append(f"[lines {offset:,} to {last:,}{of}; go on with offset={last + 1}]")
        return _Shown(_text(window.content, notes), offset, last, total)

    async def _start_of(self, line: int) -> tuple[int, int]:
        """Where a line begins, in bytes, and how many lines end before; fewer than asked for where the file ends."""
        position = ended = 0
        while ended < line - 1:
            piece = await self._read(position, PIECE)
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

    async def _count_rest(self, position: int) -> int | None:
        """How many lines begin or go on after a position; None where counting takes too long."""
        if self._size > COUNTED:
            return None
        rest = await self._read(position, COUNTED)
        return rest.count(b"\n") + (1 if rest and not rest.endswith(b"\n") else 0)


def _text(content: bytes, notes: list[str]) -> str:
    text = content.decode("utf-8", "replace")
    if "\ufffd" in text and text.encode() != content:
        notes.append("[what is not UTF-8 is shown as \ufffd]")
    if "\0" in text:
        notes.append("[zero bytes are shown as \u2400]")
    text = clean_text(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    if notes and not text.endswith("\n"):
        text += "\n"
    return text + "\n".join(notes)


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
