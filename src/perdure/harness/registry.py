"""What is installed: tools, tasks and sections, in named bundles (H37)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import msgspec

from perdure.errors import NotFound, UsageError
from perdure.harness.context import TOOL_NAME
from perdure.harness.hooks import (
    HOOK_SECONDS,
    AfterResponse,
    AfterTool,
    AfterTools,
    BeforeCompact,
    BeforeRequest,
    BeforeTool,
    OnYield,
    PromptScope,
    Setup,
    Wrapper,
)
from perdure.tasks.definition import Definitions, TaskDefinition

Replay = Literal["safe", "unsafe"]
Keep = Literal["head", "tail", "both"]

#: The section that a conversation's instructions are; it comes first.
INSTRUCTIONS = "instructions"

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


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool may return instead of a plain value, where its result asks for more (H23).

    `value` is the result. `add_tools` offers more of the installed tools in this conversation from the next round on.
    `terminate` ends the run with its present answer, once every result of the round asks for it.
    `handoff` resets the conversation at the end of the round: it goes on with this text and nothing older.
    None of it changes how the call is repeated; a failed call asks for nothing.
    """

    value: Any = None
    add_tools: tuple[str, ...] = ()
    terminate: bool = False
    handoff: str | None = None


class Section(msgspec.Struct, frozen=True):
    """A named part of the system prompt: a text, or a function that makes one for each request.

    The function must be pure and quick, and is not awaited: it runs where the request is pinned. Where it says
    something else than before, only that is sent, as a note (H16). An empty text leaves the section out.
    """

    name: str
    text: str | Callable[[PromptScope], str]


def section(name: str, text: str | Callable[[PromptScope], str]) -> Section:
    """A named part of the system prompt."""
    return Section(name, text)


class Extension(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A named bundle of tools, tasks, prompt sections, hooks, wrappers and conversation setup (H24, H37).

    Everything of it applies in the order of the registry's extensions, and in the order of each list.
    Conversations use the extensions that their setting `extensions` names, or where it names none, those that are
    `default`. Tasks are installed for all. One hook may take `hook_seconds`.
    """

    name: str
    tools: Sequence[Tool] = ()
    tasks: Sequence[TaskDefinition | type[TaskDefinition]] = ()
    sections: Sequence[Section] = ()
    before_request: Sequence[BeforeRequest] = ()
    after_response: Sequence[AfterResponse] = ()
    on_yield: Sequence[OnYield] = ()
    before_tool: Sequence[BeforeTool] = ()
    after_tool: Sequence[AfterTool] = ()
    after_tools: Sequence[AfterTools] = ()
    before_compact: Sequence[BeforeCompact] = ()
    wrappers: Sequence[Wrapper] = ()  #: the first is the outermost
    setup: Sequence[Setup] = ()
    default: bool = True
    hook_seconds: float = HOOK_SECONDS


#: The fields of an extension that hold functions.
FUNCTIONS = (
    *("before_request", "after_response", "on_yield", "before_tool", "after_tool", "after_tools", "before_compact"),
    *("wrappers", "setup"),
)


class Registry:
    """What is installed, published as one immutable state: build a new one to change it."""

    def __init__(self, extensions: Sequence[Extension] = ()) -> None:
        self.extensions = tuple(_extension(each) for each in extensions)
        _unique("extension", [(each.name, each) for each in self.extensions])
        self.tools: Mapping[str, Tool] = _unique(
            "tool", [(_callable_name(tool), tool) for extension in self.extensions for tool in extension.tools]
        )
        self.tasks: Mapping[str, TaskDefinition] = _unique(
            "task", [(task.kind, _instance(task)) for extension in self.extensions for task in extension.tasks]
        )
        self.sections: Mapping[str, Section] = _unique(
            "section", [(_section_name(part), part) for extension in self.extensions for part in extension.sections]
        )

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
    """The extension as it is now: whoever made it may go on changing its lists."""
    if isinstance(value, Extension):
        _check(value)
        lists = {name: tuple(getattr(value, name)) for name in ("tools", "tasks", "sections", *FUNCTIONS)}
        return msgspec.structs.replace(value, **lists)
    name = value.name if isinstance(value, Tool) else getattr(value, "__name__", None)
    if name is None:
        raise UsageError(f"{value!r} is no extension: a registry takes a list of perdure.Extension")
    brought = name if isinstance(value, Tool) else f"perdure.tool({name})"
    raise UsageError(
        f"{name!r} is no extension: put it into one, Registry([Extension(name={name!r}, tools=[{brought}])])"
    )


def _check(extension: Extension) -> None:
    if not isinstance(extension.name, str) or not extension.name:  # type: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"an extension has a name that is not empty, not {extension.name!r}")
    if not extension.hook_seconds > 0:
        raise UsageError(f"extension {extension.name!r}: hook_seconds must be positive, not {extension.hook_seconds}")
    for field in FUNCTIONS:
        listed = getattr(extension, field)
        if callable(listed) or isinstance(listed, str):
            raise UsageError(f"extension {extension.name!r}: {field} is a list of functions: write {field}=[…]")
        for function in listed:
            if not callable(function):
                raise UsageError(f"extension {extension.name!r}: {field} holds {function!r}, which is no function")


def _section_name(part: Any) -> str:
    if not isinstance(part, Section):
        raise UsageError(f"{part!r} is no section: make one with perdure.section(name, text)")
    if not part.name or part.name == INSTRUCTIONS:
        raise UsageError(f"a section cannot be named {part.name!r}: give it another name")
    return part.name


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
