"""One change of a file at a time: calls of a round run in parallel, and none may write back over another's change."""

from __future__ import annotations

import asyncio
import os.path
from weakref import WeakValueDictionary

from perdure.sandbox import FileInfo, Sandbox

#: By loop, sandbox and path. A lock lives as long as somebody holds it or waits for it.
_locks: WeakValueDictionary[tuple[int, str, str, str], asyncio.Lock] = WeakValueDictionary()


def lock_of(sandbox: Sandbox, path: str, found: FileInfo | None) -> asyncio.Lock:
    """The lock of a file: `found` is what `info` says of its path, so that links to it share the lock."""
    real = found.path if found is not None else os.path.normpath(os.path.join(sandbox.root, path))
    key = (id(asyncio.get_running_loop()), sandbox.id, sandbox.root, real)
    lock = _locks.get(key)
    if lock is None:
        lock = _locks[key] = asyncio.Lock()
    return lock
