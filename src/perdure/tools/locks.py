"""One change of a file at a time: calls run in parallel, and none may write back over another's change.

This orders the calls of one process. Against others, an edit is tied to the version that it read (`Sandbox.write`).
"""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from weakref import WeakValueDictionary

from perdure.sandbox import Sandbox

#: By loop and path. A lock lives as long as somebody holds it or waits for it.
#: Two sandboxes may show one directory, so the sandbox is no part of it; at worst, two files of one name wait.
_locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()


async def lock_of(sandbox: Sandbox, path: str) -> asyncio.Lock:
    """The lock of a file, the same by whatever links and directories it is named, and also before it is there."""
    key = (id(asyncio.get_running_loop()), await _real(sandbox, path))
    lock = _locks.get(key)
    if lock is None:
        lock = _locks[key] = asyncio.Lock()
    return lock


async def _real(sandbox: Sandbox, path: str) -> str:
    """The resolved path; of what is not there, that of the nearest directory, and the rest as it is named."""
    rest = PurePosixPath(path)
    found = await sandbox.info(path)
    missing: list[str] = []
    while found is None and rest.name:
        missing.append(rest.name)
        rest = rest.parent
        found = await sandbox.info(str(rest))
    return str(PurePosixPath(found.path if found is not None else sandbox.root, *reversed(missing)))
