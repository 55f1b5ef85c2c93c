"""What one conversation uses of what is installed (H24, H31): extensions by name, and hooks from above."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.harness.hooks import HookName
from perdure.harness.registry import Extension, Registry, Section, Tool
from perdure.records import Conversation, ConversationId
from perdure.session.transaction import Transaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness, Settings


class Uses(msgspec.Struct, frozen=True, omit_defaults=True):
    """A selection by name, as a request pins it. Names without code are skipped, and come back with it."""

    extensions: tuple[str, ...] | None = None  #: None: those that are on by default
    hooks: tuple[str, ...] = ()  #: of these only hooks and wrappers: the setting `subtree`, here and of those above
    directory: str | None = None  #: where tools work


class Hook(msgspec.Struct, frozen=True, eq=False):
    """A hook or a wrapper, with what its extension says of it."""

    extension: str
    function: Callable[..., Any]
    seconds: float


class Loadout:
    """A selection of one registry. Immutable; everything in it is in the registry's order."""

    def __init__(self, registry: Registry, uses: Uses) -> None:
        names = uses.extensions
        chosen = [each for each in registry.extensions if (each.default if names is None else each.name in names)]
        self.tools: Mapping[str, Tool] = {tool.name: tool for each in chosen for tool in each.tools}
        self.sections: tuple[Section, ...] = tuple(section for each in chosen for section in each.sections)
        self._chosen = tuple(chosen)
        self._heard = tuple(each for each in registry.extensions if each in chosen or each.name in uses.hooks)
        #: Made when they are first asked for: most are empty.
        self._hooks: dict[str, tuple[Hook, ...]] = {}

    def hooks(self, name: HookName) -> tuple[Hook, ...]:
        """The hooks of that name, in order."""
        return self._functions(name, self._heard)

    @property
    def wrappers(self) -> tuple[Hook, ...]:
        """The wrappers around a call, outermost first."""
        return self._functions("wrappers", self._heard)

    @property
    def setup(self) -> tuple[Hook, ...]:
        """What a new conversation is set up with."""
        return self._functions("setup", self._chosen)

    def _functions(self, field: str, extensions: Sequence[Extension]) -> tuple[Hook, ...]:
        found = self._hooks.get(field)
        if found is None:
            found = self._hooks[field] = tuple(
                Hook(each.name, function, each.hook_seconds) for each in extensions for function in _of(each, field)
            )
        return found

    def offered(self, settings: Settings, installed: Mapping[str, Tool]) -> list[str]:
        """The tools to offer: those in use that the settings name (or all), then the added ones (H23, H31)."""
        names: Sequence[str] = list(self.tools) if settings.tools is None else settings.tools
        found = [name for name in dict.fromkeys(names) if name in self.tools]
        return [*found, *(name for name in settings.added_tools if name in installed and name not in found)]


def _of(extension: Extension, field: str) -> Sequence[Callable[..., Any]]:
    functions: Sequence[Callable[..., Any]] = getattr(extension, field)
    return functions


async def in_use(harness: Harness, tx: Transaction, conversation: ConversationId, settings: Settings) -> Uses:
    """The selection of a conversation as of the tip. Walks up its owners: as many steps as it is deep."""
    hooks = list(settings.subtree)
    home = await tx.use(conversation)
    while home.owner is not None:
        owner = tx.task(home.owner)
        if owner is None:
            break
        hooks.extend((await harness.settings(tx, owner.conversation)).subtree)
        home = await tx.use(owner.conversation)
    return Uses(settings.extensions, tuple(dict.fromkeys(hooks)), settings.directory)


async def set_up(loadout: Loadout, tx: Transaction, conversation: Conversation) -> None:
    """Run the setup in use for a new conversation. It stages as if the commit were that conversation's own."""
    point = conversation.parent
    parent = None if point is None else await tx.use(point.conversation)
    whose = tx.conversation, tx.task_id
    tx.conversation, tx.task_id = conversation.id, None
    try:
        for hook in loadout.setup:
            staged = hook.function(tx, conversation, parent)
            if inspect.isawaitable(staged):
                await staged
    finally:
        tx.conversation, tx.task_id = whose


def pinned(uses: Uses) -> dict[str, Any]:
    """As a checkpoint keeps it: nothing, where a conversation uses what is on by default."""
    return {} if uses == Uses() else {"uses": msgspec.to_builtins(uses)}


def uses_of(data: Mapping[str, Any]) -> Uses:
    """The selection that a checkpoint keeps."""
    kept = data.get("uses")
    return Uses() if kept is None else msgspec.convert(kept, Uses)
