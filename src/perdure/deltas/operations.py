"""Operations applied to JSON values that others may hold: nothing that was given is ever changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from perdure.errors import InvalidValue
from perdure.values.strict import type_of

#: One operation, as the package describes it.
Op: TypeAlias = dict[str, Any]


def apply(value: Any, ops: Iterable[Op]) -> Any:
    """The value after the operations, in order.

    Neither `value` nor a value in `ops` is changed; what did not change is shared with them. Only the containers along
    the changed paths are copied, each once however many operations there are.
    Raises InvalidValue when an operation does not fit: it is malformed, or nothing stands where it points.
    """
    editor = _Editor(value)
    for number, op in enumerate(ops):
        _perform(editor, number, op)
    return editor.value


def as_json_patch(value: Any, ops: Iterable[Op]) -> list[Op]:
    """The same change of `value` in operations of RFC 6902 alone, for readers who know nothing of perdure's two.

    - `append` becomes `replace` with the whole text
    - `truncate` of a list becomes `remove` of its first item, as often as needed, or `replace` where less is kept than
      goes; `truncate` of a text becomes `replace`; where nothing goes, nothing

    Raises InvalidValue as `apply`.
    """
    editor = _Editor(value)
    patch: list[Op] = []
    for number, op in enumerate(ops):
        before = editor.value
        editor.share()  # what goes into the patch must not change with the next operation
        _perform(editor, number, op)
        if op["op"] in {"append", "truncate"}:
            patch += _plain_ops(op["path"], _at(before, op["path"]), _at(editor.value, op["path"]))
        else:
            patch.append(op)
    return patch


def _plain_ops(path: str, before: Any, after: Any) -> list[Op]:
    kept = len(after)
    gone = len(before) - kept
    if isinstance(after, list) and gone <= kept:
        return [{"op": "remove", "path": f"{path}/0"} for _ in range(gone)]
    return [] if gone == 0 else [{"op": "replace", "path": path, "value": after}]


def _at(value: Any, path: str) -> Any:
    for part in _parts(path):
        value = value[_place(value, part)]
    return value


def _perform(editor: _Editor, number: int, op: Op) -> None:
    try:
        _STEPS[op["op"]](editor, op)
    except (KeyError, TypeError):  # the steps themselves raise only _Unfit
        raise InvalidValue(f"operation {number} is malformed: {_shown(op)} is none of {', '.join(_STEPS)}") from None
    except _Unfit as unfit:
        raise InvalidValue(f"operation {number}, {_shown(op)}, does not fit the value: {unfit}") from None


def _shown(op: Op) -> str:
    """An operation for a message, without its value."""
    if not issubclass(type_of(op), dict):
        return f"a {type_of(op).__name__}"
    return " ".join(f"{name} {str(op[name])[:200]!r}" for name in ("op", "from", "path", "keep") if name in op) or "{}"


class _Unfit(Exception):
    """Why an operation cannot be performed."""


# -- pointers -----------------------------------------------------------------------------------


def _parts(path: Any) -> list[str]:
    if type(path) is not str or (path and path[0] != "/"):
        raise _Unfit("a path is a JSON pointer: empty, or parts that each begin with a slash")
    parts = path.split("/")[1:]
    return [_unescaped(part) for part in parts] if "~" in path else parts


def _unescaped(part: str) -> str:
    if part.count("~") != part.count("~0") + part.count("~1"):
        raise _Unfit("a ~ in a path is written ~0, a slash ~1")
    return part.replace("~1", "/").replace("~0", "~")


def _place(container: Any, part: str) -> Any:
    """The key or index that `part` means in `container`, where something stands."""
    kind = type_of(container)
    if kind is dict:
        if part in container:
            return part
        raise _Unfit(f"there is no member {part[:60]!r}")
    if kind is list:
        return _index(part, len(container))
    raise _Unfit(f"{part[:60]!r} is looked for in something that is neither object nor list")


def _index(part: str, end: int) -> int:
    # As RFC 6901 writes an index: digits without a leading zero. Eighteen digits are more than any list has.
    if part.isascii() and part.isdigit() and len(part) <= 18 and (part[0] != "0" or part == "0") and int(part) < end:
        return int(part)
    raise _Unfit(f"{part[:60]!r} is no index below {end}")


# -- performing ---------------------------------------------------------------------------------


class _Editor:
    """A value while operations are applied to it.

    Invariant: only containers in `_mine` are changed in place; they were made here and stand in the value once.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        #: Containers made since the last `share`, by their id; held here, so that an id stays theirs.
        self._mine: dict[int, Any] = {}

    def share(self) -> None:
        """From now on somebody else may hold parts of the value."""
        self._mine.clear()

    def _made_mine(self, container: Any) -> Any:
        if id(container) in self._mine:
            return container
        kind = type_of(container)
        if kind is not dict and kind is not list:
            raise _Unfit("the path leads through something that is neither object nor list")
        fresh: Any = container.copy()
        self._mine[id(fresh)] = fresh
        return fresh

    def _holder(self, parts: list[str]) -> Any:
        """The container of the place that `parts` (not empty) lead to, ready to be changed."""
        holder = self.value = self._made_mine(self.value)
        for part in parts[:-1]:
            place = _place(holder, part)
            inner = self._made_mine(holder[place])
            holder[place] = inner
            holder = inner
        return holder

    def _change(self, path: Any, change: Callable[[Any], Any]) -> None:
        """Puts `change(what stands there)` at a path where something stands."""
        parts = _parts(path)
        if not parts:
            self.value = change(self.value)
            return
        holder = self._holder(parts)
        place = _place(holder, parts[-1])
        holder[place] = change(holder[place])

    def _insert(self, path: Any, value: Any) -> None:
        parts = _parts(path)
        if not parts:
            self.value = value
            return
        holder, last = self._holder(parts), parts[-1]
        if type_of(holder) is dict:
            holder[last] = value
        elif last == "-":
            holder.append(value)
        else:
            holder.insert(_index(last, len(holder) + 1), value)

    def _take_out(self, path: Any) -> Any:
        parts = _parts(path)
        if not parts:
            raise _Unfit("the whole value cannot be removed; replace it")
        holder = self._holder(parts)
        return holder.pop(_place(holder, parts[-1]))

    def add(self, op: Op) -> None:
        self._insert(op["path"], op["value"])

    def remove(self, op: Op) -> None:
        self._take_out(op["path"])

    def replace(self, op: Op) -> None:
        value = op["value"]
        self._change(op["path"], lambda _: value)

    def move(self, op: Op) -> None:
        source, path = op["from"], op["path"]
        value = _at(self.value, source)
        origin, target = _parts(source), _parts(path)
        if origin == target:
            return
        if target[: len(origin)] == origin:
            raise _Unfit("nothing can be moved into itself")
        self._take_out(source)
        self._insert(path, value)

    def copy(self, op: Op) -> None:
        value = _at(self.value, op["from"])
        self.share()  # it stands in two places now
        self._insert(op["path"], value)

    def append(self, op: Op) -> None:
        text = op["value"]

        def longer(found: Any) -> str:
            if isinstance(found, str) and isinstance(text, str):
                return found + text
            raise _Unfit("append adds text to text")

        self._change(op["path"], longer)

    def truncate(self, op: Op) -> None:
        keep = op["keep"]
        if type(keep) is not int or keep < 0:
            raise _Unfit("keep is a number of items or characters, 0 or more")

        def window(found: Any) -> Any:
            kind = type_of(found)
            if kind is not list and kind is not str:
                raise _Unfit("truncate keeps the end of a list or text")
            return found[max(0, len(found) - keep) :]

        self._change(op["path"], window)


_STEPS: dict[str, Callable[[_Editor, Op], None]] = {
    "add": _Editor.add,
    "remove": _Editor.remove,
    "replace": _Editor.replace,
    "move": _Editor.move,
    "copy": _Editor.copy,
    "append": _Editor.append,
    "truncate": _Editor.truncate,
}
