"""Which version of a file a conversation saw last, so that it is not told that it may write over another's change.

Kept in memory only: after a restart nothing was seen, and nothing is refused for it.
"""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakKeyDictionary

from perdure.sandbox import FileInfo, Sandbox

#: How many files of a sandbox are remembered, over all conversations.
MOST = 10_000

#: By sandbox: versions by conversation and path, the one that was touched last at the end.
_seen: WeakKeyDictionary[Sandbox, OrderedDict[tuple[int, str], str]] = WeakKeyDictionary()


def _versions(sandbox: Sandbox) -> OrderedDict[tuple[int, str], str]:
    try:
        return _seen.setdefault(sandbox, OrderedDict())
    except TypeError:  # a sandbox that cannot be a key: nothing is remembered for it
        return OrderedDict()


def saw(sandbox: Sandbox, conversation: int, found: FileInfo | None) -> None:
    """The conversation knows the file as it is now."""
    if found is None or not found.version:
        return
    versions = _versions(sandbox)
    versions[conversation, found.path] = found.version
    versions.move_to_end((conversation, found.path))
    if len(versions) > MOST:
        versions.popitem(last=False)


def is_stale(sandbox: Sandbox, conversation: int, found: FileInfo) -> bool:
    """Whether the conversation saw the file, and it is another one now."""
    known = _versions(sandbox).get((conversation, found.path))
    return known is not None and known != found.version
