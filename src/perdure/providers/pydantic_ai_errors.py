"""What a failure means for who asked: its kind, how long to wait, and a text without secrets (H13, I39, I48)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import httpx2
import msgspec
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)

from perdure.errors import ModelError
from perdure.providers.hints import wait_hint
from perdure.providers.redaction import redacted
from perdure.providers.vendors import Target
from perdure.values import clean_text

#: What is kept of a server's own words, in characters.
MOST_SAID = 500
#: What is looked at of them: a server may send a page.
MOST_READ = 20_000

#: How servers other than the vendors' own say that the input does not fit.
_OVERFLOW = re.compile(
    r"context[ _](?:length|window|size|limit)|exceeds? (?:the )?(?:available )?context|too many (?:input )?tokens"
    r"|(?:prompt|input|request) is too (?:long|large)|request_too_large"
    r"|maximum (?:context|number of tokens|prompt length)",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient[_ ](?:quota|balance|credit)|credit balance|billing|exceeded your current quota", re.I
)

_BY_CLASS: tuple[tuple[type[Exception], str], ...] = (
    (ModelContextWindowExceededError, "overflow"),
    (ModelQuotaExceededError, "quota"),
    (ModelRateLimitError, "rate_limited"),
    (ModelAuthenticationError, "auth"),
    (ModelNotFoundError, "invalid"),
    (ModelUnavailableError, "retryable"),
    (ModelServerError, "retryable"),
    (ModelTimeoutError, "timeout"),
    (ContentFilterError, "invalid"),
    (UserError, "invalid"),
)
#: What is wrong before anything is sent, and stays wrong.
_OURS = (ImportError, NotImplementedError, httpx2.InvalidURL)
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})


def model_error(error: Exception, target: Target, *, began: bool, now: float) -> ModelError:
    """The failure as the port has it. `began`: something of the answer had come."""
    if (known := _known(error)) is not None:
        return known
    secrets = [target.key] if target.key else []
    said = _clip(redacted(clean_text(_said(error)[:MOST_READ]), secrets))
    kind = _kind(error, said, began=began)
    meant = getattr(error, "suggested_model_id", None)
    hint = f" (did you mean {clean_text(meant)[:100]!r}?)" if isinstance(meant, str) else ""
    words = f"{_what(error, kind, target)}{said}{hint}{_whose_key(kind, target)}"
    return ModelError(f"{target.name}: {words}", kind=kind, after=_after(error, kind, now))


def _whose_key(kind: str, target: Target) -> str:
    return f" ({target.key_told})" if kind == "auth" else ""


def _known(error: BaseException | None) -> ModelError | None:
    """A failure that is the port's already, also where an SDK wrapped it."""
    for _ in range(10):
        if error is None or isinstance(error, ModelError):
            return error
        error = error.__cause__
    return None


def refusal_of(body: bytes, kind: str, target: Target) -> ModelError:
    """What a response says that is no stream although its status is 200. `kind` is its content type."""
    text = body.decode("utf-8", "replace")[:MOST_READ]
    try:
        read: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        read = None
    words = next(_messages(read), None) or text.strip()
    said = _clip(redacted(clean_text(words), [target.key] if target.key else []))
    what = "quota" if _QUOTA.search(said) else "overflow" if _OVERFLOW.search(said) else _by_code(read)
    told = f"the server answered {clean_text(kind)[:80] or 'something'} instead of a stream: "
    return ModelError(f"{target.name}: {told}{said}{_whose_key(what, target)}", kind=what)


_BY_CODE = {401: "auth", 402: "quota", 403: "auth", 413: "overflow", 429: "rate_limited"}


def _by_code(body: Any) -> str:
    """Gateways put the status that they mean into the error."""
    error: Any = cast("dict[str, Any]", body).get("error") if isinstance(body, dict) else None
    code: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    if not isinstance(code, int):
        return "retryable"
    return _BY_CODE.get(code) or ("invalid" if 400 <= code < 500 and code not in _RETRYABLE_STATUS else "retryable")


