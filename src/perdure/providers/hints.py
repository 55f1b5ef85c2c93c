"""When a provider says that a request may be repeated: every form in which they say it (I48). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

#: A hint of more than this is no hint: a date that went wrong, a reset in another unit.
_MOST = 30 * 24 * 3600.0

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SENTENCE = re.compile(
    r"(?:try again|retry|wait|available)[^.\d]{0,40}?"
    r"(?P<many>(?:\d+(?:\.\d+)?\s*(?:milliseconds?|ms|seconds?|secs?|minutes?|mins?|hours?|h|m|s)(?![A-Za-z])\s*)+)",
    re.IGNORECASE,
)
_PIECE = re.compile(
    r"(\d+(?:\.\d+)?)\s*(milliseconds?|ms|hours?|h|minutes?|mins?|m|seconds?|secs?|s)(?![A-Za-z])", re.IGNORECASE
)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

#: Fields of an error body, and how many seconds their unit has.
_FIELDS = {
    "retry_after_ms": 0.001,
    "retry_after_seconds": 1.0,
    "retry_after": 1.0,
    "retryAfter": 1.0,
    "retryDelay": 1.0,
}


def wait_hint(headers: Mapping[str, str], body: object, now: float) -> float | None:
    """Seconds to wait, by the response's headers (names in lower case), else by its body; None when it says nothing.

    `now` is the time at which it arrived. A date is compared with the server's own `Date` where it sent one, so a clock
    that is wrong here does not matter.
    """
    for found in (*_by_headers(headers, now), *_by_body(body)):
        if 0 <= found <= _MOST:
            return found
    return None


def _by_headers(headers: Mapping[str, str], now: float) -> Iterator[float]:
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        yield milliseconds / 1000
    after = headers.get("retry-after")
    if after is not None:
        server = _date(headers.get("date"))
        wait = _number(after)
        if wait is None:
            wait = _duration(after)
        until = _date(after)
        if wait is not None:
            yield wait
        elif until is not None:
            yield max(0.0, until - (now if server is None else server))
    yield from _by_resets(headers, now)


def _by_resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    """Of several limits, those that are used up decide; the last of them to come back is the one to wait for."""
    used_up: list[float] = []
    others: list[float] = []
    for name, value in headers.items():
        remaining = _remaining(name)
        wait = _reset(value, now) if remaining is not None else None
        if remaining is not None and wait is not None:
            left = _number(headers.get(remaining))
            (used_up if left is not None and left <= 0 else others if left is None else []).append(wait)
    if used_up or others:
        yield max(used_up or others)


def _remaining(name: str) -> str | None:
    """The header that says how much is left of the limit whose reset `name` is; None for what is no reset."""
    if name.startswith("x-ratelimit-reset"):
        return name.replace("-reset", "-remaining", 1)
    if name.startswith("anthropic-ratelimit-") and name.endswith("-reset"):
        return f"{name.removesuffix('-reset')}-remaining"
    return "ratelimit-remaining" if name == "ratelimit-reset" else None


def _reset(value: str, now: float) -> float | None:
    """A duration ("6m0s", "20ms"), seconds, a time since the epoch in seconds or milliseconds, or a date."""
    number = _number(value)
    if number is None:
        duration = _duration(value)
        if duration is not None:
            return duration
        until = _date(value)
        return None if until is None else max(0.0, until - now)
    if number > 1e11:
        number /= 1000
    return max(0.0, number - now) if number > 1e9 else number


def _by_body(body: object) -> Iterator[float]:
    for fields in _objects(body):
        for name, unit in _FIELDS.items():
            value = fields.get(name)
            wait = _number(value) if not isinstance(value, str) else _number(value) or _duration(value)
            if wait is not None:
                yield wait * unit
    for text in _texts(body):
        found = _SENTENCE.search(text[:4000])
        if found is not None:
            yield sum(float(number) * _unit(name) for number, name in _PIECE.findall(found["many"]))


def _unit(name: str) -> float:
    name = name.lower()
    return _UNITS["ms" if name.startswith(("ms", "milli")) else name[0]]


def _objects(body: object, depth: int = 4) -> Iterator[dict[str, Any]]:
    """The objects in a body, outer ones first."""
    if isinstance(body, dict) and depth:
        fields = cast("dict[str, Any]", body)
        yield fields
        for value in fields.values():
            yield from _objects(value, depth - 1)
    elif isinstance(body, list) and depth:
        for value in cast("list[Any]", body)[:20]:
            yield from _objects(value, depth - 1)


def _texts(body: object) -> Iterator[str]:
    if isinstance(body, str):
        yield body
    for fields in _objects(body):
        if isinstance(message := fields.get("message"), str):
            yield message


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _duration(value: str) -> float | None:
    value = value.strip()
    pieces = _DURATION.findall(value)
    if not pieces or _DURATION.sub("", value):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in pieces)


def _date(value: str | None) -> float | None:
    """A date of HTTP or of RFC 3339, as a time since the epoch."""
    if value is None:
        return None
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            found = parse(value.strip())
        except (ValueError, TypeError, OverflowError):
            continue
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return None
