"""What one registry offers to models, made once: whoever takes it keeps it, though the registry is replaced (H37)."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.harness.loadout import Loadout, Uses
from perdure.harness.registry import Registry, Tool
from perdure.model import ToolSpec
from perdure.schema import Described, Schema

#: Selections that are kept: a session has few different ones.
MOST_LOADOUTS = 256


class ReadyTool(msgspec.Struct, frozen=True, eq=False):
    """A tool with all that has to be known to offer and to call it."""

    tool: Tool
    described: Described
    spec: ToolSpec
    takes_call: bool
    is_async: bool
    digest: str  #: see `digest`


class Installed:
    """A published registry. Invariant: what it makes of a tool never changes."""

    def __init__(self, registry: Registry, schema: Schema) -> None:
        self.registry = registry
        self.tools = registry.tools
        self.sets_up = any(each.setup for each in registry.extensions)
        self._schema = schema
        #: A cache, by selection.
        self._loadouts: dict[Uses, Loadout] = {}
        self._ready: dict[str, ReadyTool] = {}
        self._specs: dict[tuple[str, ...], tuple[ToolSpec, ...]] = {}

    def offered(self, names: Sequence[str] | None) -> list[str]:
        """The tools to offer: the named ones, or all. A name without code is skipped (H31)."""
        return list(self.tools) if names is None else [name for name in dict.fromkeys(names) if name in self.tools]

    def loadout(self, uses: Uses) -> Loadout:
        """What a conversation with this selection uses."""
        found = self._loadouts.get(uses)
        if found is None:
            if len(self._loadouts) >= MOST_LOADOUTS:
                self._loadouts.clear()
            found = self._loadouts[uses] = Loadout(self.registry, uses)
        return found

    def ready(self, name: str) -> ReadyTool:
        """A tool by name. Raises NotFound, and UsageError for a function that JSON cannot call."""
        found = self._ready.get(name)
        if found is None:
            found = self._ready[name] = self._make(self.registry.tool(name))
        return found

    def specs(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """The tools as models see them."""
        key = tuple(names)
        found = self._specs.get(key)
        if found is None:
            found = self._specs[key] = tuple(self.ready(name).spec for name in key)
        return found

    def _make(self, tool: Tool) -> ReadyTool:
        function: Any = tool.function
        takes_call = tool.takes_call
        described = self._schema.describe(function, skip=("call",) if takes_call else ())
        spec = ToolSpec(name=tool.name, description=described.description, parameters=described.parameters)
        return ReadyTool(tool, described, spec, takes_call, inspect.iscoroutinefunction(function), digest(spec))


def digest(spec: ToolSpec) -> str:
    """What tells whether a tool is still what it was: a part of its parameters, a point, a part of its description."""
    parts = (msgspec.json.encode(part) for part in (spec.parameters, [spec.name, spec.description]))
    return ".".join(hashlib.blake2b(part, digest_size=8).hexdigest() for part in parts)
