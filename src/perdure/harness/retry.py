"""Retries of model requests (H13): one owner, one budget of attempts and time, hints honoured, jitter. Pure."""

from __future__ import annotations

import msgspec

from perdure.errors import ModelError

RETRYABLE = frozenset({"retryable", "rate_limited", "cut", "timeout"})


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long one request is tried. Times in seconds."""

    attempts: int = 5
    budget: float = 300.0  #: from the first attempt to the start of the last
    first: float = 0.5  #: before the second attempt; doubles each time
    longest: float = 60.0


def wait_before_retry(
    error: ModelError, policy: RetryPolicy, *, attempt: int, elapsed: float, chance: float
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up.

    `attempt` counts from 1; `elapsed` is the time since the first one began; `chance` in [0, 1) is the jitter.
    A hint that does not fit the budget fails at once (I48).
    """
    if error.kind not in RETRYABLE or attempt >= policy.attempts:
        return None
    doublings = min(attempt - 1, 64)  # beyond the largest float there would be an error
    wait = min(policy.first * 2**doublings, policy.longest) * (0.5 + chance / 2)
    if error.after is not None:
        wait = max(error.after * (1 + chance / 10), 0.0)
    return wait if elapsed + wait <= policy.budget else None
