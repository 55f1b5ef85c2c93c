"""Responses that say 200 and are no stream: an error as JSON, as gateways send it, or the page of a portal.

SDKs read past what they do not know, so its words would be lost, and the answer look cut.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2

from perdure.providers.pydantic_ai_errors import MOST_READ, refusal_of
from perdure.providers.vendors import Target


def checked(target: Target) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A hook for responses. It raises ModelError, which SDKs take for a connection that failed and hand on as cause."""

    async def check(response: httpx2.Response) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code != 200:
            return
        if kind == "text/event-stream":
            _give(response, _unmarked(response.aiter_bytes()))
            return
        # Not by the kind alone: some servers stream events and call them JSON, or text.
        pieces = _unmarked(response.aiter_bytes())
        body = b""
        async for piece in pieces:
            body += piece
            if body.strip():
                break
        if not body.lstrip().startswith((b"{", b"[", b"<")):
            _give(response, _again(body, pieces))
            return
        async for piece in pieces:
            body += piece
            if len(body) > MOST_READ:
                break
        raise refusal_of(body, kind, target)

    return check


async def _again(body: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield body
    async for piece in pieces:
        yield piece


def _give(response: httpx2.Response, pieces: AsyncIterator[bytes]) -> None:
    """Have the SDK read these."""
    response.aiter_bytes = lambda chunk_size=None: pieces  # pyright: ignore[reportAttributeAccessIssue]


async def _unmarked(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Without the byte order mark that a stream may begin with: SDKs take it for a part of the first field's name."""
    head = b""
    async for piece in pieces:
        head += piece
        if not BOM_UTF8.startswith(head):
            yield head.removeprefix(BOM_UTF8)
            break
    else:
        yield head.removeprefix(BOM_UTF8)
    async for piece in pieces:
        yield piece
