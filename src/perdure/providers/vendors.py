"""Models by name: "openai:gpt-…", "ollama:qwen3:8b", "http://host:8000/v1#name".

Importing the vendors' packages takes seconds, so it happens in a thread, at the first request and never before: opening
a session needs no model, and other conversations go on meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from perdure.clock import Clock, SystemClock
from perdure.errors import ModelError, UsageError
from perdure.model import ModelEvent, Request
from perdure.providers.choices import missing
from perdure.providers.local_servers import SERVERS, url_of
from perdure.providers.redaction import redacted

#: How a vendor is spoken to.
Api = Literal["responses", "chat", "anthropic", "google"]

_ADAPTER = "perdure.providers.pydantic_ai"


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix of names."""

    api: Api
    extra: str  #: what has to be installed
    keys: tuple[str, ...]  #: variables that may hold the key; the first that is set is taken
    url: str  #: the variable that names another server
    home: str  #: its own server


_OPENAI = "https://api.openai.com"

VENDORS: Mapping[str, Vendor] = {
    "openai": Vendor(api="responses", extra="openai", keys=("OPENAI_API_KEY",), url="OPENAI_BASE_URL", home=_OPENAI),
    "openai-chat": Vendor(api="chat", extra="openai", keys=("OPENAI_API_KEY",), url="OPENAI_BASE_URL", home=_OPENAI),
    "anthropic": Vendor(
        api="anthropic",
        extra="anthropic",
        keys=("ANTHROPIC_API_KEY",),
        url="ANTHROPIC_BASE_URL",
        home="https://api.anthropic.com",
    ),
    "google": Vendor(
        api="google",
        extra="google",
        keys=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        url="GOOGLE_GEMINI_BASE_URL",
        home="https://generativelanguage.googleapis.com",
    ),
}

#: The key for a server that is named by its URL. A vendor's own key never goes to a URL that a name brings.
URL_KEY = "PERDURE_MODEL_KEY"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go. Its key is never part of a text."""

    name: str  #: as it is recorded
    vendor: str  #: the prefix: "openai", "ollama", "http" …
    api: Api
    model: str  #: as the vendor calls it
    url: str | None = None  #: None is the vendor's own
    key: str | None = None
    home: str = ""  #: the server where `url` names none
    #: The variables that the key is read from; none where the program gave it.
    key_from: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Whom a connection is made to: scheme, host and port, and nothing else of an address that may hold secrets."""
        parts = urlsplit(self.url or self.home)
        try:
            port = parts.port
        except ValueError:
            port = None
        host = parts.hostname or "its server"
        shown = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}")

    @property
    def key_told(self) -> str:
        """Where the key is from, for who has to correct it."""
        if not self.key_from:
            return "the key is the one that the program gave"
        names = " or ".join(self.key_from)
        return f"the key is read from {names}" if self.key else f"no key is set: {names} may hold one"

    def __repr__(self) -> str:
        return f"Target({self.name!r})"


