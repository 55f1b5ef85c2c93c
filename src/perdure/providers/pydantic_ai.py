"""Models of OpenAI, Anthropic, Google and every OpenAI-compatible URL, over pydantic-ai's direct API.

This module and its siblings `pydantic_ai_*` are the only ones that see pydantic-ai and the vendors' SDKs. Nothing is
tried twice here: retries are journalled, so they are the harness's (H13); so are the limits of time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
from genai_prices.data_snapshot import get_snapshot
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model as VendorModel
from pydantic_ai.settings import ModelSettings

from perdure.clock import Clock
from perdure.model import ModelEvent, Request
from perdure.providers.pydantic_ai_errors import model_error
from perdure.providers.pydantic_ai_events import Events
from perdure.providers.pydantic_ai_replies import checked
from perdure.providers.pydantic_ai_requests import messages_of, parameters_of
from perdure.providers.pydantic_ai_servers import set_right
from perdure.providers.pydantic_ai_usage import usage_of
from perdure.providers.vendors import VENDORS, Target

#: A connection that nobody watches ends after this long, in seconds; the harness's limits are shorter.
LONGEST_SILENCE = 3600.0
CONNECT = 15.0

#: How many events of a stream are read before others get the loop: each costs up to a millisecond in the SDKs, and a
#: packet may carry hundreds.
AT_ONCE = 10

#: Where a key is not needed, the SDKs still want one.
NO_KEY = "none"

#: What each API is told unless the caller's settings say otherwise.
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    # Nothing of a conversation is kept at the vendor: every request carries all of it, encrypted reasoning included.
    "responses": {"openai_store": False},
    "chat": {},
    # Tools and instructions are one cached prefix, the conversation so far another: its marker moves along.
    "anthropic": {
        "anthropic_cache_tool_definitions": True,
        "anthropic_cache_instructions": True,
        "anthropic_cache_messages": True,
    },
    "google": {},
}


class PydanticAIModel:
    """One model, with the connections of one event loop."""

    def __init__(
        self, target: Target, model: VendorModel, client: httpx2.AsyncClient, clock: Clock, settings: Mapping[str, Any]
    ) -> None:
        self.name = target.name
        self.context_window = _window(target)
        self._target = target
        self._model = model
        self._client = client
        self._clock = clock
        # `max_retries` is not the caller's to set: a second attempt that nobody recorded would be paid for unseen.
        self._settings = cast("ModelSettings", {**_SETTINGS[target.api], **settings, "max_retries": 0})

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        """Answer; raises `ModelError`. Leaving the stream early closes its connection."""
        events = Events()
        try:
            opened = model_request_stream(
                self._model,
                messages_of(request, self._target.api),
                model_settings=self._settings,
                model_request_parameters=parameters_of(request),
                instrument=False,
            )
            async with opened as stream:
                set_right(stream, self._target.api)
                count = 0
                async for event in stream:
                    for each in events.add(event, stream):
                        yield each
                    count += 1
                    if count % AT_ONCE == 0:
                        await asyncio.sleep(0)
                for each in events.finish(stream, usage_of(stream, self._target)):
                    yield each
        except Exception as error:
            # `from None`: the chain holds the request with its headers.
            raise model_error(error, self._target, began=events.began, now=self._clock.now()) from None

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.aclose()


def build(target: Target, clock: Clock, settings: Mapping[str, Any]) -> PydanticAIModel:
    """Make the model with its client. Slow: it loads the vendor's packages. Raises ImportError."""
    client = httpx2.AsyncClient(
        timeout=httpx2.Timeout(LONGEST_SILENCE, connect=CONNECT, pool=CONNECT),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30.0),
        # A key is for the server that was named, not for where it points to.
        follow_redirects=False,
        # A proxy cannot reach this machine's own servers.
        trust_env=not _is_loopback(target.url),
        event_hooks={
            "request": [] if target.vendor in VENDORS else [_stranger(target, settings)],
            "response": [checked(target)],
        },
    )
    return PydanticAIModel(target, _MODELS[target.api](target, client), client, clock, settings)


