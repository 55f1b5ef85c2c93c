"""The tool task (H18 to H21): its gate, its one execution, and what becomes of it when it is interrupted or stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec

from perdure.errors import InvalidValue, PerdureError, Revoked, SandboxError
from perdure.harness.approval import SUPERSEDED, Asking, Gate, ask, decided, judge_by_hooks, refusal
from perdure.harness.call import Call
from perdure.harness.consult import after_tool
from perdure.harness.controls import Asked, stage_asked, wants_of
from perdure.harness.execution import execute
from perdure.harness.gate import MOST_TOLD, message_of, told
from perdure.harness.handover import WaitFor, collected, saved_as
from perdure.harness.hooks import Block, CallReturned
from perdure.harness.installed import Installed
from perdure.harness.loadout import Loadout, uses_of
from perdure.harness.output import bounded, clip
from perdure.harness.registry import Registry, Tool, ToolResult
from perdure.harness.runs import stop_conversation
from perdure.harness.stored import LIVE, TOOL, TOOL_RESULT
from perdure.harness.supervision import CancelledWithin, Supervised, TimeUp
from perdure.harness.usage import count_call
from perdure.messages import ToolErrorCode, ToolMessage
from perdure.records import Begun, Completed, Running, SubmissionId, TaskId
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import InvocationTransaction
from perdure.values import clean, clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


#: Begins the memo of the isolation under which an attempt ran, where that is not the one that its intent recorded.
ISOLATION = "perdure.isolation."


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended, as the model is told."""

    text: str
    error: ToolErrorCode | None = None
    wants: Asked | None = None  #: besides being told to the model (H23)


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
        await self._pass(invocation, Gate(arguments=arguments), rest)

    @phase
    async def decided(
        self, invocation: Invocation, question: TaskId, hook: str, at: dict[str, Any], rest: dict[str, Any]
    ) -> None:
        """The question of a hook has ended: go on from there."""
        [outcome] = await invocation.outcomes([question])
        found = decided(outcome, hook, msgspec.convert(at, Gate))
        if isinstance(found, Block):
            await self._blocked(invocation, found)
        else:
            await self._pass(invocation, found, rest)

    async def _pass(self, invocation: Invocation, at: Gate, rest: dict[str, Any]) -> None:
        """The gate, from this point on."""
        installed, name = self.harness.installed, invocation.input["name"]
        tool = installed.tools.get(name)
        if tool is None:
            await self._finish(invocation, _gone(name), None)
            return
        found = await judge_by_hooks(
            self.harness, invocation, installed.loadout(uses_of(rest)).hooks("before_tool"), at
        )
        match found:
            case Block():
                await self._blocked(invocation, found)
            case Asking():
                async with invocation.commit() as tx:
                    asked = await ask(tx, found, self.decided, rest)
                if not asked:
                    await self._blocked(invocation, refusal(SUPERSEDED, None))
            case Gate(arguments=arguments):
                async with invocation.commit() as tx:
                    tx.next(self.execute, intent=tool.replay, **{**rest, "arguments": arguments, "replay": tool.replay})

    async def _blocked(self, invocation: Invocation, block: Block) -> None:
        await self._finish(invocation, Result(text=clip(block.reason, MOST_TOLD), error="blocked"), None)

    @phase
    async def execute(self, invocation: Invocation, arguments: dict[str, Any], **intent: Any) -> None:
        """Run the function, at most once unless it is safe to repeat both by its intent and now (H19)."""
        harness, name = self.harness, invocation.input["name"]
        installed = harness.installed
        tool = installed.tools.get(name)
        if _interrupted(invocation, tool):
            await self._finish(invocation, await self._interruption(invocation, intent), None)
            return
        if tool is None:
            await self._finish(invocation, _gone(name), None)
            return
        await self._note_isolation(invocation, tool, intent)
        if invocation.begun is None:
            await invocation.begin(tool.replay)
        uses = uses_of(intent)
        call, loadout = Call(harness, invocation, tool, uses.directory), installed.loadout(uses)
        try:
            result = await self._run(call, installed, arguments, invocation, loadout)
        finally:
            call.over()
        if isinstance(result, WaitFor):
            await self._hand_over(invocation, result, call, intent)
            return
        if invocation.stopping:
            invocation.late = _late(result, call)
            return
        result = await self._replaced(invocation, loadout, call, result)
        await self._finish(invocation, result, call)

    async def _hand_over(self, invocation: Invocation, work: WaitFor, call: Call, intent: dict[str, Any]) -> None:
        """The call waits for durable work, which is not repeated: from here on it is no code that runs (K28)."""
        shown = call.shown()

        async def body(tx: InvocationTransaction) -> None:
            live = None if tx.own.owner is None else await tx.doc(LIVE, tx.own.owner)
            slot = None if live is None else live["tools"].get(str(invocation.id))
            if slot is not None:
                slot["output"], slot["details"] = shown, call.data.get("details")
            saved = saved_as(work, call.arguments, call.data, intent)
            await tx.wait(work.ids, then=self.collect, deadline=work.deadline, **saved)

        try:
            await invocation.record(body)
        except Revoked:
            invocation.late = _late(None, call)
            raise
        except PerdureError as error:
            await self._finish(invocation, _failure(error, call), call)

    @phase(stages=True)
    async def collect(
        self,
        tx: InvocationTransaction,
        tasks: list[int],
        submission: int | None,
        data: dict[str, Any],
        arguments: dict[str, Any],
        **uses: Any,
    ) -> None:
        """What the call waited for has ended: its result, in the same commit, unless a hook has a say in it."""
        installed = self.harness.installed
        tool = installed.tools.get(tx.own.input["name"])
        text, error = await collected(tx, tasks, None if submission is None else SubmissionId(submission))
        text = bounded(text, "head" if tool is None else tool.keep)
        if installed.loadout(uses_of(uses)).hooks("after_tool"):
            tx.next(self.consult, text=text, error=error, data=data, arguments=arguments, **uses)
            return
        await _write_result(tx, Result(text=text, error=error), data)
        tx.complete({"error": error})

    @phase
    async def consult(
        self,
        invocation: Invocation,
        text: str,
        error: ToolErrorCode | None,
        data: dict[str, Any],
        arguments: dict[str, Any],
        **uses: Any,
    ) -> None:
        """The after_tool hooks judge the result of a call that waited (H40)."""
        loadout, result = self.harness.installed.loadout(uses_of(uses)), Result(text=text, error=error)
        await self._finish(invocation, await self._judged(invocation, loadout, arguments, data, result), None, data)

    async def _replaced(self, invocation: Invocation, loadout: Loadout, call: Call, result: Result) -> Result:
        """What after_tool hooks make of the result of a call that ran (H40). An error asks for nothing more."""
        if not loadout.hooks("after_tool"):
            return result
        invocation.late = _late(result, call)  # where it is told to stop meanwhile
        return await self._judged(invocation, loadout, call.arguments, call.data, result)

    async def _judged(
        self,
        invocation: Invocation,
        loadout: Loadout,
        arguments: dict[str, Any],
        data: dict[str, Any],
        result: Result,
    ) -> Result:
        seen = CallReturned(
            conversation=invocation.conversation,
            call=invocation.input["call"],
            name=invocation.input["name"],
            arguments=arguments,
            text=result.text,
            error=result.error,
            details=data.get("details"),
        )
        replaced = await after_tool(self.harness, loadout, seen, invocation.id)
        if replaced is None:
            return result
        tool = self.harness.installed.tools.get(seen.name)
        text = bounded(replaced.text, "head" if tool is None else tool.keep)
        return Result(text=text, error=replaced.error, wants=result.wants if replaced.error is None else None)

    async def _run(
        self, call: Call, installed: Installed, arguments: dict[str, Any], invocation: Invocation, loadout: Loadout
    ) -> Result | WaitFor:
        """Whatever the function does becomes a result; only being told to stop passes through."""
        try:
            ready = installed.ready(call.name)
            own = cast("dict[str, Any]", clean(arguments))  # a copy: a function may change what it is given
            validated = ready.described.validate(own)
        except PerdureError as error:
            return Result(text=clip(f"{call.name} was not run. {error}", MOST_TOLD), error="invalid_arguments")
        except Exception as error:
            told = f"Checking its arguments raised {type(error).__name__}."
            return Result(text=clip(f"{call.name} was not run. {told}", MOST_TOLD), error="invalid_arguments")
        telemetry, about = self.harness.telemetry, {"task": invocation.id, "tool": call.name}
        telemetry.emit("perdure.tool.begun", metadata=about)
        call.arguments = cast("dict[str, Any]", clean(arguments))
        work = execute(self.harness.line, ready, call, validated, loadout.wrappers)
        running = Supervised(self.harness.watch, work, seconds=call.timeout, stoppable=ready.is_async)
        call.bound(running)
        try:
            value = await running.result(on_stop=call.cleanup)
            result = value if isinstance(value, WaitFor) else _given(value, call, installed.registry)
        except asyncio.CancelledError:
            await call.cleanup()
            invocation.late = _late(None, call)
            raise
        except Exception as error:
            await call.cleanup()
            result = _failure(error, call)
            if not running.child.done():  # it ignores its time limit: it goes on without any right
                self.harness.scheduler.leave_behind(running.child, invocation.id)
        telemetry.emit("perdure.tool.returned", metadata=about)
        return result

    async def _note_isolation(self, invocation: Invocation, tool: Tool, intent: dict[str, Any]) -> None:
        """The intent may be another process's, which died before it could begin: then it says nothing of this one."""
        if not tool.runs_commands:
            return
        isolation = await self.harness.isolation([tool])
        if isolation != intent.get("isolation"):
            async with invocation.commit() as tx:
                tx.memo(f"{ISOLATION}{invocation.attempt}", isolation)

    async def _proved(self, invocation: Invocation, intent: dict[str, Any]) -> str:
        """What is known of the commands that an interrupted call ran (R9)."""
        tool, sandbox = self.harness.installed.tools.get(invocation.input["name"]), self.harness.sandbox
        if tool is None or not tool.runs_commands or sandbox is None or invocation.begun is None:
            return ""
        task = self.harness.line.memory.tip.tasks.get(invocation.id)
        memos = {} if task is None else task.memos
        isolation = memos.get(f"{ISOLATION}{invocation.begun.attempt}", intent.get("isolation", ""))
        try:
            return f"{await sandbox.interrupted(isolation)} "
        except SandboxError:
            return ""

    async def _interruption(self, invocation: Invocation, intent: dict[str, Any]) -> Result:
        output = ""
        live = await self.harness.live(invocation)
        if live is not None:
            output = live["tools"].get(str(invocation.id), {}).get("output", "")
        text = (
            f"{invocation.input['name']} was interrupted: the process ended while it ran. Its outcome is unknown: "
            f"it may have happened. {await self._proved(invocation, intent)}Check before you repeat it."
        )
        if output:
            text = f"{text}\nOutput until then:\n{output}"
        return Result(text=text, error="interrupted")

    async def _finish(
        self, invocation: Invocation, result: Result, call: Call | None, data: dict[str, Any] | None = None
    ) -> None:
        """The one outcome commit: result entry, usage, and with the round's last call the resumed generation (H18)."""
        details = data if call is None else call.data

        async def body(tx: InvocationTransaction) -> None:
            await _write_result(tx, result, details)
            if result.wants is not None and tx.own.owner is not None:
                await stage_asked(tx, result.wants, tx.own.owner, self.harness.registry)
            tx.complete({"error": result.error})

        try:
            await invocation.record(body)
        except Revoked:  # told to stop meanwhile: the abort handler tells what it still gave
            invocation.late = _late(result, call)
            raise

    async def abort(self, invocation: Invocation) -> None:
        """Write the result of a stopped call: whether it had begun, what it showed, and what it still gave (K31)."""

        async def body(tx: InvocationTransaction) -> None:
            state = tx.own.state
            begun = isinstance(state, Running) and (state.begun is not None or state.checkpoint.phase == "collect")
            text = "Aborted. " + ("It had begun: its effect may have happened." if begun else "It had not begun.")
            late = invocation.late
            given = cast("dict[str, Any]", late.result) if isinstance(late, Completed) and late.result else {}
            output = given.get("output")
            if "text" in given:
                text += f" It still {'failed' if given.get('error') else 'returned'}:\n{given['text']}"
            elif output is None and tx.own.owner is not None:
                live: dict[str, Any] = await tx.snapshot(LIVE, tx.own.owner) or LIVE.initial()
                output = live["tools"].get(str(invocation.id), {}).get("output", "")
            if output:
                text += f"\nOutput until then:\n{output}"
            await _write_result(tx, Result(text=text, error="aborted"), given.get("data"))
            tx.aborted({"returned": "text" in given})

        await invocation.record(body)


