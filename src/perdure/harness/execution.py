"""The one execution of a call: its function inside the wrappers of the extensions in use."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from perdure.errors import UsageError
from perdure.harness.call import Call
from perdure.harness.installed import ReadyTool
from perdure.harness.loadout import Hook
from perdure.harness.threads import in_thread
from perdure.session.line import Line

Run = Callable[[], Awaitable[Any]]


async def execute(
    line: Line, ready: ReadyTool, call: Call, arguments: dict[str, Any], wrappers: Sequence[Hook] = ()
) -> Any:
    """What the function gives, as the wrappers pass it on. Raises what any of them raises."""
    while (
        line.space.short
    ):  # it may have got full since the call was taken: no effect starts that nobody can record (K5)
        await line.space.wait_to_start()
    line.check_fault()

    async def run() -> Any:
        return await _function(ready, call, arguments)

    if not wrappers:
        return await run()
    call.stoppable()  # a wrapper can be cancelled; a thread inside it cannot
    inner: Run = _once(ready, call, run)
    for wrapper in reversed(wrappers):
        inner = _around(wrapper, call, inner)
    return await inner()


def _around(wrapper: Hook, call: Call, inner: Run) -> Run:
    async def run() -> Any:
        value = wrapper.function(call, inner)
        return await value if inspect.isawaitable(value) else value

    return run


def _once(ready: ReadyTool, call: Call, run: Run) -> Run:
    """An unsafe effect starts at most once, whatever a wrapper does (O-2)."""
    times = 0

    async def guarded() -> Any:
        nonlocal times
        times += 1
        if times > 1 and ready.tool.replay != "safe":
            raise UsageError(
                f"a wrapper ran {ready.tool.name} twice: it is not safe to repeat, so it did not run again"
            )
        return await run()

    return guarded


async def _function(ready: ReadyTool, call: Call, arguments: dict[str, Any]) -> Any:
    function: Callable[..., Any] = ready.tool.function
    args = (call,) if ready.takes_call else ()
    if ready.is_async:
        return await function(*args, **arguments)
    call.stoppable(False)
    value = await in_thread(function, *args, **arguments)
    call.stoppable()
    if inspect.isawaitable(value):  # a function that only wraps a coroutine function
        value = await value
    return value
