"""Text of servers without secrets: an error body may repeat the key that was sent (I78). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

#: What stands where a secret was.
HIDDEN = "[hidden]"

_NAMES = r"(?:authorization|x-(?:goog-)?api-key|api[-_ ]?key|(?:access|auth)[-_]token|secret|password)"
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
        r"\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=*-]{6,}",
        r"\b(?:sk|pk|rk|gsk|xai|hf|pplx)[-_][A-Za-z0-9_*.-]{6,}",
        r"\bAIza[A-Za-z0-9_*-]{10,}",
        r"\b(?:AKIA|ASIA)[A-Z0-9*]{12,}",
        r"\bgh[pousr]_[A-Za-z0-9*]{10,}",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?",
    )
)
#: A name that says that a secret follows, in a header, JSON, a query or a sentence; its value ends at a separator.
_NAMED = re.compile(
    rf"""({_NAMES}["']?\s*(?:[:=]|\bprovided:)\s*["']?)(?!\[hidden\])([^\s"',;&}}]{{4,}})""", re.IGNORECASE
)
_QUERY = re.compile(r"([?&](?:key|token|sig|signature)=)[^\s&\"']+", re.IGNORECASE)
_USERINFO = re.compile(r"(\bhttps?://)[^\s/@\"']+@", re.IGNORECASE)

_SHORTEST = 6  # a shorter value would hide ordinary words


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with each of `secrets`, and whatever looks like one, replaced by `HIDDEN`."""
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN).replace(quote(secret, safe=""), HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(HIDDEN, text)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    return _USERINFO.sub(rf"\1{HIDDEN}@", text)
