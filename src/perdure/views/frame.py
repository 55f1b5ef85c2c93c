"""Projections: what readers see of a session, kept up with each commit from what that commit itself says it did."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from perdure.deltas import Op
from perdure.records import Entry, Record, Seq, decode_json, encode
from perdure.session.change import Change
from perdure.session.documents import DocumentChange
from perdure.surface.frames import Deltas, Ended, Whole


class Moment(msgspec.Struct, frozen=True, gc=False):
    """A view as of a commit. The value is shared and never changed."""

    seq: Seq
    value: Any


class Step(msgspec.Struct, frozen=True, gc=False):
    """What leads from one moment of a view to the next. `entries`: the records that it adds, where they are at hand."""

    ops: tuple[Op, ...]
    ended: tuple[Ended, ...] = ()
    entries: tuple[Entry, ...] | None = None


class Projection(Protocol):
    """A view of a session that is kept up with its commits.

    `settle` makes it whole once what it needs was read: `late` are the commits that came meanwhile.
    `advance` is given each commit after that, and says what it changed. None: nothing that is seen.
    `gone` says why there is nothing to see any more.
    """

    value: Any
    gone: str | None

    def settle(self, late: list[Change]) -> None: ...

    def advance(self, change: Change) -> Step | None: ...


class Composition:
    """The next value of a view that is a JSON object, and the operations that lead to it, made side by side.

    Invariant: applying `ops` to the value before gives `value`; the value before is not changed, nor what it holds.
    """

    __slots__ = ("_fresh", "ended", "ops", "value")

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self.ops: list[Op] = []
        self.ended: list[Ended] = []
        #: Parts that were copied, and may be changed in place.
        self._fresh: dict[str, None] = {}

    def put(self, part: str, value: Any) -> None:
        """A part becomes another value, if it is one."""
        if self.value[part] != value:
            self._set(part, value)
            self.ops.append({"op": "replace", "path": f"/{part}", "value": value})

    def put_in(self, part: str, key: str, value: Any) -> None:
        """A member of a part that is an object comes, or becomes another."""
        held = self.value[part]
        if key not in held:
            op = "add"
        elif held[key] == value:
            return
        else:
            op = "replace"
        self._own(part)[key] = value
        self.ops.append({"op": op, "path": f"/{part}/{key}", "value": value})

    def drop_from(self, part: str, key: str, ended: Record | None = None) -> None:
        """A member of a part goes, if it is there; `ended` is what became of it."""
        if key not in self.value[part]:
            return
        del self._own(part)[key]
        path = f"/{part}/{key}"
        self.ops.append({"op": "remove", "path": path})
        if ended is not None:
            self.end(path, ended)

    def end(self, path: str, record: Record) -> None:
        """What the view showed there has ended as this record."""
        self.ended.append(Ended(path=path, record=as_json(record)))

    def push(self, part: str, item: Any) -> None:
        """An item comes at the end of a part that is a list."""
        self._own(part).append(item)
        self.ops.append({"op": "add", "path": f"/{part}/-", "value": item})

    def truncate(self, part: str, keep: int) -> None:
        """Only the last items of a part that is a list stay."""
        gone = len(self.value[part]) - keep
        if gone > 0:
            del self._own(part)[:gone]
            self.ops.append({"op": "truncate", "path": f"/{part}", "keep": keep})

    def follow(self, part: str, document: DocumentChange) -> None:
        """A part that shows a document becomes what the commit made of that."""
        if document.whole:
            self.put(part, document.value)
            return
        self._set(part, document.value)
        self.ops += [_below(f"/{part}", op) for op in document.ops]

    def step(self, entries: tuple[Entry, ...] | None = None) -> Step | None:
        """What was done; None where nothing was. `entries`: see `Step`."""
        return Step(tuple(self.ops), tuple(self.ended), entries) if self.ops or self.ended else None

    def _own(self, part: str) -> Any:
        if part not in self._fresh:
            self._set(part, self.value[part].copy())
            self._fresh[part] = None
        return self.value[part]

    def _set(self, part: str, value: Any) -> None:
        if not self._fresh:
            self.value = self.value.copy()
            self._fresh[""] = None
        self._fresh.pop(part, None)
        self.value[part] = value


def _below(prefix: str, op: Op) -> Op:
    """The same operation on a value that stands at `prefix` of another."""
    moved = {**op, "path": prefix + op["path"]}
    if "from" in op:
        moved["from"] = prefix + op["from"]
    return moved


def as_json(record: Record | msgspec.Struct) -> Any:
    """A record as the JSON value that it is stored as."""
    return decode_json(encode(record))


def entry_json(entry: Entry) -> dict[str, Any]:
    """As `as_json`, three times as fast for an entry: its content is neither written nor read."""
    value: dict[str, Any] = msgspec.to_builtins(entry)
    messages = value.get("messages")
    if messages is not None:
        for message in messages:
            if "parts" in message:
                message["parts"] = list(message["parts"])
        value["messages"] = list(messages)
    return value if "edits" not in value else as_json(entry)


class Frames:
    """Tells of a view in frames."""

    def whole(self, now: Moment) -> Whole:
        return Whole(seq=now.seq, view=now.value)

    def step(self, before: Moment, step: Step, now: Moment) -> Deltas:
        return Deltas(seq=now.seq, after=before.seq, ops=step.ops, ended=step.ended)


FRAMES = Frames()
