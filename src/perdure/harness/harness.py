"""The engine of conversations in one session: what their tasks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from perdure.clock import Clock
from perdure.errors import UsageError
from perdure.harness.generation import GenerationTask
from perdure.harness.limits import Watch
from perdure.harness.progress import INTERVAL, Progress
from perdure.harness.registry import Registry
from perdure.harness.retry import RetryPolicy
from perdure.harness.stored import AGENT, LIVE
from perdure.harness.tool import ToolTask
from perdure.model import Model, ToolSpec
from perdure.records import ConversationId, Entry, EntryId
from perdure.sandbox import Sandbox
from perdure.schema import Described, Schema
from perdure.session.documents import UNREAD
from perdure.session.line import Line
from perdure.session.transaction import Transaction
from perdure.tasks.invocation import Invocation
from perdure.tasks.scheduler import Scheduler
from perdure.telemetry import Telemetry

#: Finds a model by its name; None where there is none of that name.
Models = Callable[[str], Model | None]


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of a model request, in seconds (H13): to the first event, between events, in all. Heartbeats are not events."""

    first_byte: float = 120.0
    progress: float = 120.0
    total: float = 1800.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation runs. A conversation's own settings lie over the session's."""

    model: str | None = None
    tools: tuple[str, ...] | None = None  #: None offers everything that is installed
    steering: Literal["one", "all"] = "one"
    follow_up: Literal["one", "all"] = "one"
    max_rounds: int = 100
    max_queued: int = 1000


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is opened with."""

    settings: Settings = Settings()
    limits: RequestLimits = RequestLimits()
    retry: RetryPolicy = RetryPolicy()
    instructions: str = ""
    progress_interval: float = INTERVAL


class Harness:
    """Holds no state of conversations: that is in the line. Shared by their tasks and handles."""

    def __init__(
        self,
        line: Line,
        registry: Registry,
        *,
        models: Models,
        schema: Schema,
        sandbox: Sandbox | None,
        defaults: Defaults,
    ) -> None:
        self.line = line
        self.clock: Clock = line.clock
        self.telemetry: Telemetry = line.telemetry
        self.registry = registry
        self.defaults = defaults
        self.sandbox = sandbox
        self.watch = Watch(line.clock)
        self.progress = Progress(line.clock, defaults.progress_interval)
        self.generation = GenerationTask(self)
        self.tool_task = ToolTask(self)
        self.scheduler = Scheduler(line, registry.definitions([self.generation, self.tool_task]))
        self._models = models
        self._schema = schema
        #: Tools as models see them, made when first offered; replaced with the registry.
        self._described: dict[str, Described] = {}

    async def install(self, registry: Registry) -> None:
        """Publish another registry: new work uses it, running work keeps what it took (H37)."""
        self.registry = registry
        self._described = {}
        await self.scheduler.install(registry.definitions([self.generation, self.tool_task]))

    def close(self) -> None:
        self.watch.close()
        self.progress.close()

    # -- models, tools and prompt -----------------------------------------------------------

    def model(self, name: str | None) -> Model | None:
        return None if name is None else self._models(name)

    def offered(self, names: Sequence[str] | None) -> list[str]:
        """Names of the tools to offer: the pinned ones that are still installed, or all."""
        tools = self.registry.tools
        return list(tools) if names is None else [name for name in names if name in tools]

    def described(self, name: str) -> Described:
        """A tool's schema, from its function."""
        found = self._described.get(name)
        if found is None:
            tool = self.registry.tool(name)
            found = self._schema.describe(tool.function, skip=("call",) if tool.takes_call else ())
            self._described[name] = found
        return found

    def spec(self, name: str) -> ToolSpec:
        described = self.described(name)
        return ToolSpec(name=name, description=described.description, parameters=described.parameters)

    def system(self) -> str:
        """The system prompt: the session's instructions, then the sections in order."""
        parts = [self.defaults.instructions, *(section.text for section in self.registry.sections)]
        return "\n\n".join(part for part in parts if part)

    @property
    def sandbox_id(self) -> str:
        return "none" if self.sandbox is None else self.sandbox.id

    # -- what conversations store -----------------------------------------------------------

    async def settings(self, tx: Transaction, conversation: ConversationId) -> Settings:
        """The settings of a conversation, as of the tip."""
        own = await tx.snapshot(AGENT, conversation)
        return overlay(self.defaults.settings, own)

    async def transcript(self, conversation: ConversationId, cutoff: EntryId) -> list[Entry]:
        """The active transcript through `cutoff`: what a pinned request shows."""
        memory = self.line.memory
        known = memory.transcripts.get(conversation)
        if known is None:
            await self.line.flushed()
            known = await memory.transcript(await memory.conversation(conversation))
        return [entry for entry in known.entries if entry.id <= cutoff]

    async def live(self, invocation: Invocation) -> dict[str, Any] | None:
        """The live document of the run that owns this tool task."""
        task = self.line.memory.tip.tasks.get(invocation.id)
        if task is None or task.owner is None:
            return None
        loaded = await self.line.memory.loaded(("task", task.owner), (LIVE.kind, ""))
        return None if loaded is None or loaded.value is UNREAD else loaded.value


def overlay(settings: Settings, own: dict[str, Any] | None) -> Settings:
    """Settings with a conversation's own on top. Raises UsageError for one that does not exist."""
    if not own:
        return settings
    unknown = [name for name in own if name not in Settings.__struct_fields__]
    if unknown:
        raise UsageError(f"no setting named {unknown[0]!r}; there are {', '.join(Settings.__struct_fields__)}")
    return msgspec.convert({**msgspec.to_builtins(settings), **own}, Settings)
