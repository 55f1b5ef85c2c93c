"""The generation task: prepare, request, wait for the tools, until the final answer (H11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import ModelError
from perdure.harness.answer import Answer, stopped
from perdure.harness.context import render
from perdure.harness.gate import Passed, Refused, judge
from perdure.harness.output import clip
from perdure.harness.retry import wait_before_retry
from perdure.harness.runs import place_due, settle_answered, settle_unanswered
from perdure.harness.stored import ASSISTANT, GENERATION, LIVE, TOOL_RESULT, USAGE
from perdure.harness.stream import Stream
from perdure.harness.usage import add_call, add_request
from perdure.messages import StopReason, ToolCall, ToolMessage, call_key, calls_of
from perdure.model import Model, Request
from perdure.records import EntryId, ErrorInfo, Task, UnansweredReason
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import InvocationTransaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness

#: A run ends after so many rounds in which no call passed the gate: repairing goes on for a bounded time only.
REFUSED_ROUNDS = 5


class GenerationTask(TaskDefinition, reserved=True):
    """One run of a conversation. What it waits for, it waits for as a task: tools, retry timers."""

    kind = GENERATION

    def __init__(self, harness: Harness | None = None) -> None:
        self._harness = harness

    @property
    def harness(self) -> Harness:
        assert self._harness is not None
        return self._harness

    @phase(first=True)
    async def prepare(self, invocation: Invocation, round: int = 0, refused: int = 0) -> None:
        """Place what the boundary places, and pin the request: a recovered request is the same request."""
        harness, run, conversation = self.harness, invocation.id, invocation.conversation
        async with invocation.commit() as tx:
            if round > 0:
                await place_due(harness, tx, conversation, "round", run)
            settings = await harness.settings(tx, conversation)
            if round >= settings.max_rounds:
                return self._end(tx, "limit", f"the run reached its limit of {settings.max_rounds} rounds")
            if refused >= REFUSED_ROUNDS:
                return self._end(tx, "limit", f"no tool call could be run in {refused} rounds in a row")
            live = await tx.doc(LIVE, run)
            _show(live, round=round, attempt=1)
            own = [entry.id for entry in tx.entries if entry.conversation == conversation]
            entries = (await tx.transcript(conversation)).entries
            cutoff = own[-1] if own else max(entries[0].id, entries[-1].id) if entries else 0
            tx.next(
                self.request,
                model=settings.model,
                tools=settings.tools,
                cutoff=cutoff,
                round=round,
                refused=refused,
                attempt=1,
                began=tx.now,
            )

    @phase
    async def request(self, invocation: Invocation, **pin: Any) -> None:
        """Ask the model; commit its answer with everything that follows from it."""
        harness = self.harness
        if invocation.attempt > 1:
            await self._recover(invocation, pin)
        model = harness.model(pin["model"])
        if model is None:
            name = pin["model"]
            detail = "no model is configured" if name is None else f"no model named {name!r} is available"
            return await invocation.record(lambda tx: self._ended(tx, "no_model", detail))
        request = await self._build(invocation, model, pin)
        stream = Stream(harness, invocation, model)
        try:
            answer = await stream.run(request)
            answer.message()
        except ModelError as error:
            chance = harness.clock.random()
            await invocation.record(lambda tx: self._failed(tx, error, stream.text, pin, chance))
        else:
            await invocation.record(lambda tx: self._answered(tx, answer, pin))

    async def _build(self, invocation: Invocation, model: Model, pin: dict[str, Any]) -> Request:
        harness = self.harness
        entries = await harness.transcript(invocation.conversation, EntryId(pin["cutoff"]))
        offered = harness.offered(pin["tools"])
        return Request(
            model=model.name,
            messages=render(entries, model=model.name),
            system=harness.system(),
            tools=tuple(harness.spec(name) for name in offered),
            options={"attempt": pin["attempt"]},
        )

    # -- what a request can end with: bodies of commits, which may run again ------------------

    async def _answered(self, tx: InvocationTransaction, answer: Answer, pin: dict[str, Any]) -> None:
        run, round = self._run_of(tx), pin["round"]
        message = answer.message()
        entry = tx.append(run.conversation, ASSISTANT, messages=(message,), data={"run": run.id, "round": round}, task=run.id)
        add_request(await tx.doc(USAGE, run.conversation), pin["model"], answer.usage)
        live = await tx.doc(LIVE, run.id)
        _show(live, round=round, attempt=pin["attempt"])
        calls = calls_of(message)
        if not calls:
            settle_answered(tx, run.id, entry.id)
            await place_due(self.harness, tx, run.conversation, "final", None)
            return tx.complete({"answer": entry.id})
        tasks = await self._start_calls(tx, run, entry.id, calls, cut=message.stop == "length", pin=pin, live=live)
        refused = 0 if tasks else pin["refused"] + 1
        await tx.wait(tasks, then=self.prepare, round=round + 1, refused=refused)

    async def _start_calls(
        self,
        tx: InvocationTransaction,
        run: Task,
        entry: EntryId,
        calls: list[ToolCall],
        *,
        cut: bool,
        pin: dict[str, Any],
        live: Any,
    ) -> list[Task]:
        """Gate each call: the intents of those that pass, at once, and bounded error results for the others (H14, H18)."""
        harness = self.harness
        described = {name: harness.described(name) for name in harness.offered(pin["tools"])}
        tasks: list[Task] = []
        previous: Task | None = None
        for index, call in enumerate(calls):
            key = call_key(entry, index)
            verdict = judge(call, described, cut=cut and index == len(calls) - 1)
            if isinstance(verdict, Refused):
                result = ToolMessage(call=key, name=call.name, text=verdict.text, error=verdict.code)
                tx.append(run.conversation, TOOL_RESULT, messages=(result,), data={"call": key}, task=run.id)
                add_call(await tx.doc(USAGE, run.conversation), clip(call.name, 100), error=True)
                continue
            task = self._start_call(tx, key, call.name, verdict, previous)
            if harness.registry.tools[call.name].sequential:
                previous = task
            live["tools"][str(task.id)] = {"name": call.name, "call": key, "output": ""}
            tasks.append(task)
        return tasks

    def _start_call(
        self, tx: InvocationTransaction, key: str, name: str, verdict: Passed, previous: Task | None
    ) -> Task:
        """Without hooks the intent is committed here; with hooks the call starts at its gate. A sequential one waits for its elder."""
        harness = self.harness
        tool = harness.registry.tools[name]
        after = previous if tool.sequential else None
        data = {"arguments": verdict.arguments, "replay": tool.replay, "isolation": harness.sandbox_id}
        input = {"call": key, "name": name}
        if harness.registry.before_tool:
            return tx.create_task(harness.tool_task, input, owner=tx.invocation, phase="gate", data=data, after=after)
        return tx.create_task(
            harness.tool_task, input, owner=tx.invocation, phase="execute", data=data, intent=tool.replay, after=after
        )

    async def _failed(
        self, tx: InvocationTransaction, error: ModelError, text: str, pin: dict[str, Any], chance: float
    ) -> None:
        run = self._run_of(tx)
        add_request(await tx.doc(USAGE, run.conversation), pin["model"], None)
        await self._keep_partial(tx, run, text, pin, "error")
        live = await tx.doc(LIVE, run.id)
        attempt = pin["attempt"]
        wait = wait_before_retry(
            error, self.harness.defaults.retry, attempt=attempt, elapsed=tx.now - pin["began"], chance=chance
        )
        message = clip(str(error), 2000)
        if wait is None:
            reason: UnansweredReason = "overflow" if error.kind == "overflow" else "model_error"
            return self._end(tx, reason, f"{error.kind}: {message}")
        _show(live, round=pin["round"], attempt=attempt + 1)
        live["retry"] = {"kind": error.kind, "message": message, "at": tx.now + wait}
        timer = tx.timer(tx.now + wait, owner=tx.invocation)
        await tx.wait([timer], then=self.request, **{**pin, "attempt": attempt + 1})

    async def _recover(self, invocation: Invocation, pin: dict[str, Any]) -> None:
        """The process died during this request: what it used is unknown, what was committed of its answer is kept (H12, K46)."""

        async def body(tx: InvocationTransaction) -> None:
            run = self._run_of(tx)
            add_request(await tx.doc(USAGE, run.conversation), str(pin["model"]), None)
            live = await tx.doc(LIVE, run.id)
            await self._keep_partial(tx, run, live["text"], pin, "interrupted")
            _show(live, round=pin["round"], attempt=pin["attempt"])

        await invocation.record(body)

    async def _keep_partial(
        self, tx: InvocationTransaction, run: Task, text: str, pin: dict[str, Any], stop: StopReason
    ) -> None:
        if text:
            message = stopped(text, str(pin["model"]), stop)
            data = {"run": run.id, "round": pin["round"]}
            tx.append(run.conversation, ASSISTANT, messages=(message,), data=data, task=run.id)

    async def _ended(self, tx: InvocationTransaction, reason: UnansweredReason, detail: str) -> None:
        self._end(tx, reason, detail)

    def _end(self, tx: InvocationTransaction, reason: UnansweredReason, detail: str) -> None:
        """The run ends without an answer; the inbox is left alone (H6)."""
        settle_unanswered(tx, tx.invocation.id, reason, detail)
        tx.fail(ErrorInfo(type=reason, message=detail))

    async def abort(self, invocation: Invocation) -> None:
        """Keep what was seen of the answer, and start the next run with what arrived after the abort (K32)."""

        async def body(tx: InvocationTransaction) -> None:
            run = self._run_of(tx)
            state = run.state
            pin = getattr(getattr(state, "checkpoint", None), "data", None) or {}
            if "model" in pin:
                add_request(await tx.doc(USAGE, run.conversation), str(pin["model"]), None)
                await self._keep_partial(tx, run, (await tx.doc(LIVE, run.id))["text"], pin, "aborted")
            reason = run.abort.reason if run.abort is not None else "aborted"
            settle_unanswered(tx, run.id, "aborted", reason)
            await place_due(self.harness, tx, run.conversation, "final", None, after=run.memos.get(ABORTED_AT, 0))
            tx.aborted()

        await invocation.record(body)

    def _run_of(self, tx: InvocationTransaction) -> Task:
        return tx.own


#: Memo of an aborted run: the newest id at that time. Inputs after it are placed when the run ends.
ABORTED_AT = "perdure.aborted_at"


def _show(live: Any, *, round: int, attempt: int) -> None:
    """What the run shows from now on; only what differs is written."""
    wanted = {"round": round, "attempt": attempt, "text": "", "thinking": "", "retry": None}
    for name, value in wanted.items():
        if live[name] != value:
            live[name] = value
    if live["tools"]:
        live["tools"] = {}
