"""The strict door: text and values as they are stored, and their bytes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias, cast

import msgspec

from perdure.errors import InvalidValue

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

#: How many lists and objects may stand inside one another. Cycles end here too.
MAX_DEPTH = 128
#: The integers that fit into 64 bits, signed or unsigned.
LOWEST, HIGHEST = -(2**63), 2**64 - 1
#: `type` of one argument, as the type checker understands it for any value.
type_of: Callable[[object], type[object]] = type


class JsonProxy:
    """Something that stands for a JSON value, such as a draft: both doors take it and copy what it stands for."""

    __slots__ = ()

    def lend(self) -> JSON:
        """The value it stands for, already clean. It is only lent: to be copied at once, and not to be changed."""
        raise NotImplementedError


# -- text ---------------------------------------------------------------------------------------


def clean_text(text: str) -> str:
    """The text without U+0000 and surrogates, as the package says; itself when it has none."""
    if text.isascii():
        return text.replace("\0", "\u2400") if "\0" in text else text
    try:
        text.encode()
    except UnicodeEncodeError:
        # By way of UTF-16, where two surrogates that make a pair find each other; the others are replaced one by one.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", "\u2400")


def escape(key: str) -> str:
    """A key as one part of a JSON pointer (RFC 6901)."""
    if "~" in key:
        key = key.replace("~", "~0")
    return key.replace("/", "~1") if "/" in key else key


# -- refusals -----------------------------------------------------------------------------------

TOO_DEEP = f"more than {MAX_DEPTH} lists and objects inside one another, or a cycle; flatten it or store it as text"
TOO_LARGE = "the integer does not fit into 64 bits; use text"


class Refused(Exception):
    """Why a value was refused. The containers that it passes on its way out add their keys, innermost first."""

    def __init__(self, reason: str, *inside: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.inside = list(inside)

    def error(self, path: str) -> InvalidValue:
        pointer = path + "".join(f"/{escape(str(part))}" for part in reversed(self.inside))
        if len(pointer) > 200:
            pointer = f"{pointer[:100]}…{pointer[-99:]}"
        return InvalidValue(clean_text(f"{pointer or 'the value itself'}: {self.reason}"))


def name_of_type(value: object) -> str:
    """For messages. The value itself is never shown: its `__repr__` may fail, or tell a secret."""
    try:
        return str(type(value).__qualname__)
    except Exception:
        return "something without a name"


_REMEDIES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Enum, "its .value"),
    (dict, "dict(...) of it"),
    ((list, tuple, set, frozenset), "list(...) of it"),
    (str, "str(...) of it"),
    (int, "int(...) of it"),
    (float, "float(...) of it"),
    ((bytes, bytearray), "decoded text, or base64"),
    (Decimal, "str(...) of it"),
    ((date, time), "its .isoformat()"),
)


def _unjson(value: object) -> Refused:
    """What `clean` says about a type that it does not take."""
    name = name_of_type(value)
    for kind, remedy in _REMEDIES:
        if issubclass(type(value), kind):
            return Refused(f"{name} would not come back as {name}; use {remedy}")
    return Refused(f"{name} is not JSON; give None, bool, int, float, str, list, tuple or dict")


def unjson_key(key: object) -> Refused:
    if issubclass(type(key), str):
        return Refused(f"a key is {name_of_type(key)} and would come back as str; use str(...) of it")
    return Refused(f"a key is {name_of_type(key)}; JSON keys are text, use str(...) of it")


def put(target: dict[str, JSON], key: str, value: JSON) -> None:
    """Adds a member under a key that was not taken as it came. Two keys that become one would lose a value silently."""
    if key in target:
        raise Refused("two keys are the same once they are text and cleaned; rename one", key)
    target[key] = value


# -- values -------------------------------------------------------------------------------------


def clean(value: object, *, path: str = "", depth: int = 0) -> JSON:
    """A copy of a JSON value with its text cleaned; tuples become lists.

    Exact types only: a subclass (an enum that is a str, a defaultdict) would come back as something else (I61).
    `path` and `depth` tell where the value will stand. Raises InvalidValue.
    """
    try:
        return copy(value, depth)
    except Refused as refused:
        raise refused.error(path) from None


def clean_key(key: object, *, path: str = "") -> str:
    """The key of a member with its text cleaned. Raises InvalidValue when it is no text."""
    if type(key) is str:
        return key if key.isascii() and "\0" not in key else clean_text(key)
    raise unjson_key(key).error(path)


def copy(value: Any, depth: int) -> JSON:
    """As `clean`, raising Refused."""
    kind = type_of(value)
    if kind is str:
        return value if value.isascii() and "\0" not in value else clean_text(value)
    if kind is int:
        if LOWEST <= value <= HIGHEST:
            return value
        raise Refused(TOO_LARGE)
    if value is None or kind is bool:
        return value
    if kind is float:
        if math.isfinite(value):
            return value
        raise Refused(f"{value!r} is no JSON number; use None or text")
    if kind is dict:
        return _copy_members(value, depth)
    if kind is list or kind is tuple:
        return _copy_items(value, depth)
    if issubclass(kind, JsonProxy):
        return copy(cast("JsonProxy", value).lend(), depth)
    raise _unjson(value)


def _copy_items(items: Sequence[Any], depth: int) -> JSON:
    if depth >= MAX_DEPTH:
        raise Refused(TOO_DEEP)
    depth += 1
    result: list[JSON] = []
    try:
        for item in items:
            # The commonest values are spared the call, here and in `_copy_members`.
            if not (item.isascii() and "\0" not in item if type(item) is str else item is None):
                item = copy(item, depth)
            result.append(item)
    except Refused as refused:
        refused.inside.append(len(result))
        raise
    return result


def _copy_members(members: dict[Any, Any], depth: int) -> JSON:
    if depth >= MAX_DEPTH:
        raise Refused(TOO_DEEP)
    depth += 1
    result: dict[str, JSON] = {}
    for key, item in members.items():
        if type(key) is not str:
            raise unjson_key(key)
        try:
            if type(item) is str:
                if not item.isascii() or "\0" in item:
                    item = clean_text(item)
            elif not (
                item is None or item is True or item is False or (type(item) is int and LOWEST <= item <= HIGHEST)
            ):
                item = copy(item, depth)
        except Refused as refused:
            refused.inside.append(key)
            raise
        if key.isascii() and "\0" not in key:
            result[key] = item
        else:
            put(result, clean_text(key), item)
    return result


# -- bytes --------------------------------------------------------------------------------------

#: Clean JSON as bytes. What was not cleaned may raise here (surrogates) or change silently (NaN).
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
#: As `encode`, with sorted keys: the same bytes for the same value. 1, 1.0 and True are three values.
canonical: Callable[[object], bytes] = msgspec.json.Encoder(order="deterministic").encode


def digest(value: object) -> str:
    """The SHA-256 of a clean value's canonical bytes, in hexadecimal: tells whether two bodies are the same."""
    return hashlib.sha256(canonical(value)).hexdigest()
