"""The tool `write`: a file as a whole."""

from __future__ import annotations

from perdure.errors import FileChanged, SandboxError
from perdure.harness.registry import tool
from perdure.harness.threads import in_thread
from perdure.sandbox import FileInfo, Sandbox
from perdure.tools.context import ToolContext
from perdure.tools.diff import compared
from perdure.tools.edit import QUICK, details, other_names
from perdure.tools.encodings import as_utf_8, encoding_of, line_ends
from perdure.tools.kinds import LOOKED_AT, binary_kind
from perdure.tools.locks import lock_of
from perdure.tools.seen import is_stale, saw

#: The largest old content that the new one is compared with.
MOST_COMPARED = 16 * 1024 * 1024


@tool
async def write(call: ToolContext, path: str, content: str) -> str:
    """Write a file as a whole: what was in it is replaced, directories are made as needed.

    To change parts of a file, use edit.

    Args:
        path: The file, absolute or relative to the working directory.
        content: All that the file shall hold.
    """
    try:
        data = content.encode()
    except UnicodeEncodeError as error:
        raise SandboxError(
            f"the content holds a lone surrogate at character {error.start}: it cannot be written"
        ) from None
    if path.endswith("/"):
        raise SandboxError(f"{path} names a directory: name the file to write")
    sandbox = call.sandbox
    async with await lock_of(sandbox, path):
        found = await sandbox.info(path)
        if found is not None and is_stale(sandbox, call.conversation, found):
            raise FileChanged(
                f"{path} was changed since you read it, by a command or by somebody else, and was not written: "
                "read it again"
            )
        old = await _old(sandbox, path, found)
        await sandbox.write(path, data, expected=(found.version or None) if found is not None else None)
        saw(sandbox, call.conversation, await sandbox.info(path))
    if old is not None:
        text = as_utf_8(old, encoding_of(old), path)
        difference = await in_thread(compared, text, data) if len(old) + len(data) > QUICK else compared(text, data)
        call.details(details(path, found, difference))
    lines = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    before = "a new file" if found is None else f"replaced {found.size:,} bytes"
    told = f"Wrote {path}: {lines:,} line{'s' if lines != 1 else ''}, {len(data):,} bytes ({before})."
    return "\n".join([told, *_lost(old, data), *(other_names(found) if found is not None else ())])


async def _old(sandbox: Sandbox, path: str, found: FileInfo | None) -> bytes | None:
    """The text that is replaced, to compare it; None where there is none that can be."""
    if found is None:
        return b""
    if found.kind != "file" or found.size > MOST_COMPARED:
        return None
    try:
        old = await sandbox.read(path)
        encoding = encoding_of(old)
        as_utf_8(old, encoding, path)
    except SandboxError:  # it can be written and not read, or is no text
        return None
    return old if encoding.codec or binary_kind(old[:LOOKED_AT]) is None else None


def _lost(old: bytes | None, data: bytes) -> list[str]:
    """What the old content was that the new one is not, and nobody may have meant to change."""
    if not old:
        return []
    notes: list[str] = []
    before, after = encoding_of(old).name, encoding_of(data).name
    if before != after:
        notes.append(f"[it was {before} and is {after} now]")
    ends = line_ends(old), line_ends(data)
    if "CRLF" in ends and all(ends) and ends[0] != ends[1]:
        notes.append(f"[its lines ended in {ends[0]} and end in {ends[1]} now]")
    return notes