class VendorModel:
    """A model that is reached over the network. Takes what it needs of its key with it, and shows it nowhere."""

    def __init__(self, target: Target, clock: Clock, settings: Mapping[str, Any]) -> None:
        self.name = target.name
        self._target = target
        self._clock = clock
        self._settings = dict(settings)
        #: The adapter and its loop: connections belong to the loop that made them.
        self._loaded: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._window: int | None = None

    @property
    def context_window(self) -> int | None:
        """In tokens; unknown before the first request, and for models that no price list has."""
        return self._window

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        """Answer; raises `ModelError`."""
        adapter = await self._adapter()
        events: Any = adapter.stream(request)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def aclose(self) -> None:
        """Close its connections. It may be used again afterwards."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded[0] is asyncio.get_running_loop():
            try:
                adapter = await loaded[1]
            except ModelError:
                return
            await adapter.aclose()

    async def _adapter(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._loaded is None or self._loaded[0] is not loop:
            self._loaded = (loop, loop.create_task(self._load(), name=f"perdure load {self._target.api}"))
        try:
            adapter = await asyncio.shield(self._loaded[1])
        except ModelError:
            self._loaded = None
            raise
        self._window = adapter.context_window
        return adapter

    async def _load(self) -> Any:
        try:
            return await asyncio.to_thread(self._build)
        except ImportError as error:
            raise ModelError(
                f"the packages for {self.name} cannot be loaded ({error}): install them anew, "
                f"pip install 'perdure[{_extra(self._target)}]'",
                kind="invalid",
            ) from None
        except Exception as error:  # such as a model that the vendor's library does not know how to speak to
            told = redacted(f"{type(error).__name__}: {error}", [self._target.key] if self._target.key else [])
            raise ModelError(f"{self.name} cannot be set up: {told[:500]}", kind="invalid") from None

    def _build(self) -> Any:
        return importlib.import_module(_ADAPTER).build(self._target, self._clock, self._settings)


def open_model(
    name: str,
    clock: Clock | None = None,
    *,
    key: str | None = None,
    environment: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> VendorModel:
    """The model of that name. Asks nobody and loads nothing heavy, so it serves to check a name before work begins.

    Names: `openai:NAME`, `openai-chat:NAME` (the older API, which other servers speak), `anthropic:NAME`,
    `google:NAME`; `ollama:NAME`, `llama-server:NAME`, `vllm:NAME`, `lm-studio:NAME` for servers on this machine;
    `http://host:port/v1#NAME` or `https://…` for any OpenAI-compatible URL.

    The key comes from `key`, else from the environment (`OPENAI_API_KEY`, …; `PERDURE_MODEL_KEY` for a URL). `settings`
    are pydantic-ai's model settings, such as `max_tokens`, `temperature`, `thinking`.

    Raises UsageError for a name that means nothing, a package that is not installed, a key that is not set.
    """
    target = target_of(name, os.environ if environment is None else environment, key=key)
    if (command := missing(_extra(target))) is not None:
        raise UsageError(f"model {name!r} needs packages that are not installed: {command}")
    return VendorModel(target, clock or SystemClock(), settings or {})


def target_of(name: str, environment: Mapping[str, str], *, key: str | None = None) -> Target:
    """Where requests to the model of that name go. Raises UsageError."""
    prefix, _, model = name.partition(":")
    if prefix in ("http", "https"):
        return _by_url(name, key or environment.get(URL_KEY) or None, () if key else (URL_KEY,))
    if not model:
        raise UsageError(f"model {name!r} names no model: write {prefix}:NAME")
    if prefix in SERVERS:
        variable = f"{prefix.replace('-', '_').upper()}_API_KEY"
        return Target(
            name=name,
            vendor=prefix,
            api="chat",
            model=model,
            url=url_of(prefix, environment),
            key=key or environment.get(variable) or None,
            key_from=() if key else (variable,),
        )
    vendor = VENDORS.get(prefix)
    if vendor is None:
        known = ", ".join([*VENDORS, *SERVERS])
        raise UsageError(f"model {name!r}: there is no vendor {prefix!r}; there is {known}, or http://host/v1#NAME")
    url = environment.get(vendor.url) or None
    key_from = () if key else tuple(each for each in vendor.keys if environment.get(each, "").strip())[:1]
    if not key and not key_from:
        key, key_from = None, vendor.keys
    elif not key:
        key = environment[key_from[0]].strip()
    if key is None and url is None:
        raise UsageError(f"model {name!r} needs a key: set {' or '.join(vendor.keys)} in the environment")
    return Target(
        name=name,
        vendor=prefix,
        api=vendor.api,
        model=model,
        url=url,
        key=key,
        home=vendor.home,
        key_from=key_from,
    )


def _by_url(name: str, key: str | None, key_from: tuple[str, ...]) -> Target:
    parts = urlsplit(name)
    if parts.username or parts.password or parts.query:
        # A name is stored with every answer, and a secret in it would be, too.
        raise UsageError(f"a model's URL carries no user, password or query: set {URL_KEY} in the environment instead")
    if not parts.hostname or not parts.fragment:
        raise UsageError(f"model {name!r}: write the URL and the model's name, such as http://127.0.0.1:8000/v1#NAME")
    url = name.partition("#")[0].rstrip("/")
    return Target(name=name, vendor=parts.scheme, api="chat", model=parts.fragment, url=url, key=key, key_from=key_from)


def _extra(target: Target) -> str:
    return target.api if target.api in ("anthropic", "google") else "openai"
