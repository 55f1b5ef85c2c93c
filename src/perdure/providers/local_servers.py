"""Finds model servers that run on this machine. Standard library only, and nothing leaves the machine."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Iterable, Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

#: The kinds of local servers, by the prefix of their models' names: where each listens unless told otherwise, and the
#: variable that tells otherwise.
SERVERS: Mapping[str, tuple[str, str]] = {
    "ollama": ("http://127.0.0.1:11434/v1", "OLLAMA_BASE_URL"),
    "llama-server": ("http://127.0.0.1:8080/v1", "LLAMA_SERVER_BASE_URL"),
    "vllm": ("http://127.0.0.1:8000/v1", "VLLM_BASE_URL"),
    "lm-studio": ("http://127.0.0.1:1234/v1", "LM_STUDIO_BASE_URL"),
}

_MOST_BYTES = 1_000_000


class LocalServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that answered, with the models that it serves."""

    name: str  #: a kind of `SERVERS`
    url: str  #: up to and including `/v1`
    models: tuple[str, ...]  #: as `perdure.open(model=…)` takes them: "ollama:qwen3:8b"


def url_of(kind: str, environment: Mapping[str, str]) -> str:
    """Where a kind of server is: by its variable, else where it listens by default."""
    default, variable = SERVERS[kind]
    return (environment.get(variable) or default).rstrip("/")


async def find(
    environment: Mapping[str, str] | None = None, *, timeout: float = 0.3, kinds: Iterable[str] = tuple(SERVERS)
) -> list[LocalServer]:
    """The servers that answer within `timeout` seconds, all asked at once, in the order of `SERVERS`.

    Never raises: who does not answer, or with anything but a list of models, is not there.
    """
    environment = environment or {}
    asked = [(kind, url_of(kind, environment)) for kind in kinds]
    answers = await asyncio.gather(*(_models(url, timeout) for _, url in asked))
    return [
        LocalServer(name=kind, url=url, models=tuple(f"{kind}:{model}" for model in models))
        for (kind, url), models in zip(asked, answers, strict=True)
        if models
    ]


async def _models(url: str, timeout: float) -> list[str]:
    try:
        async with asyncio.timeout(timeout):
            body = await _get(f"{url}/models")
        listed: Any = json.loads(body)
    except (OSError, TimeoutError, HTTPException, ValueError):
        return []
    entries: Any = cast("dict[str, Any]", listed).get("data") if isinstance(listed, dict) else None
    ids = [entry.get("id") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    # Models that only embed cannot answer; nothing in the list says so but their names.
    return [id for id in cast("list[Any]", ids) if isinstance(id, str) and id and "embed" not in id]


async def _get(url: str) -> bytes:
    """The body of a page: it ends where the connection ends, or where it says. Raises OSError, HTTPException."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise HTTPException("only http:// is looked at")
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=_MOST_BYTES)
    try:
        lines = (
            f"GET {parts.path} HTTP/1.0",
            f"Host: {parts.netloc}",
            "Accept: application/json",
            "Connection: close",
            "",
            "",
        )
        writer.write("\r\n".join(lines).encode())
        await writer.drain()
        answer = bytearray()
        while piece := await reader.read(65536):
            answer += piece
            if len(answer) > _MOST_BYTES:
                raise HTTPException("the list of models is too long")
            if _is_whole(answer):
                break
    finally:
        writer.close()
    response = HTTPResponse(cast("Any", _Answered(bytes(answer))))
    response.begin()
    if response.status != 200:
        raise HTTPException(f"status {response.status}")
    return response.read()


def _is_whole(answer: bytearray) -> bool:
    """As long as it said: some servers keep the connection open whatever they are told."""
    head, end, body = bytes(answer).partition(b"\r\n\r\n")
    told = re.search(rb"\r\ncontent-length:\s*(\d+)", head, re.IGNORECASE)
    return bool(end) and told is not None and len(body) >= int(told[1])


class _Answered:
    """The little of a socket that HTTPResponse asks for."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._answer)
