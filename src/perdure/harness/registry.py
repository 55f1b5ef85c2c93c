"""What is installed: tools, tasks and sections, in named bundles (H37)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, overload

import msgspec

from perdure.errors import NotFound, UsageError
from perdure.harness.context import TOOL_NAME
from perdure.tasks.definition import Definitions, TaskDefinition

Replay = Literal["safe", "unsafe"]
Keep = Literal["head", "tail", "both"]

#: The time limit of a tool call, in seconds (H43).
TOOL_TIMEOUT = 30.0


class Tool(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A function that a model may call.

    `replay="safe"` says that the whole call can be repeated after an interruption; the default never is (H19).
    `sequential` calls of a round run one after another. `keep` says which part of too long an output stays (H21).
    One that `runs_commands` in the sandbox has their isolation recorded with its intent, and a call that was
    interrupted says what that proves.
    """

    name: str
    function: Callable[..., Any]
    replay: Replay = "unsafe"
    timeout: float = TOOL_TIMEOUT
    sequential: bool = False
    keep: Keep = "head"
    runs_commands: bool = False

    @property
    def takes_call(self) -> bool:
        """Whether the first parameter is the call itself."""
        first = next(iter(inspect.signature(self.function).parameters), None)
        return first == "call"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plain function, for tests and direct use."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    replay: Replay = "unsafe",
    timeout: float = TOOL_TIMEOUT,
    sequential: bool = False,
    keep: Keep = "head",
    runs_commands: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    replay: Replay = "unsafe",
    timeout: float = TOOL_TIMEOUT,
    sequential: bool = False,
    keep: Keep = "head",
    runs_commands: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool: its signature and docstring say what the model is told.

    A first parameter named `call` is given the call (`perdure.ToolCall`) and is not part of the schema.
    Synchronous functions run in a thread of their own.
    """

    def make(function: Callable[..., Any]) -> Tool:
        called = name or getattr(function, "__name__", repr(function))
        if replay not in ("safe", "unsafe"):
            raise UsageError(f"tool {called!r}: replay={replay!r}: use 'safe' or 'unsafe'")
        if not timeout > 0:
            raise UsageError(f"tool {called!r}: timeout must be positive, not {timeout}")
        return Tool(
            name=called,
            function=function,
            replay=replay,
            timeout=timeout,
            sequential=sequential,
            keep=keep,
            runs_commands=runs_commands,
        )

    return make if function is None else make(function)


class Section(msgspec.Struct, frozen=True):
    """A named part of the system prompt."""

    name: str
    text: str


def section(name: str, text: str) -> Section:
    """A named part of the system prompt."""
    return Section(name, text)


class Block(msgspec.Struct, frozen=True):
    """A hook's answer: the call does not run; the model is told why."""

    reason: str


class Rewrite(msgspec.Struct, frozen=True):
    """A hook's answer: the call runs with these arguments."""

    arguments: dict[str, Any]


class CallToJudge(msgspec.Struct, frozen=True, kw_only=True):
    """What a before_tool hook sees: a call that passed the gate's own checks, before its intent is committed."""

    conversation: int
    name: str
    arguments: dict[str, Any]


BeforeTool = Callable[[CallToJudge], Awaitable[Block | Rewrite | None]]


class Extension(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A named bundle of tools, tasks, prompt sections and hooks."""

    name: str
    tools: Sequence[Tool] = ()
    tasks: Sequence[TaskDefinition | type[TaskDefinition]] = ()
    sections: Sequence[Section] = ()
    before_tool: Sequence[BeforeTool] = ()


class Registry:
    """What is installed, published as one immutable state: build a new one to change it."""

    def __init__(self, extensions: Sequence[Extension] = ()) -> None:
        self.extensions = tuple(_extension(each) for each in extensions)
        self.tools: Mapping[str, Tool] = _unique(
            "tool", [(_callable_name(tool), tool) for extension in extensions for tool in extension.tools]
        )
        self.tasks: Mapping[str, TaskDefinition] = _unique(
            "task", [(task.kind, _instance(task)) for extension in extensions for task in extension.tasks]
        )
        self.sections = tuple(section for extension in extensions for section in extension.sections)
        self.before_tool = tuple(hook for extension in extensions for hook in extension.before_tool)

    def definitions(self, built_in: Sequence[TaskDefinition]) -> Definitions:
        """Its tasks and the built-in ones, by kind."""
        return Definitions({**self.tasks, **{task.kind: task for task in built_in}})

    def tool(self, name: str) -> Tool:
        """Raises NotFound naming what there is."""
        found = self.tools.get(name)
        if found is None:
            raise NotFound(f"no tool named {name!r}; installed: {', '.join(sorted(self.tools)) or 'none'}")
        return found


def _extension(value: Any) -> Extension:
    if isinstance(value, Extension):
        return value
    name = value.name if isinstance(value, Tool) else getattr(value, "__name__", None)
    if name is None:
        raise UsageError(f"{value!r} is no extension: a registry takes a list of perdure.Extension")
    brought = name if isinstance(value, Tool) else f"perdure.tool({name})"
    raise UsageError(
        f"{name!r} is no extension: put it into one, Registry([Extension(name={name!r}, tools=[{brought}])])"
    )


def _callable_name(tool: Any) -> str:
    if not isinstance(tool, Tool):
        name = getattr(tool, "__name__", repr(tool))
        raise UsageError(f"{name} is no tool: put @perdure.tool above it, or tools=[perdure.tool({name})]")
    if not TOOL_NAME.fullmatch(tool.name):
        raise UsageError(
            f"tool {tool.name!r}: no model can call a name that is not 1 to 64 of A-Za-z0-9_-: give it one with name="
        )
    return tool.name


def _instance(task: TaskDefinition | type[TaskDefinition]) -> TaskDefinition:
    return task() if isinstance(task, type) else task


def _unique(what: str, items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, item in items:
        if name in found:
            raise UsageError(f"two extensions bring a {what} named {name!r}: rename one")
        found[name] = item
    return found
