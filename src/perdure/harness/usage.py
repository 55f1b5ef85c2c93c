"""What was used (H17): disjoint buckets, unknown as unknown."""

from __future__ import annotations

from typing import Any

from perdure.model import Usage

BUCKETS = ("input", "cache_read", "cache_write", "output", "reasoning", "cost")


#: More tokens or dollars than this no attempt can use.
MOST = 1e15


def add_request(document: Any, model: str, usage: Usage | None) -> None:
    """Count one attempt of a request in a draft of the usage document; one whose use is unknown counts as that."""
    totals: dict[str, Any] = dict(document.lend()["models"].get(model) or {"requests": 0, "unknown": 0})
    totals["requests"] += 1
    known = False
    for bucket in BUCKETS:
        value: Any = None if usage is None else getattr(usage, bucket)
        if _counts(value):
            known = True
            totals[bucket] = totals.get(bucket, 0) + value
    if not known:
        totals["unknown"] += 1
    document["models"][model] = totals  # one small operation, whatever changed


def _counts(value: object) -> bool:
    """A provider may send anything: what is no amount is unknown."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST


#: Calls of tools that do not exist are counted together: a model can invent any number of names.
UNKNOWN_TOOL = "(unknown)"


def add_call(document: Any, tool: str, *, error: bool) -> None:
    """Count one finished tool call."""
    totals = document.lend()["tools"].get(tool) or {"calls": 0, "errors": 0}
    document["tools"][tool] = {"calls": totals["calls"] + 1, "errors": totals["errors"] + error}