def _kind(error: Exception, said: str, *, began: bool) -> str:
    if isinstance(error, ModelConnectionError | httpx2.TransportError | httpx2.StreamError | OSError):
        if isinstance(error, ModelTimeoutError | httpx2.TimeoutException):
            return "timeout"
        return "cut" if began else "retryable"
    kind = next((kind for known, kind in _BY_CLASS if isinstance(error, known)), None)
    if kind == "rate_limited" and _QUOTA.search(said):
        return "quota"
    if kind in ("retryable", None, "invalid") and not isinstance(error, UserError) and _OVERFLOW.search(said):
        return "overflow"
    if kind is None:
        kind = _by_status(error)
    if isinstance(error, ModelHTTPError) and error.provider_retry_hint is False and kind == "retryable":
        return "invalid"  # the provider says that a repetition would not help
    return kind


def _by_status(error: Exception) -> str:
    if isinstance(error, ModelHTTPError):
        status = error.status_code
        if status == 413:
            return "overflow"
        return "retryable" if status in _RETRYABLE_STATUS or status >= 500 else "invalid"
    if isinstance(error, ModelRequestRejectedError):
        return "invalid"
    if isinstance(error, UnexpectedModelBehavior):
        # pydantic-ai says this of a stream that ended before its first event.
        return "cut" if "ended without" in error.message else "retryable"
    if 300 <= getattr(error.__cause__, "status_code", 0) < 400:
        return "invalid"  # the server points elsewhere, where the key does not go
    if isinstance(error, ModelAPIError):
        # No status, no category: an error inside a stream, or bytes that are no answer.
        return "cut" if "finish_reason" in error.message else "retryable"
    # Of what else breaks while a stream is read, bytes that are no answer are the reason: SDKs check little of them.
    return "invalid" if isinstance(error, _OURS) else "retryable"


def _what(error: Exception, kind: str, target: Target) -> str:
    """A short word before the server's own: the status and its code, or what happened."""
    if isinstance(error, ModelHTTPError):
        code = error.provider_error_code or error.provider_error_type
        status = f"{error.status_code} {code}" if code else str(error.status_code)
        return f"{clean_text(status)[:80]}: "
    if isinstance(error, ModelConnectionError | httpx2.TransportError | OSError):
        happened = {"cut": "the connection broke off", "retryable": "no connection", "timeout": "no answer in time"}
        return f"{happened.get(kind, 'no answer')} ({target.place}): "
    if isinstance(error, UserError):
        return "the request cannot be made: "
    known = isinstance(error, ModelAPIError | UnexpectedModelBehavior)
    return "" if known else f"what came is no answer, {type(error).__name__}: "


def _said(error: Exception) -> str:
    """The server's own words, where it had any."""
    body = error.body if isinstance(error, ModelAPIError | UnexpectedModelBehavior) else None
    words = next(_messages(body), None)
    if words is None and isinstance(body, str) and body.strip():
        words = body.strip()
    if words is None and body and not isinstance(body, str):
        words = msgspec.json.encode(body, enc_hook=repr).decode(errors="replace")
    if words is None and isinstance(error, ModelHTTPError):
        words = "the server gave no reason"
    if words is None:
        words = error.message if isinstance(error, ModelAPIError | UnexpectedModelBehavior | UserError) else str(error)
    return words or type(error).__name__


def _messages(body: object, depth: int = 3) -> Iterator[str]:
    if not isinstance(body, dict) or not depth:
        return
    fields = cast("dict[str, Any]", body)
    for name in ("message", "detail"):
        if isinstance(text := fields.get(name), str) and text:
            yield text
    inner = fields.get("error")
    if isinstance(inner, str) and inner:
        yield inner
    yield from _messages(inner, depth - 1)


def _after(error: Exception, kind: str, now: float) -> float | None:
    if kind not in ("rate_limited", "retryable", "timeout") or not isinstance(error, ModelAPIError):
        return None
    headers = error.headers or {} if isinstance(error, ModelHTTPError) and not error.in_stream else {}
    found = wait_hint(headers, error.body, now)
    # Limits that are full again some time are told with every answer; of an overloaded server they say nothing.
    if kind != "rate_limited" and not ({"retry-after", "retry-after-ms"} & headers.keys()):
        return None
    return error.retry_after if found is None else found


def _clip(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]}…"
