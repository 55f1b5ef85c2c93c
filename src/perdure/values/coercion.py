"""The door for what tools return: common Python values become JSON by fixed rules (I60)."""

from __future__ import annotations

import base64
import dataclasses
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, MappingView, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, cast

import msgspec

from perdure.values.strict import (
    HIGHEST,
    JSON,
    LOWEST,
    MAX_DEPTH,
    TOO_DEEP,
    TOO_LARGE,
    JsonProxy,
    Refused,
    copy,
    encode,
    name_of_type,
    put,
    type_of,
    unjson_key,
)

#: How many members a sequence of another class than list may have: a `range` promises more than any memory holds.
MAX_LENGTH = 1_000_000
#: How often a foreign value may turn into another one that is not JSON yet, as an enum of dates does.
_TURNS = 8
_PLAIN = frozenset({type(None), bool, int, float, str, list, dict})


def coerce(value: object, *, path: str = "") -> JSON:
    """What a tool returned, as JSON. Raises InvalidValue and nothing else, whatever the value does when it is read.

    - JSON: as `clean` takes it; an integer beyond 64 bits becomes its digits; subclasses become what they derive from
    - enum: its value
    - Decimal: its digits as text; NaN and infinities are refused
    - date, time, datetime: ISO 8601 text; timedelta: an ISO 8601 duration
    - UUID, path: text
    - bytes: text when they are UTF-8, else `{"base64": "…"}`
    - set: a list sorted after coercion; refused when its members have no order (numbers beside text)
    - dataclass, msgspec.Struct (encoded names, tag), whatever has pydantic's `model_dump(mode="json")`, attrs, mapping:
      an object; keys are coerced like values and written as JSON writes them (1, true, null)
    - sequence, view of a mapping: a list
    - other numbers: int or float (numpy's scalars)

    Generators, functions, NaN and all other objects are refused: a tool must say what it means.
    """
    try:
        try:
            return copy(value, 0)  # most results are JSON already, and this is four times as fast
        except Refused:
            return _coerce(value, 0)
    except Refused as refused:
        raise refused.error(path) from None
    except RecursionError:
        raise Refused(TOO_DEEP).error(path) from None
    except Exception as failure:  # a class that misbehaves even when it is asked for its type, or changes meanwhile
        raise _unreadable(value, failure).error(path) from None


def _coerce(value: Any, depth: int) -> JSON:
    for _ in range(_TURNS):
        if type(value) in _PLAIN:
            break
        if issubclass(type(value), set | frozenset):
            return _coerce_set(value, depth)
        value = _reading(value, _turn)
    if type(value) is dict:
        return _coerce_members(cast("dict[Any, Any]", value), depth)
    if type(value) is list:
        return _coerce_items(cast("list[Any]", value), depth)
    if type(value) is int and not LOWEST <= value <= HIGHEST:
        return _digits(value)
    return copy(value, depth)


def _coerce_items(items: Iterable[Any], depth: int) -> list[JSON]:
    if depth >= MAX_DEPTH:
        raise Refused(TOO_DEEP)
    result: list[JSON] = []
    try:
        for item in items:
            result.append(_coerce(item, depth + 1))
    except Refused as refused:
        refused.inside.append(len(result))
        raise
    return result


def _coerce_members(members: dict[Any, Any], depth: int) -> dict[str, JSON]:
    if depth >= MAX_DEPTH:
        raise Refused(TOO_DEEP)
    result: dict[str, JSON] = {}
    for raw, item in members.items():
        key = _coerce_key(raw)
        try:
            item = _coerce(item, depth + 1)
        except Refused as refused:
            refused.inside.append(key)
            raise
        put(result, key, item)
    return result


def _coerce_key(raw: object) -> str:
    key = _coerce(raw, 0)
    if isinstance(key, str):
        return key
    if isinstance(key, list | dict):
        raise unjson_key(raw)
    return encode(key).decode()


def _coerce_set(members: set[Any], depth: int) -> JSON:
    items: list[Any] = _coerce_items(_reading(members, list), depth)
    try:
        return sorted(items)
    except TypeError:
        raise Refused(f"the members of a {name_of_type(members)} have no order; use a list") from None


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:
        raise Refused(TOO_LARGE) from None  # Python writes no more than some thousand digits


def _reading(value: Any, read: Callable[[Any], Any]) -> Any:
    """Runs code of the value's own class; what it raises becomes a refusal."""
    try:
        return read(value)
    except Refused:
        raise
    except Exception as failure:
        raise _unreadable(value, failure) from None


def _unreadable(value: object, failure: Exception) -> Refused:
    return Refused(f"reading the {name_of_type(value)} raised {name_of_type(failure)}; use plain JSON")


# -- one step from a foreign value towards JSON -------------------------------------------------


def _turn(value: Any) -> object:
    kind = type_of(value)
    if isinstance(value, msgspec.Struct):
        return _struct_members(value)
    if callable(getattr(kind, "model_dump", None)):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    return _turn_scalar(value)


def _struct_members(value: msgspec.Struct) -> dict[str, object]:
    config = value.__struct_config__
    members: dict[str, object] = {}
    if config.tag_field is not None:
        members[config.tag_field] = config.tag
    for name, field in zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True):
        member = getattr(value, field)
        if member is not msgspec.UNSET:
            members[name] = member
    return members


def _turn_scalar(value: Any) -> object:
    match value:
        case JsonProxy():
            return value.lend()
        case Enum():
            return value.value
        # The bare methods of the built-in types: a subclass may have overridden its own.
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case bytes() | bytearray() | memoryview():
            return _decoded(bytes(cast("bytes", value)))
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            if value.is_finite():
                return str(value)
            raise Refused("the Decimal is no finite number; use None or text")
        case os.PathLike():
            return os.fspath(cast("os.PathLike[str]", value))
        case _:
            return _turn_container(value)


def _turn_container(value: Any) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value).items())
    if isinstance(value, Sequence | MappingView):
        items = cast("Sequence[Any]", value)
        if len(items) > MAX_LENGTH:
            raise Refused(f"a {name_of_type(items)} of more than {MAX_LENGTH} members; use a part of it")
        return list(items)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    try:
        return msgspec.to_builtins(value)  # UUID, timedelta, attrs
    except TypeError:
        reason = "is not JSON and has no rule; use text, a number, a list, a dict or a dataclass"
        raise Refused(f"{name_of_type(value)} {reason}") from None


def _decoded(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
