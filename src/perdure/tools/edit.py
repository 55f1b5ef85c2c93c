"""The tool `edit`: exact replacements in a file, everything else byte for byte as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.errors import FileChanged, SandboxError
from perdure.harness.registry import tool
from perdure.harness.threads import in_thread
from perdure.sandbox import FileInfo, Sandbox
from perdure.tools.context import ToolContext
from perdure.tools.diff import Difference, changed
from perdure.tools.encodings import as_it_was, as_utf_8, encoding_of
from perdure.tools.kinds import LOOKED_AT, binary_kind
from perdure.tools.locks import lock_of
from perdure.tools.replacing import Change, replace
from perdure.tools.seen import is_stale, saw

#: The largest file that is edited: it is read as a whole.
MOST_BYTES = 64 * 1024 * 1024
#: What of a difference is kept in the details, for people.
DETAIL_BYTES, DETAIL_LINES = 16 * 1024, 400
#: How often an edit is made again because another process changed the file meanwhile.
TRIES = 10
#: Up to this size an edit takes no longer than to start a thread for it.
QUICK = 256 * 1024


@tool
async def edit(call: ToolContext, path: str, old: str, new: str, all: bool = False, more: Sequence[Change] = ()) -> str:
    """Replace text in a file, exactly. The line endings and the encoding of the file are kept.

    Copy `old` from the file, with its indentation. To make a new file, use write.

    Args:
        path: The file, absolute or relative to the working directory.
        old: The text to replace, as it stands in the file, with enough around it to occur only once.
        new: The text to put in its place.
        all: Replace every occurrence.
        more: Further replacements in the same file. Either all are made or none; each is looked for in the file as it
            was before this call.
    """
    sandbox = call.sandbox
    changes = (Change(old, new, all), *more)
    async with await lock_of(sandbox, path):
        made, stale = await _made(sandbox, path, changes, call.conversation)
        saw(sandbox, call.conversation, await sandbox.info(path))
    call.details({"places": made.places, **details(path, made.found, made.difference)})
    times = f"{made.places:,} places" if made.places != 1 else "1 place"
    notes = (
        ["[it had been changed since you read it, by a command or by somebody else: read it again]"] if stale else []
    )
    return "\n".join([f"Edited {path} in {times}:", made.difference.text(), *notes, *other_names(made.found)])


class _Made(NamedTuple):
    found: FileInfo
    places: int
    difference: Difference


async def _made(sandbox: Sandbox, path: str, changes: tuple[Change, ...], conversation: int) -> tuple[_Made, bool]:
    """Make the edit, and again where another process was quicker; and whether the file was not as it was seen."""
    for tries in range(1, TRIES + 1):
        found = await _file(sandbox, path)
        stale = is_stale(sandbox, conversation, found)
        before = await sandbox.read(path)
        if len(before) > QUICK:
            content, places, difference = await in_thread(_edited, before, changes, path)
        else:
            content, places, difference = _edited(before, changes, path)
        try:
            await sandbox.write(path, content, expected=found.version or None)
        except FileChanged:
            if tries == TRIES:
                raise
        else:
            return _Made(found, places, difference), stale
    raise AssertionError("unreachable")


async def _file(sandbox: Sandbox, path: str) -> FileInfo:
    found = await sandbox.info(path)
    if found is None:
        raise SandboxError(f"{path} does not exist: use write to make it")
    if found.size > MOST_BYTES:
        raise SandboxError(
            f"{path} has {found.size:,} bytes: edit takes files of up to {MOST_BYTES:,}, use a command for this one"
        )
    return found


def _edited(before: bytes, changes: tuple[Change, ...], path: str) -> tuple[bytes, int, Difference]:
    encoding = encoding_of(before)
    kind = None if encoding.codec else binary_kind(before[:LOOKED_AT])
    if kind is not None:
        raise SandboxError(f"{path} is binary and not changed: {kind}, {len(before):,} bytes")
    text = as_utf_8(before, encoding, path)
    edited = replace(text, changes, name=path)
    return as_it_was(edited.content, encoding), len(edited.spans), changed(text, edited.spans)


def details(path: str, found: FileInfo | None, difference: Difference) -> dict[str, object]:
    """What people are shown of a changed file: a unified diff with names, and how many lines came and went."""
    hunks = difference.text(DETAIL_BYTES, DETAIL_LINES)
    before = "/dev/null" if found is None else f"a/{path.lstrip('/')}"
    return {
        "path": path if found is None else found.path,
        "new": found is None,
        "added": difference.added,
        "removed": difference.removed,
        "diff": f"--- {before}\n+++ b/{path.lstrip('/')}\n{hunks}" if hunks else "",
    }


def other_names(found: FileInfo) -> list[str]:
    """A note where the file had other names: they were left as they were."""
    if found.links < 2:
        return []
    names = "other name" if found.links == 2 else "other names"
    return [f"[it had {found.links - 1} {names} (hard links), which keep the old content]"]
