"""Opening stores and sessions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, TypeVar, overload

import msgspec

from perdure.app.adapters import LazySchema, adapter
from perdure.app.handing_in import HandInSession
from perdure.app.looking import ReadSession
from perdure.app.models import ModelFinder
from perdure.app.naming import check_name
from perdure.app.session import Session
from perdure.clock import Clock, SystemClock
from perdure.errors import UsageError
from perdure.harness.harness import Defaults, Harness, RequestLimits, Settings
from perdure.harness.registry import Registry
from perdure.harness.retry import RetryPolicy
from perdure.model import Model
from perdure.sandbox import Sandbox
from perdure.schema import Schema
from perdure.session.opening import open_line
from perdure.storage import SessionInfo, Storage
from perdure.telemetry import Telemetry

T = TypeVar("T")

#: How a store is opened: to work in its sessions, to look at them, or to look and hand things in.
Mode = Literal["own", "read", "hand-in"]


class Store:
    """A store: any number of sessions. Made by `perdure.store`."""

    def __init__(self, storage: Storage, options: Mapping[str, Any], clock: Clock, telemetry: Telemetry) -> None:
        self.storage = storage
        self._options = options
        self._clock = clock
        self._telemetry = telemetry

    @asynccontextmanager
    async def session(
        self, key: str = "main", *, take_over: bool = False, kill: bool = False, **options: Any
    ) -> AsyncGenerator[Session]:
        """Open a session to work in it. Raises SessionOwned while another live worker owns it, unless `take_over`."""
        _check_options(options)
        session = await open_session(
            self.storage,
            key,
            clock=self._clock,
            telemetry=self._telemetry,
            take_over=take_over,
            kill=kill,
            **{**self._options, **options},
        )
        try:
            yield session
        finally:
            await session.close()

    def look(self, key: str = "main") -> ReadSession:
        """A session to look at, beside its owner or without one. Asking one that is not there raises NotFound."""
        return ReadSession(self.storage, key, self._clock, self._telemetry)

    def hand_in(self, key: str = "main") -> HandInSession:
        """A session to look at and to hand things in to."""
        return HandInSession(self.storage, key, self._clock, self._telemetry)

    async def sessions(self) -> list[SessionInfo]:
        """Every session of the store, by key, with its live owner if it has one."""
        found: list[SessionInfo] = []
        while page := await self.storage.sessions(after=found[-1].key if found else "", limit=100):
            found.extend(page)
        return found


async def open_session(
    storage: Storage,
    key: str,
    *,
    clock: Clock,
    telemetry: Telemetry,
    registry: Registry | None = None,
    model: str | Model | None = "demo",
    models: Mapping[str, Model] | None = None,
    sandbox: Sandbox | None = None,
    schema: Schema | None = None,
    settings: Settings | None = None,
    limits: RequestLimits | None = None,
    retry: RetryPolicy | None = None,
    instructions: str = "",
    progress_interval: float = 0.1,
    take_over: bool = False,
    kill: bool = False,
) -> Session:
    """Open a session on a storage that is open. `close` it when done."""
    if isinstance(model, str):
        check_name(model, models or {})
    defaults = Defaults(
        settings=_with_model(settings or Settings(), model),
        limits=limits or RequestLimits(),
        retry=retry or RetryPolicy(),
        instructions=instructions,
        progress_interval=progress_interval,
    )
    line, crashed = await open_line(storage, key, clock=clock, telemetry=telemetry, take_over=take_over, kill=kill)
    finder, schema = ModelFinder(models or {}, model, clock), schema or LazySchema()
    harness = Harness(line, registry or Registry(), models=finder, schema=schema, sandbox=sandbox, defaults=defaults)
    session = Session(line, harness, finder)
    try:
        await session.start(crashed)
    except BaseException:
        await session.close()
        raise
    return session


def _check_options(options: Mapping[str, Any], of_store: tuple[str, ...] = ()) -> None:
    """Raise UsageError for what is no option of a session: a misspelt one must not be missed until one is opened."""
    known = [
        name for name, each in inspect.signature(open_session).parameters.items() if each.default is not each.empty
    ]
    for name in options:
        if name not in known:
            listed = ", ".join(sorted([*known, *of_store]))
            raise UsageError(f"there is no option {name!r}: there are {listed}")


def _with_model(settings: Settings, model: str | Model | None) -> Settings:
    """The settings, with the session's model where they name none."""
    if settings.model is not None or model is None:
        return settings
    return msgspec.structs.replace(settings, model=model if isinstance(model, str) else model.name)


