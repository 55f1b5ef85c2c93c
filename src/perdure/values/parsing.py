"""JSON that a model wrote: the arguments of a tool call."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from perdure.errors import InvalidValue
from perdure.values.strict import JSON, TOO_DEEP, Refused, clean, type_of


def parse_object(text: str) -> dict[str, JSON]:
    """The JSON object in a model's text, cleaned.

    Raises InvalidValue with a message for the model when it is not exactly one object: as the grammar has it (no
    trailing comma, no NaN), no key twice in one object, within the bounds of `clean`.
    """
    try:
        value: Any = _strict.decode(text)
    except json.JSONDecodeError as failure:
        raise InvalidValue(f"not valid JSON: {_at(failure.msg, text, failure.pos)}") from None
    except _Literal as literal:
        place = next((found.start() for found in _LITERALS.finditer(text) if found[0][0] != '"'), 0)
        raise InvalidValue(f"not valid JSON: {_at(f'{literal} is no JSON number', text, place)}") from None
    except _Twice as twice:
        raise InvalidValue(f"the key {str(twice)[:60]!r} stands twice in one object; give it once") from None
    except RecursionError:
        raise Refused(TOO_DEEP).error("") from None
    except ValueError:  # more digits than Python reads
        raise InvalidValue("an integer has too many digits; use text") from None
    kind = type_of(value)
    if kind is not dict:
        raise InvalidValue(f"expected a JSON object such as {{}}, got {_JSON_NAMES.get(kind, 'null')}")
    return cast("dict[str, JSON]", clean(value))


class _Literal(Exception):
    """NaN, Infinity or -Infinity outside of text."""


class _Twice(Exception):
    """A key that stands twice in one object."""


def _no_literal(name: str) -> float:
    raise _Literal(name)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Twice(key)
            seen.add(key)
    return members


def _at(what: str, text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return f"{what} (line {line}, column {column})"


_strict: Any = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_no_literal)
_LITERALS = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity', re.DOTALL)
_JSON_NAMES: dict[type, str] = {
    str: "a string",
    list: "an array",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}
