"""Secrets that servers repeat do not go on (I78)."""

from __future__ import annotations

import json

import pytest

from perdure.providers.redaction import HIDDEN, redacted

SECRETS = {
    "the key that was sent": ("you sent 0123456789abcdef0123", "0123456789abcdef0123"),
    "the key inside a URL": ("GET /v1?k=a%2Fb%3Dcdef", "a%2Fb%3Dcdef"),
    "a key of OpenAI": (
        "Incorrect API key provided: sk-proj-AbCd1234****WXyz. See the page.",
        "sk-proj-AbCd1234****WXyz",
    ),
    "a key of Anthropic": ('{"key": "sk-ant-api03-abc_DEF-123"}', "sk-ant-api03-abc_DEF-123"),
    "a key of Google": ("key AIzaSyA-1234567890abcdefghijklmnop is bad", "AIzaSyA-1234567890abcdefghijklmnop"),
    "a header": ("Authorization: Bearer abcdef.ghi-jkl", "abcdef.ghi-jkl"),
    "headers as JSON": (json.dumps({"headers": {"X-Api-Key": "letmein-1234"}}), "letmein-1234"),
    "a query": ("POST https://host/v1beta/models?key=topsecretvalue&alt=sse", "topsecretvalue"),
    "a user in a URL": ("connect to https://ann:hunter22@host/v1 failed", "hunter22"),
    "a token of GitHub": ("ghp_0123456789abcdefABCDEF", "ghp_0123456789abcdefABCDEF"),
    "a private key": ("-----BEGIN RSA " + "PRIVATE KEY-----\nabcdefg\nhijk\n", "hijk"),
    "a JWT": ("token eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2lnbmF0dXJl", "eyJzdWIiOiIx"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_hidden(name):
    text, secret = SECRETS[name]

    cleaned = redacted(text, ["0123456789abcdef0123", "a/b=cdef"])

    assert secret not in cleaned
    assert HIDDEN in cleaned


@pytest.mark.parametrize(
    "text",
    [
        "Rate limit reached for gpt-6.1-terra in organization org-123 on requests per min (RPM): Limit 3, Used 3.",
        "Your API key is invalid.",
        "The key 'city' is missing in the arguments.",
        "prompt is too long: 215000 tokens > 200000 maximum",
        "risk-free tasks",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redacted(text, ["", "ab"]) == text
