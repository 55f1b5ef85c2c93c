"""The tool task (H18 to H21): its gate, its one execution, and what becomes of it when it is interrupted or stopped."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidArguments, InvalidValue, SandboxError
from perdure.harness.call import Call
from perdure.harness.output import clip
from perdure.harness.registry import Block, CallToJudge, Rewrite, Tool
from perdure.harness.stored import LIVE, TOOL, TOOL_RESULT, USAGE
from perdure.harness.threads import in_thread
from perdure.harness.usage import add_call
from perdure.messages import ToolErrorCode, ToolMessage
from perdure.records import Begun, Completed, Running
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import InvocationTransaction
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended, as the model is told."""

    text: str
    error: ToolErrorCode | None = None


class ToolTask(TaskDefinition, reserved=True):
    """One call. `gate` may always run again; `execute` runs only after its intent was committed."""

    kind = TOOL

    def __init__(self, harness: Harness | None = None) -> None:
        self._harness = harness

    @property
    def harness(self) -> Harness:
        assert self._harness is not None
        return self._harness

    @phase(first=True)
    async def gate(self, invocation: Invocation, arguments: dict[str, Any], **rest: Any) -> None:
        """Let the hooks judge; then commit the intent: final arguments, replay policy, isolation."""
        name = invocation.input["name"]
        tool = self.harness.registry.tools.get(name)
        blocked: str | None = None
        for hook in self.harness.registry.before_tool:
            seen = CallToJudge(conversation=invocation.conversation, name=name, arguments=arguments)
            try:
                verdict = await hook(seen)
            except Exception as error:  # a hook that fails must not let the call through (H24)
                verdict = Block(f"the check of this call failed: {type(error).__name__}: {error}")
            if isinstance(verdict, Block):
                blocked = verdict.reason
                break
            if isinstance(verdict, Rewrite):
                arguments = verdict.arguments
        if blocked is not None or tool is None:
            text = blocked if blocked is not None else f"{name} is not installed any more"
            result = Result(text=text, error="blocked" if blocked is not None else "tool_unavailable")
            return await self._finish(invocation, result, None)
        async with invocation.commit() as tx:
            tx.next(self.execute, intent=tool.replay, **{**rest, "arguments": arguments, "replay": tool.replay})

    @phase
    async def execute(self, invocation: Invocation, arguments: dict[str, Any], **intent: Any) -> None:
        """Run the function, at most once unless it is safe to repeat both by its intent and now (H19)."""
        tool = self.harness.registry.tools.get(invocation.input["name"])
        if _interrupted(invocation, tool):
            return await self._finish(invocation, await self._interruption(invocation), None)
        if tool is None:
            text = f"{invocation.input['name']} is not installed any more; it was not run"
            return await self._finish(invocation, Result(text=text, error="tool_unavailable"), None)
        if invocation.begun is None:
            await invocation.begin(tool.replay)
        call = Call(self.harness, invocation, tool)
        self.harness.telemetry.emit("perdure.tool.begun", metadata={"task": invocation.id, "tool": tool.name})
        result = await self._run(call, tool, arguments, invocation)
        self.harness.telemetry.emit("perdure.tool.returned", metadata={"task": invocation.id, "tool": tool.name})
        if invocation.stopping:
            await call.cleanup()
            invocation.late = Completed(result={"text": result.text, "error": result.error})
            return
        await self._finish(invocation, result, call)

    async def _run(self, call: Call, tool: Tool, arguments: dict[str, Any], invocation: Invocation) -> Result:
        """Whatever the function does becomes a result; only being told to stop passes through."""
        try:
            validated = self.harness.described(tool.name).validate(arguments)
            async with self.harness.watch.limit(call.timeout) as limit:
                call.bound(limit)
                value = await _call(tool, call, validated)
            return Result(text=call.final(value))
        except asyncio.CancelledError:
            await call.cleanup()
            if invocation.stopping or invocation.revoked:
                raise
            return Result(text=call.with_output("The tool was cancelled from within."), error="tool_error")
        except TimeoutError as error:
            await call.cleanup()
            shown = str(error.args[0]) if error.args and call.limit_passed is False else ""
            return Result(text=call.timed_out(shown), error="timeout")
        except InvalidArguments as error:
            return Result(text=f"{tool.name} was not run. {error}", error="invalid_arguments")
        except (SandboxError, InvalidValue) as error:
            await call.cleanup()
            return Result(text=call.with_output(clean_text(str(error))), error="tool_error")
        except Exception as error:
            await call.cleanup()
            message = clip(clean_text(_message_of(error)), 4000)
            return Result(text=call.with_output(f"{type(error).__name__}: {message}"), error="tool_error")

    async def _interruption(self, invocation: Invocation) -> Result:
        output = ""
        live = await self.harness.live(invocation)
        if live is not None:
            output = live["tools"].get(str(invocation.id), {}).get("output", "")
        text = (
            f"{invocation.input['name']} was interrupted: the process ended while it ran. Its outcome is unknown: "
            "it may have happened. Check before you repeat it."
        )
        if output:
            text = f"{text}\nOutput until then:\n{output}"
        return Result(text=text, error="interrupted")

    async def _finish(self, invocation: Invocation, result: Result, call: Call | None) -> None:
        """The one outcome commit: the result entry, usage, and with the last call of the round the resumed generation (H18)."""
        details = None if call is None else call.data

        async def body(tx: InvocationTransaction) -> None:
            await _write_result(tx, result, details)
            tx.complete({"error": result.error})

        if call is not None:
            call.over()
        await invocation.record(body)

    async def abort(self, invocation: Invocation) -> None:
        """Write the result of a stopped call: whether it had begun, what it had shown, and what it still gave in the grace (K31)."""

        async def body(tx: InvocationTransaction) -> None:
            state = tx.own.state
            begun = isinstance(state, Running) and state.begun is not None
            text = "Aborted. " + ("It had begun: its effect may have happened." if begun else "It had not begun.")
            late = invocation.late
            if isinstance(late, Completed) and late.result:
                text += f" It still returned:\n{late.result['text']}"
            elif tx.own.owner is not None:
                live = await tx.snapshot(LIVE, tx.own.owner)
                output = (live or {}).get("tools", {}).get(str(invocation.id), {}).get("output", "")
                text += f"\nOutput until then:\n{output}" if output else ""
            await _write_result(tx, Result(text=text, error="aborted"), None)
            tx.aborted()

        await invocation.record(body)


