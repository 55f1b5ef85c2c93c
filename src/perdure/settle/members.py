"""Members of an index: ordered sets that cost little while they are small."""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: An ordered set: a dict without values, so that iteration never depends on hashing.
Ordered = dict[K, None]


#: The members of an index: an ordered set that is a tuple while it is small, since thousands of them may be kept.
Members = tuple[V, ...] | Ordered[V]
#: From so many members on it is a dict, so that adding and dropping stay cheap.
SMALL = 4


def add(index: dict[K, Members[V]], key: K, value: V) -> None:
    """Put a member last, unless it is there."""
    members = index.get(key)
    if members is None:
        index[key] = (value,)
    elif isinstance(members, dict):
        members[value] = None
    elif value not in members:
        grown = (*members, value)
        index[key] = grown if len(grown) < SMALL else dict.fromkeys(grown)


def drop(index: dict[K, Members[V]], key: K, value: V) -> None:
    """Take a member out, and the key with its last one."""
    members = index.get(key)
    if members is None:
        return
    if isinstance(members, dict):
        members.pop(value, None)
    else:
        members = index[key] = tuple(member for member in members if member != value)
    if not members:
        del index[key]


def deeper(index: dict[K, Any]) -> dict[K, Any]:
    """A copy of an index, with members of its own."""
    return {key: {**each} if isinstance(each, dict) else each for key, each in index.items()}