@asynccontextmanager
async def store(
    url: str | Storage,
    *,
    mode: Mode = "own",
    clock: Clock | None = None,
    telemetry: Telemetry | None = None,
    directory: str | None = None,
    **options: Any,
) -> AsyncGenerator[Store]:
    """Open a store: `"memory:"`, the path of an SQLite file, or `"jsonl:DIRECTORY"`. Options: see `perdure.open`.

    The modes `read` and `hand-in` make no file and claim no session: see `Store.look` and `Store.hand_in`.
    """
    if mode not in ("own", "read", "hand-in"):
        raise UsageError(f"mode={mode!r}: use 'own', 'read' or 'hand-in'")
    clock = clock or SystemClock()
    telemetry = telemetry or Telemetry()
    durability = options.pop("durability", "power")
    if durability not in ("power", "process"):
        raise UsageError(f"durability={durability!r}: use 'power' or 'process'")
    _check_options(options, ("directory", "durability"))
    if isinstance(url, str):
        storage = await open_storage(
            url, clock, telemetry, durability=durability, mode="own" if mode == "own" else "look"
        )
    else:
        storage = url
    sandbox: Sandbox | None = None
    try:
        if directory is not None:
            sandbox = options["sandbox"] = adapter("sandbox:local")(directory, clock=clock)
        yield Store(storage, options, clock, telemetry)
    finally:
        try:
            if sandbox is not None:
                await sandbox.close()
        finally:
            if isinstance(url, str):
                await storage.close()


async def open_storage(
    url: str, clock: Clock, telemetry: Telemetry, *, durability: str = "power", mode: Literal["own", "look"] = "own"
) -> Storage:
    """The storage that a URL names; with `look` it is made by nobody, so it has to be there."""
    scheme, _, rest = url.partition(":")
    if scheme == "memory" and not rest:
        if mode == "look":
            raise UsageError(
                "store 'memory:' is seen only by the process that made it: name the store that it works on"
            )
        found: Storage = adapter("storage:memory")(clock=clock)
        return found
    backend = scheme if scheme in ("sqlite", "jsonl") else "sqlite"
    path = rest.removeprefix("//") if scheme == backend else url
    if scheme in ("postgresql", "postgres") and rest:
        raise UsageError(f"store {url!r}: there is no {scheme} backend in this version; use a file path, or memory:")
    if not path:
        raise UsageError(f"store {url!r} names no {'directory' if backend == 'jsonl' else 'file'}: give a path")
    opened: Storage = await adapter(f"storage:{backend}")(
        path, clock=clock, telemetry=telemetry, durability=durability, mode=mode
    )
    return opened


@overload
def open(
    url: str | Storage,
    *,
    mode: Literal["own"] = "own",
    session: str = "main",
    take_over: bool = False,
    kill: bool = False,
    clock: Clock | None = None,
    telemetry: Telemetry | None = None,
    **options: Any,
) -> AbstractAsyncContextManager[Session]: ...
@overload
def open(
    url: str | Storage,
    *,
    mode: Literal["read"],
    session: str = "main",
    clock: Clock | None = None,
    telemetry: Telemetry | None = None,
) -> AbstractAsyncContextManager[ReadSession]: ...
@overload
def open(
    url: str | Storage,
    *,
    mode: Literal["hand-in"],
    session: str = "main",
    clock: Clock | None = None,
    telemetry: Telemetry | None = None,
) -> AbstractAsyncContextManager[HandInSession]: ...
@asynccontextmanager
async def open(
    url: str | Storage,
    *,
    mode: Mode = "own",
    session: str = "main",
    take_over: bool = False,
    kill: bool = False,
    **options: Any,
) -> AsyncGenerator[Session | ReadSession | HandInSession]:
    """Open one session of a store; see `Store` for several.

    Modes: `own` claims the session to work in it. `read` looks on, also beside a live owner. `hand-in` looks on, and
    hands inputs, writes, aborts and answers in to that owner. Neither of these starts anything or makes a store.

    Options: `registry`, `model` (a name or a model), `models`, `directory` (where tools work), `sandbox`, `settings`,
    `limits`, `retry`, `instructions`, `durability` ("power": a returned commit survives power loss; "process": only the
    process).
    """
    async with store(url, mode=mode, **options) as opened:
        if mode == "own":
            async with opened.session(session, take_over=take_over, kill=kill) as one:
                yield one
        elif mode == "read":
            yield opened.look(session)
        else:
            yield opened.hand_in(session)


def run(main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T]) -> T:
    """Run a script's main coroutine. Raises UsageError on a running loop, where it could only freeze (I50)."""
    coroutine = main() if callable(main) else main
    if _inside_a_loop():
        coroutine.close()
        raise UsageError("perdure.run() inside a running event loop would block it: await the coroutine instead")
    return asyncio.run(coroutine)


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