async def _write_result(tx: InvocationTransaction, result: Result, details: dict[str, Any] | None) -> None:
    own = tx.own
    name = own.input["name"]
    message = ToolMessage(call=own.input["call"], name=name, text=result.text, error=result.error)
    data = {"call": own.input["call"], **(details or {})}
    tx.append(own.conversation, TOOL_RESULT, messages=(message,), data=data, task=own.id)
    add_call(await tx.doc(USAGE, own.conversation), name, error=result.error is not None)
    if own.owner is not None and tx.task(own.owner) is not None:
        tools = (await tx.doc(LIVE, own.owner))["tools"]
        if str(own.id) in tools:
            del tools[str(own.id)]


def _interrupted(invocation: Invocation, tool: Tool | None) -> bool:
    """An earlier attempt began, and repeating is not safe by the intent and by the tool as it is now."""
    begun: Begun | None = invocation.begun
    if begun is None or begun.attempt == invocation.attempt:
        return False
    return begun.replay != "safe" or tool is None or tool.replay != "safe"


async def _call(tool: Tool, call: Call, arguments: dict[str, Any]) -> Any:
    function: Callable[..., Any] = tool.function
    args = (call,) if tool.takes_call else ()
    if inspect.iscoroutinefunction(function):
        return await function(*args, **arguments)
    value = await in_thread(function, *args, **arguments)
    return await value if isinstance(value, Awaitable) else value


def _message_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception as second:  # an exception whose text cannot be made is still only a failed tool
        return f"(its message could not be made: {type(second).__name__})"


