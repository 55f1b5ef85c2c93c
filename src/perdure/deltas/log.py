"""The operations of a draft, kept compact while they are recorded."""

from __future__ import annotations

from typing import Any

from perdure.deltas.operations import Op


class Log:
    """Operations in order.

    Only the newest ones are ever folded into the next: what lies between an older one and now may have moved its path.
    Invariant: `add` in an object was recorded only where the member was missing. An operation is never changed, only
    exchanged for another, so that a list that was handed out stays what it was.
    """

    __slots__ = ("ops",)

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, path: str, value: Any) -> None:
        self.ops.append({"op": "add", "path": path, "value": value})

    def replace(self, path: str, value: Any) -> None:
        newest = self._newest_beside(path)
        if newest is not None and newest["op"] == "add" and newest["path"] == path:
            self.ops[-1] = {"op": "add", "path": path, "value": value}
        else:
            self.ops.append({"op": "replace", "path": path, "value": value})

    def remove(self, path: str) -> None:
        newest = self._newest_beside(path)
        if newest is not None and newest["op"] == "add" and newest["path"] == path:
            self.ops.pop()
        else:
            self.ops.append({"op": "remove", "path": path})

    def append(self, path: str, text: str) -> None:
        newest = self.ops[-1] if self.ops else None
        if newest is not None and newest["path"] == path and newest["op"] in _WITH_VALUE:
            # Text stands at the path now, so the newest operation put text there.
            self.ops[-1] = {**newest, "value": newest["value"] + text}
        else:
            self.ops.append({"op": "append", "path": path, "value": text})

    def truncate(self, path: str, keep: int) -> None:
        newest = self.ops[-1] if self.ops else None
        if newest is not None and newest["path"] == path and newest["op"] == "truncate":
            self.ops.pop()  # it kept more
        self.ops.append({"op": "truncate", "path": path, "keep": keep})

    def _newest_beside(self, path: str) -> Op | None:
        """Forgets the newest operations as far as they changed only what stood at `path`; gives the next older one."""
        ops = self.ops
        while ops:
            newest = ops[-1]
            other: str = newest["path"]
            if other == path:
                if newest["op"] not in _WITHIN:
                    return newest
            elif not other.startswith(path) or other[len(path)] != "/":
                return newest
            ops.pop()
        return None


_WITH_VALUE = frozenset({"add", "replace", "append"})
#: Operations that, at a path, leave nothing once the path is replaced or removed.
_WITHIN = frozenset({"replace", "append", "truncate"})
