"""Operations between two values of which only these are known: what someone who follows the store has to go by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from perdure.deltas import Op
from perdure.values.strict import escape, type_of


def difference(before: Any, after: Any, path: str = "") -> Iterator[Op]:
    """Operations that lead from one JSON value to another: text that grew is appended, a window that slid truncated."""
    kind = type_of(before)
    if kind is not type_of(after):
        yield {"op": "replace", "path": path, "value": after}
    elif kind is dict:
        yield from _members(before, after, path)
    elif kind is list:
        yield from _items(before, after, path)
    elif before != after:
        if kind is str and before and after.startswith(before):
            yield {"op": "append", "path": path, "value": after[len(before) :]}
        else:
            yield {"op": "replace", "path": path, "value": after}


def _members(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Op]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{escape(key)}"}
    for key, value in after.items():
        if key in before:
            yield from difference(before[key], value, f"{path}/{escape(key)}")
        else:
            yield {"op": "add", "path": f"{path}/{escape(key)}", "value": value}


def _items(before: list[Any], after: list[Any], path: str) -> Iterator[Op]:
    """A list is a window over items that do not change: some leave at its beginning, some come at its end."""
    for gone in range(len(before)) if after else ():
        kept = len(before) - gone
        if kept <= len(after) and same(before[gone], after[0]) and same(before[gone:], after[:kept]):
            if gone:
                yield {"op": "truncate", "path": path, "keep": kept}
            yield from _added(after[kept:], path)
            return
    if not before:
        yield from _added(after, path)
    elif not same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _added(items: list[Any], path: str) -> Iterator[Op]:
    return ({"op": "add", "path": f"{path}/-", "value": item} for item in items)


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: 1 is neither true nor 1.0."""
    if one is other:
        return True
    kind = type_of(one)
    if kind is not type_of(other):
        return False
    if kind is dict:
        return len(one) == len(other) and all(key in other and same(value, other[key]) for key, value in one.items())
    if kind is list:
        return len(one) == len(other) and all(map(same, cast("list[Any]", one), cast("list[Any]", other)))
    return bool(one == other)
