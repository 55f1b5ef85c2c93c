"""The tool `write`: a file as a whole."""

from __future__ import annotations

from perdure.errors import SandboxError
from perdure.harness.registry import tool
from perdure.tools.context import ToolContext
from perdure.tools.locks import lock_of


@tool
async def write(call: ToolContext, path: str, content: str) -> str:
    """Write a file as a whole: what was in it is replaced, directories are made as needed.

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
    sandbox = call.sandbox
    found = await sandbox.info(path)
    async with lock_of(sandbox, path, found):
        await sandbox.write(path, data)
    before = "a new file" if found is None else f"replaced {found.size:,} bytes"
    lines = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    return f"Wrote {path}: {lines:,} line{'s' if lines != 1 else ''}, {len(data):,} bytes ({before})."
