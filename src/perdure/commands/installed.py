"""What `--model`, `--tools` and `--allow` bring: loaded and checked before any work starts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from perdure.app.adapters import adapter
from perdure.commands.permitted import guard
from perdure.commands.remembered import option_of
from perdure.commands.settings import GUARDED, Rules
from perdure.errors import UsageError
from perdure.harness.registry import Extension, Registry, Tool, tool
from perdure.tools.builtins import BUILTINS


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What is offered; `needs` maps each tool but `read` to the option that brought it."""

    registry: Registry
    needs: dict[str, str]


def install(
    tools: Sequence[str],
    allow: Sequence[str],
    ask: Sequence[str] = (),
    rules: Rules | None = None,
    *,
    guarded: bool = False,
) -> Installed:
    """Everything that is offered: `read`, what is allowed or asked about, and what `tools` names. Raises UsageError.

    `rules` are the configured permissions. Where it is `guarded`, calls are judged without any, too.
    """
    own = [each for each in BUILTINS if _offered(each.name, (*allow, *ask))]
    brought = {spec: _brought(spec) for spec in tools}
    bundles = [Extension(name="perdure", tools=own), *(each for found in brought.values() for each in found)]
    _check_asked(ask, bundles)
    judge = guard(allow, ask, rules, always=guarded)  # last, so that it sees what other hooks made of a call
    return Installed(
        registry=Registry([*bundles, *([] if judge is None else [judge])]),
        needs={
            **{each.name: option_of(each.name, "", ask=each.name not in allow) for each in own if each.name in GUARDED},
            **{
                each.name: f"--tools {spec}{f' --ask {each.name}' if each.name in ask else ''}"
                for spec, found in brought.items()
                for extension in found
                for each in extension.tools
            },
        },
    )


def _check_asked(ask: Sequence[str], bundles: Sequence[Extension]) -> None:
    offered = [tool.name for each in bundles for tool in each.tools]
    for name in ask:
        if name not in offered:
            raise UsageError(f"--ask {name}: there is no tool {name!r} to ask about; offered: {', '.join(offered)}")


def _offered(name: str, allow: Sequence[str]) -> bool:
    """Of the built-in tools: those for jobs are of use only where commands may be run."""
    needed = "bash" if name in ("jobs", "job_kill") else name
    return needed not in GUARDED or needed in allow


def _brought(spec: str) -> list[Extension]:
    module, _, path = spec.partition(":")
    if not module or not path:
        raise UsageError(f"--tools {spec!r}: write MODULE:NAME, such as shop.tools:pay")
    value: Any = _module(spec, module)
    for name in path.split("."):
        if not hasattr(value, name):
            raise UsageError(f"--tools {spec!r}: there is no {name!r} in {module}{_offers(value)}")
        value = getattr(value, name)
    found = _bundled(spec, _parts(spec, value))
    describe = adapter("schema")().describe
    for each in (each for extension in found for each in extension.tools):
        try:
            describe(each.function, skip=("call",) if each.takes_call else ())
        except UsageError as error:
            raise UsageError(f"--tools {spec!r}: {error}") from error
    return found


def _module(spec: str, name: str) -> Any:
    """Import a module, from the working directory too. Whatever it prints goes to standard error."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return _import(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = (
                " (a module, not a file: shop.tools, not shop/tools.py)" if name.endswith(".py") or "/" in name else ""
            )
            raise UsageError(
                f"--tools {spec!r}: no module {error.name!r} in {os.getcwd()} or installed{hint}"
            ) from error
        raise UsageError(f"--tools {spec!r}: {name} needs the module {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:
        if str(error).startswith(("perdure.run() inside", "asyncio.run() cannot be called")):
            raise UsageError(
                f"--tools {spec!r}: {name} starts work of its own when it is imported: "
                'put that under if __name__ == "__main__":'
            ) from error
        raise UsageError(f"--tools {spec!r}: importing {name} failed: {type(error).__name__}: {error}") from error


def _import(name: str) -> Any:
    """On a running loop, where a module that runs an agent at its import is refused instead of waited for."""

    async def load() -> Any:
        return importlib.import_module(name)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(load())
    return importlib.import_module(name)


def _bundled(spec: str, parts: Sequence[Extension | Tool]) -> list[Extension]:
    """The extensions, and one more for the tools that are in none of them."""
    bare = [each for each in parts if isinstance(each, Tool)]
    own = [Extension(name=spec, tools=bare)] if bare else []
    return [*own, *(each for each in parts if isinstance(each, Extension))]


def _parts(spec: str, value: Any) -> list[Extension | Tool]:
    if isinstance(value, Registry):
        return list(value.extensions)
    if isinstance(value, Extension | Tool):
        return [value]
    if isinstance(value, list | tuple):
        return [each for item in cast("list[Any]", value) for each in _parts(spec, item)]
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        return [tool(cast("Callable[..., Any]", value))]
    raise UsageError(
        f"--tools {spec!r} is a {type(value).__name__}: "
        "it must be a function, a tool, a list of them, an Extension or a Registry"
    )


def _offers(value: Any) -> str:
    """What a module has that could be meant."""
    names = (
        [
            name
            for name, each in vars(value).items()
            if not name.startswith("_")
            and (
                isinstance(each, Tool | Extension | Registry)
                or (inspect.isfunction(each) and each.__module__ == value.__name__)
            )
        ]
        if inspect.ismodule(value)
        else []
    )
    return f"; it has {', '.join(names[:20])}" if names else ""
