"""What the objects and lists of a draft have in common: their place, their rights, and copying on the first write."""

from __future__ import annotations

from typing import Any

from perdure.deltas.log import Log
from perdure.errors import HandleExpired, InvalidValue, UsageError
from perdure.values.strict import JsonProxy, clean, clean_text, escape, type_of

MISSING: Any = object()
#: Types of which equal values are the same value. Containers would cost their size, and 0.0 equals -0.0.
_COMPARED = frozenset({str, int, bool, type(None)})


class Trunk:
    """What all parts of one draft share."""

    __slots__ = ("closed", "epoch", "kinds", "log")

    def __init__(self, kinds: dict[type, type[Part]]) -> None:
        self.log = Log()
        self.closed = False
        #: Containers copied in this epoch belong to the draft alone and are changed in place.
        self.epoch = 0
        #: As what a container is handed out.
        self.kinds = kinds


class Part(JsonProxy):
    """An object or list in a draft.

    Invariants, while it is attached: its value is what its parent's value holds at its key. It is changed in place only
    in the epoch in which the draft copied it; before, the original, an operation or a reader may hold it too.
    A detached part (its place was removed or replaced) can still be read: nobody changes its value any more.
    """

    __slots__ = ("_attached", "_depth", "_epoch", "_key", "_parent", "_parts", "_trunk", "_value")

    def __init__(self, trunk: Trunk, parent: Part | None, key: Any, value: Any) -> None:
        self._trunk = trunk
        self._parent = parent
        self._key = key
        self._value = value
        self._epoch = -1
        self._attached: bool = parent is None or parent._attached
        #: How many containers are around its members, itself included.
        self._depth: int = 1 if parent is None else parent._depth + 1
        #: The parts that were handed out of this one and still have their place in it, by their present key.
        self._parts: dict[Any, Part] = {}

    # -- rights

    def lend(self) -> Any:
        """The value, for reading and copying at once. Raises HandleExpired after the commit."""
        if self._trunk.closed:
            raise HandleExpired("the commit of this draft has ended; ask for the document in a new commit")
        return self._value

    def _writable(self) -> Any:
        """The value, which is about to be changed."""
        if self._trunk.closed:
            self.lend()
        if not self._attached:
            raise HandleExpired("detached: the place of this part was removed or replaced; read it from the root again")
        return self._value

    def _own(self) -> Any:
        """The value, ready to be changed in place."""
        if self._epoch != self._trunk.epoch:
            value = self._value.copy()
            if self._parent is not None:
                self._parent._own()[self._key] = value
            self._value = value
            self._epoch = self._trunk.epoch
        return self._value

    # -- places

    def _path(self) -> str:
        return "" if self._parent is None else self._parent._path_to(self._key)

    def _path_to(self, key: Any) -> str:
        path = f"/{escape(key) if type(key) is str else key}"
        part = self
        while part._parent is not None:
            key = part._key
            path = f"/{escape(key) if type(key) is str else key}{path}"
            part = part._parent
        return path

    def _place(self, key: Any) -> Any:
        """The key or index under which something stands. Raises KeyError or IndexError."""
        raise NotImplementedError

    def _hand_out(self, key: Any) -> Any:
        """What stands at a key: a container as a part, anything else as itself."""
        value = self._value[key]
        kind = self._trunk.kinds.get(type_of(value))
        if kind is None:
            return value
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = kind(self._trunk, self, key, value)
        return part

    def _detach(self) -> None:
        self._attached = False
        for part in self._parts.values():
            part._detach()

    def _forget(self) -> None:
        """Nobody asks for the parts any more: without them the draft is gone as soon as its last user is."""
        if self._parts:
            for part in self._parts.values():
                part._forget()
            self._parts = {}

    def _detach_at(self, key: Any) -> None:
        part = self._parts.pop(key, None)
        if part is not None:
            part._detach()

    # -- changes

    def _replace(self, key: Any, value: Any, path: str) -> None:
        """Puts a clean value where something stands."""
        before = self._value[key]
        kind = type_of(value)
        if kind in _COMPARED and type_of(before) is kind and before == value:
            return
        if self._parts:
            self._detach_at(key)
        self._own()[key] = value
        self._trunk.log.replace(path, value)

    def _replace_whole(self, value: Any) -> None:
        """Replaces the part's own value. The operation holds the new one too, so it is not ours to change."""
        if self._parent is not None:
            self._parent._own()[self._key] = value
        self._value = value
        self._epoch = -1
        self._trunk.log.replace(self._path(), value)

    def append_text(self, key: Any, text: str) -> None:
        """Adds to the end of the text at `key`; only the addition is stored. Raises InvalidValue if it is no text."""
        value = self._writable()
        key = self._place(key)
        before = value[key]
        if type(before) is not str or type(text) is not str:
            found, given = type_of(before).__name__, type_of(text).__name__
            raise InvalidValue(f"{self._path_to(key)}: append_text adds a str to a str, not a {given} to a {found}")
        text = clean_text(text)
        if text:
            self._own()[key] = before + text
            self._trunk.log.append(self._path_to(key), text)

    def clear(self) -> None:
        if self._writable():
            for key in list(self._parts):
                self._detach_at(key)
            self._replace_whole(type(self._value)())

    # -- comparing and showing

    def __len__(self) -> int:
        return len(self.lend())

    def __eq__(self, other: object) -> bool:
        value = self.lend()
        return bool(value == (other.lend() if isinstance(other, JsonProxy) else other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        if self._trunk.closed:
            return f"<{type(self).__name__}, expired>"
        return f"{type(self).__name__}({self._value!r})"


def plain(draft: JsonProxy) -> Any:
    """A copy of what a draft, or a part of one, holds now, as ordinary dicts and lists. Raises HandleExpired."""
    return clean(draft)


def checked_window(keep: Any) -> int:
    if type(keep) is int and keep >= 0:
        return keep
    raise UsageError(f"truncate keeps 0 or more items or characters, not {keep!r}")
