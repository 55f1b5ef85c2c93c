"""A document while a commit changes it: it reads and writes like dicts and lists, and records what was done.

Cost: a read or a change takes a few microseconds whatever the size of what lies beside it, with one exception:
the first change inside an object or list since the draft began (or its value was taken) copies that container and those
around it, one pointer per member. Text is copied whole when it grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from operator import index as as_index
from typing import Any, SupportsIndex, cast, overload

from perdure.deltas.operations import Op
from perdure.deltas.parts import MISSING, Part, Trunk, checked_window
from perdure.errors import InvalidValue
from perdure.values.strict import clean, clean_key, clean_text, type_of


class DraftObject(Part, MutableMapping[str, Any]):
    """A JSON object in a draft: a dict whose keys are text and whose values are JSON.

    Values are checked and copied when they are assigned (InvalidValue, before anything changes); parts of drafts are
    copied as what they hold now. Containers are read as parts, popped as plain copies.
    """

    __slots__ = ()

    def _place(self, key: Any) -> str:
        if key in self._value:
            return key
        if type(key) is str and (cleaned := clean_text(key)) in self._value:
            return cleaned
        raise KeyError(key)

    def __getitem__(self, key: str) -> Any:
        self.lend()
        return self._hand_out(self._place(key))

    def __contains__(self, key: object) -> bool:
        value = self.lend()
        return key in value or (type(key) is str and clean_text(key) in value)

    def __iter__(self) -> Iterator[str]:
        for key in list(self.lend()):
            self.lend()
            yield key

    def __setitem__(self, key: str, value: Any) -> None:
        self._writable()
        if type(key) is not str or not key.isascii() or "\0" in key:
            key = clean_key(key, path=self._path())
        if self._parts and value is self._parts.get(key, MISSING):
            return  # `draft["items"] += [1]` ends with assigning a part to its own place
        path = self._path_to(key)
        self._put(key, clean(value, path=path, depth=self._depth), path)

    def _put(self, key: str, value: Any, path: str) -> None:
        if key in self._value:
            self._replace(key, value, path)
        else:
            self._own()[key] = value
            self._trunk.log.add(path, value)

    def __delitem__(self, key: str) -> None:
        self._writable()
        key = self._place(key)
        self._detach_at(key)
        del self._own()[key]
        self._trunk.log.remove(self._path_to(key))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """What stands at `key`; where nothing does, `default` is put there first."""
        self._writable()
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, other: Any = (), /, **members: Any) -> None:
        """As dict.update, except that everything is checked before anything changes."""
        self._writable()
        fresh = clean(dict(other, **members), path=self._path(), depth=self._depth - 1)
        for key, value in cast("dict[str, Any]", fresh).items():
            self._put(key, value, self._path_to(key))

    def __ior__(self, other: Mapping[str, Any]) -> DraftObject:
        self.update(other)
        return self

    def pop(self, key: str, default: Any = MISSING) -> Any:
        """Removes a member and returns it, as a plain copy."""
        value = self._writable()
        if key not in self:
            if default is MISSING:
                raise KeyError(key)
            return default
        popped = clean(value[self._place(key)])
        del self[key]
        return popped

    def popitem(self) -> tuple[str, Any]:
        """Removes the newest member and returns it, as a plain copy."""
        value = self._writable()
        if not value:
            raise KeyError("the object is empty")
        key: str = next(reversed(value))
        return key, self.pop(key)

    def truncate(self, key: str, keep: int) -> None:
        """Keeps the last `keep` items of the list, or characters of the text, at `key`; only that is stored."""
        value = self._writable()
        key = self._place(key)
        found = value[key]
        if type_of(found) is list:
            self._hand_out(key).truncate(keep)
        elif type_of(found) is not str:
            kind = type_of(found).__name__
            raise InvalidValue(f"{self._path_to(key)}: truncate keeps the end of a list or text, not of a {kind}")
        elif len(found) > checked_window(keep):
            self._own()[key] = found[len(found) - keep :]
            self._trunk.log.truncate(self._path_to(key), keep)


class DraftList(Part, MutableSequence[Any]):
    """A JSON list in a draft. What `DraftObject` says of values holds here too; a slice is read as a plain list.

    Parts stay with their item when items before it come and go.
    """

    __slots__ = ()

    def _place(self, key: Any) -> int:
        size = len(self._value)
        at = as_index(key)
        if not -size <= at < size:
            raise IndexError(f"index {at} in a list of {size}")
        return at + size if at < 0 else at

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        value = self.lend()
        if isinstance(index, slice):
            return [self._hand_out(at) for at in range(*cast("slice[Any, Any, Any]", index).indices(len(value)))]
        return self._hand_out(self._place(index))

    def insert(self, index: SupportsIndex, value: Any) -> None:
        size, at = len(self._writable()), as_index(index)
        at = max(0, at + size) if at < 0 else min(at, size)
        self._insert(at, clean(value, path=self._path_to(at), depth=self._depth))

    def append(self, value: Any) -> None:
        at = len(self._writable())
        self._insert(at, clean(value, path=self._path_to(at), depth=self._depth))

    def extend(self, values: Iterable[Any]) -> None:
        """As list.extend, except that everything is checked before anything changes."""
        given = list(values)
        at = len(self._writable())
        for offset, value in enumerate(self._checked(given, at)):
            self._insert(at + offset, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            given = list(value)
            self._writable()
            self._put_slice(cast("slice[Any, Any, Any]", index), given)
            return
        self._writable()
        at = self._place(index)
        if self._parts and value is self._parts.get(at, MISSING):
            return  # as in DraftObject
        path = self._path_to(at)
        self._replace(at, clean(value, path=path, depth=self._depth), path)

    def __delitem__(self, index: Any) -> None:
        size = len(self._writable())
        if not isinstance(index, slice):
            self._delete(self._place(index))
            return
        doomed = sorted(range(*cast("slice[Any, Any, Any]", index).indices(size)))
        if len(doomed) > 1 and doomed[-1] == len(doomed) - 1:
            self.truncate(size - len(doomed))  # they are the first ones
        else:
            for at in reversed(doomed):
                self._delete(at)

    def pop(self, index: SupportsIndex = -1) -> Any:
        """Removes an item and returns it, as a plain copy."""
        value = self._writable()
        at = self._place(index)
        popped = clean(value[at])
        self._delete(at)
        return popped

    def truncate(self, keep: int) -> None:
        """Keeps the last `keep` items; only that is stored."""
        gone = len(self._writable()) - checked_window(keep)
        if gone > 0:
            self._rekey(lambda at: at - gone)
            del self._own()[:gone]
            self._trunk.log.truncate(self._path(), keep)

    def reverse(self) -> None:
        """As list.reverse. The list is stored whole."""
        self._reorder(list(range(len(self._writable()) - 1, -1, -1)))

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """As list.sort; `key` gets what reading an item gives. The list is stored whole."""
        items: list[Any] = self._writable()
        keys = list(items) if key is None else [key(item) for item in self]
        self._reorder(sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse))

    def _checked(self, values: list[Any], first: int) -> list[Any]:
        """Clean copies of values that will stand from index `first` on."""
        try:
            return cast("list[Any]", clean(values, depth=self._depth - 1))
        except InvalidValue:  # once more, slowly, for the place where it would have stood
            return [clean(value, path=self._path_to(first + at), depth=self._depth) for at, value in enumerate(values)]

    def _insert(self, at: int, value: Any) -> None:
        items = self._own()
        last = at == len(items)
        if not last:
            self._rekey(lambda old: old + 1 if old >= at else old)
        items.insert(at, value)
        self._trunk.log.add(self._path_to("-" if last else at), value)

    def _delete(self, at: int) -> None:
        self._detach_at(at)
        self._rekey(lambda old: old - 1 if old > at else old)
        del self._own()[at]
        self._trunk.log.remove(self._path_to(at))

    def _put_slice(self, where: slice[Any, Any, Any], given: list[Any]) -> None:
        size = len(self._value)
        start, stop, step = where.indices(size)
        places = range(start, stop, step)
        if step != 1 and len(places) != len(given):
            raise ValueError(f"{len(given)} values for an extended slice of {len(places)} items")
        fresh = self._checked(given, start)
        if step == 1 and 0 < len(places) == size:
            for at in list(self._parts):
                self._detach_at(at)
            self._replace_whole(fresh)
            return
        for at, value, item in zip(places, given, fresh, strict=False):
            if value is not self._parts.get(at, MISSING):
                self._replace(at, item, self._path_to(at))
        for at in reversed(places[len(fresh) :]):
            self._delete(at)
        for offset in range(len(places), len(fresh)):
            self._insert(start + offset, fresh[offset])

    def _reorder(self, order: list[int]) -> None:
        """Puts the item of index `order[n]` at n."""
        if order != list(range(len(order))):
            self._trunk.epoch += 1  # the operation will hold the items themselves
            self._rekey({old: new for new, old in enumerate(order)}.__getitem__)
            self._replace_whole([self._value[at] for at in order])

    def _rekey(self, moved: Callable[[int], int]) -> None:
        """Tells the parts their new index; those with a negative one go."""
        if not self._parts:
            return
        parts = list(self._parts.values())
        self._parts.clear()
        for part in parts:
            part._key = moved(part._key)
            if part._key < 0:
                part._detach()
            else:
                self._parts[part._key] = part


class Draft:
    """A JSON object or list being changed, by way of `root`.

    Invariant: `apply(original, ops) == value`, and the original is never changed.
    """

    __slots__ = ("_trunk", "root")

    def __init__(self, value: Any, ops: list[Op] | None = None) -> None:
        """`value` is clean JSON that others may hold. Raises InvalidValue unless it is an object or a list.

        `ops` are what another draft did until its value was this one.
        """
        self._trunk = Trunk(_KINDS)
        if ops:
            self._trunk.log.ops = ops
        kind = _KINDS.get(type_of(value))
        if kind is None:
            raise InvalidValue(f"a {type_of(value).__name__} cannot be drafted; a document is an object or a list")
        #: A DraftObject or a DraftList; Any, so that it is used as what the document is known to be.
        self.root: Any = kind(self._trunk, None, "", value)

    @property
    def ops(self) -> list[Op]:
        """What was done, in order and compact."""
        return list(self._trunk.log.ops)

    @property
    def value(self) -> Any:
        """The value as it is now. Later changes do not reach it."""
        self._trunk.epoch += 1
        return self.root._value

    @property
    def closed(self) -> bool:
        return self._trunk.closed

    def close(self) -> None:
        """Ends the root and every part: whoever reads or writes one gets HandleExpired. `value` and `ops` stay."""
        self._trunk.closed = True
        self.root._forget()


_KINDS: dict[type, type[Part]] = {dict: DraftObject, list: DraftList}
