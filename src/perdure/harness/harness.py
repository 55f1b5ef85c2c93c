"""The engine of conversations in one session: what their tasks share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from perdure.clock import Clock
from perdure.errors import PerdureError, SandboxError, UsageError
from perdure.harness.anchor import AnchorTask, ReportTask
from perdure.harness.compaction import CompactionTask
from perdure.harness.generation import GenerationTask
from perdure.harness.installed import Installed
from perdure.harness.job import JobTask
from perdure.harness.limits import Watch
from perdure.harness.loadout import Uses, set_up
from perdure.harness.permits import Permits
from perdure.harness.progress import INTERVAL, Progress
from perdure.harness.registry import Registry, Tool
from perdure.harness.renderings import Renderings
from perdure.harness.retry import RetryPolicy
from perdure.harness.sizing import Sizes
from perdure.harness.stored import AGENT, LIVE
from perdure.harness.tool import ToolTask
from perdure.harness.view import route
from perdure.harness.warming import Warming
from perdure.harness.within import Within, check_directory
from perdure.model import Model
from perdure.records import Conversation, ConversationId, Entry, EntryId
from perdure.sandbox import Sandbox
from perdure.schema import Schema
from perdure.session.documents import UNREAD
from perdure.session.line import Line
from perdure.session.reading import snapshot
from perdure.session.transaction import Transaction
from perdure.session.transcripts import cut
from perdure.tasks.invocation import Invocation
from perdure.tasks.scheduler import Scheduler
from perdure.telemetry import Telemetry
from perdure.views.watch import Views

#: Finds a model by its name; None where there is none of that name.
Models = Callable[[str], Model | None]


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of a request, in seconds (H13): to the first event, between events, in all. Heartbeats are none.

    `at_once` is how many requests the session has open at a time; None sets no limit. One that waits for its turn does
    so before its time begins, and a run that waits for tools or sub-agents takes no turn (I70).
    """

    first_byte: float = 120.0
    progress: float = 120.0
    total: float = 1800.0
    at_once: int | None = None

    def __post_init__(self) -> None:
        if self.at_once is not None and self.at_once < 1:
            raise UsageError(f"at_once={self.at_once!r}: at least 1 request at a time, or None for no limit")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation runs. A conversation's own settings lie over the session's."""

    model: str | None = None
    tools: tuple[str, ...] | None = None  #: None offers all that the extensions in use bring
    added_tools: tuple[str, ...] = ()  #: offered besides; tools add to them (`ToolResult.add_tools`)
    extensions: tuple[str, ...] | None = None  #: those in use; None uses all that are on by default
    subtree: tuple[str, ...] = ()  #: whose hooks apply also in every conversation that tasks of this one own
    instructions: str | None = None  #: the first section of the system prompt; None takes the session's
    directory: str | None = None  #: where tools work, relative to the session's directory; None is that one
    sequential: bool = False  #: the calls of a round run one after another
    steering: Literal["one", "all"] = "one"
    follow_up: Literal["one", "all"] = "one"
    max_rounds: int = 100  #: of one run
    max_spend: float | None = None  #: what the conversation may spend, in the currency of costs; None is no limit
    max_subtree_spend: float | None = None  #: the same for it and all conversations below it
    max_session_spend: float | None = None  #: and for all conversations of the session together
    max_queued: int = 1000
    max_jobs: int = 8  #: background jobs of a conversation that run at a time
    compaction: bool = True  #: summarise by itself: at the threshold, beside the work, and after an overflow
    compaction_reserve: int = 16_384  #: tokens of the context window below which a request waits for a summary
    compaction_keep_recent: int = 20_000  #: tokens of the newest that a summary leaves as they are
    compaction_background: int = 32_768  #: tokens below that threshold from which on one is made beside; 0 makes none
    job_seconds: float = 86_400.0  #: how long one may run
    job_bytes: int = 16 * 1024 * 1024  #: how much of its newest output is kept
    job_wakes: bool = False  #: one that ends asks the model, rather than to wait for the next input
    max_depth: int = 3  #: how deep sub-agents may be nested
    max_children: int = 8  #: sub-agents of a conversation that work at a time
    agent_wakes: bool = True  #: an answer of a background agent asks the model, rather than to wait for the next input


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
        self.defaults = _with_instructions(defaults)
        self.sandbox = sandbox
        self._places: dict[str, Within] = {}
        self._models = models
        self._schema = schema
        #: What new work takes; replaced as a whole.
        self.installed = Installed(registry, schema)
        self.renderings = Renderings()
        self.sizes = Sizes()
        self.watch = Watch(line.clock)
        #: Whoever asks a model holds one while it does.
        self.permits = Permits(defaults.limits.at_once)
        self.progress = Progress(line.clock, defaults.progress_interval)
        self.views = Views(line, route)
        self.generation = GenerationTask(self)
        self.tool_task = ToolTask(self)
        self.job_task = JobTask(self)
        self.compaction = CompactionTask(self)
        self.anchor = AnchorTask()
        self.report = ReportTask(self)
        line.setup = self._set_up
        self._built_in = (
            *(self.generation, self.tool_task, self.job_task, self.compaction),
            *(self.anchor, self.report),
        )
        self.scheduler = Scheduler(line, registry.definitions(self._built_in))
        self.warming = Warming(self)

    async def install(self, registry: Registry) -> None:
        """Publish another registry: new work uses it, running work keeps what it took (H37)."""
        self.installed = Installed(registry, self._schema)
        await self.scheduler.install(registry.definitions(self._built_in))

    async def _set_up(self, tx: Transaction, conversation: Conversation) -> None:
        """What the extensions in use give a new conversation, in the commit that makes it (H37)."""
        if self.installed.sets_up:
            settings = await self.settings(tx, conversation.id)
            await set_up(self.installed.loadout(Uses(settings.extensions)), tx, conversation)

    @property
    def registry(self) -> Registry:
        return self.installed.registry

    def close(self) -> None:
        self.watch.close()
        self.progress.close()

    def model(self, name: str | None) -> Model | None:
        return None if name is None else self._models(name)

    def window(self, name: str | None) -> int | None:
        """The context window of the model of that name, in tokens; None where it is unknown, or there is no model."""
        try:
            found = self.model(name)
        except PerdureError:  # whoever asks it is told why
            return None
        return None if found is None else found.context_window

    def place(self, directory: str | None) -> Sandbox | None:
        """The sandbox, as seen from a directory of it; the same object each time."""
        if self.sandbox is None or directory is None:
            return self.sandbox
        found = self._places.get(directory)
        if found is None:
            found = self._places[directory] = Within(self.sandbox, directory)
        return found

    async def isolation(self, tools: Iterable[Tool | None]) -> str:
        """What the intents of calls of these tools record of where they run."""
        if self.sandbox is None:
            return "none"
        if not any(tool is not None and tool.runs_commands for tool in tools):
            return self.sandbox.id
        try:
            return await self.sandbox.isolation()
        except SandboxError:  # the call will be told why; nothing can run
            return self.sandbox.id

    # -- what conversations store -----------------------------------------------------------

    async def settings(self, tx: Transaction, conversation: ConversationId) -> Settings:
        """The settings of a conversation, as of the tip."""
        own = await tx.snapshot(AGENT, conversation)
        return overlay(self.defaults.settings, own)

    async def published_settings(self, conversation: ConversationId) -> Settings:
        """The settings of a conversation, as published."""
        return overlay(self.defaults.settings, await snapshot(self.line, AGENT, conversation, ""))

    async def transcript(self, conversation: ConversationId, cutoff: EntryId) -> Sequence[Entry]:
        """The active transcript through `cutoff`: what a pinned request shows. To be read before anything is awaited:
        it may be the one in memory.
        """
        memory = self.line.memory
        await self.warming.wait(conversation)
        known = memory.transcripts.get(conversation)
        if known is None:
            await self.line.flushed()
            known = await memory.transcript(await memory.conversation(conversation))
        if known.head is not None and known.head.id > cutoff:  # a head that came later took away what the request shows
            return await self._transcript_until(conversation, cutoff)
        entries = known.entries  # behind their head in the order of ids
        if not entries or entries[-1].id <= cutoff:
            return entries
        return entries[: bisect_right(entries, cutoff, lo=0 if known.head is None else 1, key=_id)]

    async def _transcript_until(self, conversation: ConversationId, cutoff: EntryId) -> list[Entry]:
        memory = self.line.memory
        record = await memory.conversation(conversation)
        found: list[Entry] = []
        floor: int | None = None
        before = cutoff + 1
        while page := await memory.entries(record, before=before):
            found.extend(page)
            before = page[-1].id
            if floor is None:
                floor = next((entry.head for entry in page if entry.head is not None), None)
            if floor is not None and before <= floor:
                break
        return cut(found[::-1])

    async def live(self, invocation: Invocation) -> dict[str, Any] | None:
        """The live document of the run that owns this tool task."""
        task = self.line.memory.tip.tasks.get(invocation.id)
        if task is None or task.owner is None:
            return None
        loaded = await self.line.memory.loaded(("task", task.owner), (LIVE.kind, ""))
        return None if loaded is None or loaded.value is UNREAD else loaded.value


def _id(entry: Entry) -> int:
    return entry.id


def _with_instructions(defaults: Defaults) -> Defaults:
    """A session's instructions are a setting like others, where its settings have none."""
    settings = defaults.settings
    if not defaults.instructions or settings.instructions is not None:
        return defaults
    settings = msgspec.structs.replace(settings, instructions=defaults.instructions)
    return msgspec.structs.replace(defaults, settings=settings)


