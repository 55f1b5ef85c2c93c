"""When a provider says that a request may be repeated, in each form in which they say it (I48)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.providers.hints import wait_hint

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT

HEADERS = {
    "seconds": ({"retry-after": "20"}, 20.0),
    "a part of a second": ({"retry-after": "0.25"}, 0.25),
    "a duration": ({"retry-after": "1m30s"}, 90.0),
    "an HTTP date": ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30.0),
    "an HTTP date, by the server's own clock": (
        {"retry-after": "Fri, 15 Jan 2027 10:00:05 GMT", "date": "Fri, 15 Jan 2027 10:00:00 GMT"},
        5.0,
    ),
    "a date that is over": ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0.0),
    "milliseconds": ({"retry-after-ms": "1500"}, 1.5),
    "milliseconds before seconds": ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
    "a reset as a duration": ({"x-ratelimit-reset-requests": "6m0s"}, 360.0),
    "a reset in milliseconds": ({"x-ratelimit-reset-tokens": "20ms"}, 0.02),
    "the limit that is used up": (
        {
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-tokens": "9m",
            "x-ratelimit-remaining-tokens": "5000",
        },
        1.0,
    ),
    "the last of two that are used up": (
        {
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-tokens": "4s",
            "x-ratelimit-remaining-tokens": "0",
        },
        4.0,
    ),
    "a reset at a time": ({"x-ratelimit-reset": "1800000042"}, 42.0),
    "a reset at a time in milliseconds": ({"x-ratelimit-reset": "1800000042500"}, 42.5),
    "a reset of Anthropic": (
        {"anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:10Z", "anthropic-ratelimit-tokens-remaining": "0"},
        10.0,
    ),
    "nothing": ({"content-type": "application/json"}, None),
    "nonsense": ({"retry-after": "soon", "x-ratelimit-reset-tokens": "?"}, None),
    "years": ({"retry-after": "999999999"}, None),
    "less than nothing": ({"retry-after": "-5"}, None),
    "no number": ({"retry-after": "nan"}, None),
}
BODIES = {
    "seconds in a sentence": ({"message": "Rate limit reached. Please try again in 20s. Visit our site."}, 20.0),
    "a part of a second": ({"error": {"message": "Please try again in 1.898s."}}, 1.898),
    "minutes and seconds": ({"message": "Please try again in 6m0s."}, 360.0),
    "milliseconds": ({"message": "Please try again in 345ms."}, 0.345),
    "words": ({"message": "Too many requests, retry after 12 seconds"}, 12.0),
    "Google's": ({"error": {"details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "14s"}]}}, 14.0),
    "a field": ({"error": {"retry_after": 3.5}}, 3.5),
    "a field in milliseconds": ({"retry_after_ms": 250}, 0.25),
    "a text": ("slow down, wait 2 minutes", 120.0),
    "none": ({"message": "You made 20 requests in 60s."}, None),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers(name):
    headers, expected = HEADERS[name]

    assert wait_hint(headers, None, NOW) == pytest.approx(expected)


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name):
    body, expected = BODIES[name]

    assert wait_hint({}, body, NOW) == pytest.approx(expected)


def test_a_header_goes_before_a_body():
    assert wait_hint({"retry-after": "7"}, {"message": "try again in 1s"}, NOW) == 7.0


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset", "date"]), st.text()))
def test_whatever_a_server_sends_is_a_sensible_wait_or_none(headers):
    found = wait_hint(headers, headers, NOW)

    assert found is None or 0 <= found <= 30 * 24 * 3600