def _given(value: Any, call: Call, registry: Registry) -> Result:
    """A value as the model is told, with what it asks for (H23). Raises InvalidValue."""
    if not isinstance(value, ToolResult):
        return Result(text=call.final(value))
    wants, text = wants_of(value), call.final(value.value)
    unknown = [name for name in wants.add_tools if name not in registry.tools]
    if unknown:
        text = f"{text}\n[Not added, since no such tool is installed: {clip(', '.join(unknown), 200)}]"
    return Result(text=text, wants=wants)


def _late(result: Result | None, call: Call | None) -> Completed:
    """What a call that was told to stop still gave, for its abort handler."""
    given: dict[str, Any] = {"data": call.data if call is not None else {}}
    if result is not None:
        given |= {"text": result.text, "error": result.error}
    elif call is not None:
        given["output"] = call.shown()
    return Completed(result=given)


def _gone(name: str) -> Result:
    return Result(text=f"{name} is not installed any more; it was not run", error="tool_unavailable")


def _failure(error: Exception, call: Call) -> Result:
    """A failed call as the model is told: class and message, never a stack (H43); then what the call had shown."""
    code: ToolErrorCode = "tool_error"
    if isinstance(error, TimeUp):
        code = "timeout"
        text = f"{call.name} ran out of its time limit of {call.timeout:g} s and was stopped. What it did stays done."
    elif isinstance(error, TimeoutError):  # a limit of its own: as little is known; a message of its own tells it all
        text = f"{call.name} ran out of time. What it did stays done."
        said = message_of(error)
        return Result(text=call.bounded(f"{text}\n{said}") if said else _with_output(text, call), error="timeout")
    elif isinstance(error, CancelledWithin):
        text = f"{call.name} was cancelled from within."
    elif isinstance(error, SandboxError | InvalidValue):
        text = clip(clean_text(str(error)), MOST_TOLD)
    else:
        text = told(error)
    return Result(text=_with_output(text, call), error=code)


def _with_output(text: str, call: Call) -> str:
    shown = call.shown()
    return f"{text}\nOutput until then:\n{shown}" if shown else text


async def _write_result(tx: InvocationTransaction, result: Result, details: dict[str, Any] | None) -> None:
    own = tx.own
    for conversation in tx.candidate.owned(own.id):  # nothing runs there once the call has ended
        stop_conversation(tx, conversation, "the call that it belongs to has ended")
    name = own.input["name"]
    message = ToolMessage(call=own.input["call"], name=name, text=result.text, error=result.error)
    data = {"call": own.input["call"], **(details or {})}
    tx.append(own.conversation, TOOL_RESULT, messages=(message,), data=data, task=own.id)
    await count_call(tx, own.conversation, name, error=result.error is not None)
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
