"""Responses that say 200 and are no stream: an error as JSON, as gateways send it, or the page of a portal.

SDKs read past what they do not know, so its words would be lost, and the answer look cut.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2

from perdure.providers.pydantic_ai_errors import MOST_READ, refusal_of
from perdure.providers.vendors import Target


def checked(target: Target) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A hook for responses. It raises ModelError, which SDKs take for a connection that failed and hand on as cause."""

    async def check(response: httpx2.Response) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code != 200 or kind == "text/event-stream":
            return
        # Not by the kind alone: some servers stream events and call them JSON, or text.
        pieces = response.aiter_bytes()
        body = b""
        async for piece in pieces:
            body += piece
            if body.strip():
                break
        if not body.lstrip().startswith((b"{", b"[", b"<")):
            response.aiter_bytes = lambda chunk_size=None: _again(body, pieces)  # pyright: ignore[reportAttributeAccessIssue]
            return
        async for piece in pieces:
            body += piece
            if len(body) > MOST_READ:
                break
        raise refusal_of(body, kind, target)

    return check


async def _again(body: bytes, pieces: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    yield body
    async for piece in pieces:
        yield piece