def overlay(settings: Settings, own: dict[str, Any] | None) -> Settings:
    """Settings with a conversation's own on top. Names that this version does not know are skipped (H31)."""
    if not own:
        return settings
    known = {name: value for name, value in own.items() if name in Settings.__struct_fields__}
    return msgspec.convert({**msgspec.to_builtins(settings), **known}, Settings)


#: The least that a setting can be.
_LEAST = {
    "max_rounds": 1,
    "max_spend": 0,
    "max_subtree_spend": 0,
    "max_session_spend": 0,
    "max_queued": 1,
    "max_jobs": 0,
    "compaction_reserve": 0,
    "compaction_keep_recent": 0,
    "compaction_background": 0,
    "job_seconds": 1,
    "job_bytes": 4096,
    "max_depth": 0,
    "max_children": 0,
}


def check_setting(name: str, value: Any) -> None:
    """Raise UsageError where there is no such setting, or it cannot have the value. None takes the session's."""
    if name not in Settings.__struct_fields__:
        raise UsageError(f"no setting named {name!r}; there are {', '.join(Settings.__struct_fields__)}")
    if value is None:
        return
    try:
        msgspec.convert({name: value}, Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"setting {name}={value!r}: {error}") from None
    if name == "directory":
        check_directory(value)
    least = _LEAST.get(name)
    if least is not None and not value >= least:
        raise UsageError(f"setting {name}={value!r}: it must be at least {least}")