#: Headers of a request to a server that is not OpenAI's own.
_PLAIN = frozenset(
    {"host", "accept", "accept-encoding", "connection", "content-type", "content-length", "transfer-encoding"}
    | {"user-agent"}
)


def _stranger(target: Target, settings: Mapping[str, Any]) -> Callable[[httpx2.Request], Awaitable[None]]:
    """OpenAI's SDK takes headers from OpenAI's variables, keys and organisations among them, wherever it sends to."""
    given = {name.lower() for name in cast("dict[str, str]", settings.get("extra_headers", {}))}

    async def plain(request: httpx2.Request) -> None:
        for name in [name for name in request.headers if name.lower() not in _PLAIN | given]:
            del request.headers[name]
        if "authorization" not in given:
            request.headers["authorization"] = f"Bearer {target.key or NO_KEY}"

    return plain


def _is_loopback(url: str | None) -> bool:
    host = urlsplit(url).hostname if url else None
    return host is not None and (host in ("localhost", "::1") or host.startswith("127."))


def _responses(target: Target, client: httpx2.AsyncClient) -> VendorModel:
    models, providers = import_module("pydantic_ai.models.openai"), import_module("pydantic_ai.providers.openai")
    url = target.url or "https://api.openai.com/v1"
    provider = providers.OpenAIProvider(base_url=url, api_key=target.key or NO_KEY, http_client=client)
    return cast("VendorModel", models.OpenAIResponsesModel(target.model, provider=provider))


def _chat(target: Target, client: httpx2.AsyncClient) -> VendorModel:
    models = import_module("pydantic_ai.models.openai")
    url, key = target.url or "https://api.openai.com/v1", target.key or NO_KEY
    if target.vendor == "openai-chat":
        provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(
            base_url=url, api_key=key, http_client=client
        )
    elif target.vendor == "vllm":
        provider = import_module("pydantic_ai.providers.vllm").VLLMProvider(
            base_url=url, api_key=key, http_client=client
        )
    elif target.vendor == "ollama":
        provider = import_module("pydantic_ai.providers.ollama").OllamaProvider(
            base_url=url, api_key=key, http_client=client
        )
        return cast(
            "VendorModel", import_module("pydantic_ai.models.ollama").OllamaModel(target.model, provider=provider)
        )
    else:
        provider = import_module("pydantic_ai.providers.openai_compatible").OpenAICompatibleProvider(
            target.vendor, base_url=url, api_key=key, http_client=client
        )
    return cast("VendorModel", models.OpenAIChatModel(target.model, provider=provider))


def _anthropic(target: Target, client: httpx2.AsyncClient) -> VendorModel:
    models = import_module("pydantic_ai.models.anthropic")
    provider = import_module("pydantic_ai.providers.anthropic").AnthropicProvider(
        api_key=target.key or NO_KEY, base_url=target.url or "https://api.anthropic.com", http_client=client
    )
    return cast("VendorModel", models.AnthropicModel(target.model, provider=provider))


def _google(target: Target, client: httpx2.AsyncClient) -> VendorModel:
    models = import_module("pydantic_ai.models.google")
    provider = import_module("pydantic_ai.providers.google").GoogleProvider(
        api_key=target.key or NO_KEY, base_url=target.url, http_client=client
    )
    return cast("VendorModel", models.GoogleModel(target.model, provider=provider))


_MODELS: Mapping[str, Callable[[Target, httpx2.AsyncClient], VendorModel]] = {
    "responses": _responses,
    "chat": _chat,
    "anthropic": _anthropic,
    "google": _google,
}


def _window(target: Target) -> int | None:
    """From the price list, for a vendor's own models."""
    try:
        _, found = get_snapshot().find_provider_model(target.model, None, target.vendor.removesuffix("-chat"), None)
    except LookupError:
        return None
    window = found.context_window
    return window if isinstance(window, int) and window > 0 else None
