"""The generation task: prepare, request, wait for the tools, until the final answer (H11)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from perdure.errors import ModelError, PerdureError
from perdure.harness.answer import stopped
from perdure.harness.consult import observe, on_yield, pinned_request
from perdure.harness.controls import hand_off, results_of
from perdure.harness.filling import fill_in
from perdure.harness.fronts import front_of, stage_front, system_in
from perdure.harness.gate import MOST_TOLD, judge
from perdure.harness.hooks import AnswerReceived, RoundDone
from perdure.harness.installed import Installed
from perdure.harness.intents import start_calls
from perdure.harness.loadout import in_use, pinned, uses_of
from perdure.harness.output import clip
from perdure.harness.retry import wait_before_retry
from perdure.harness.runs import place_due, place_summaries, settle_answered, settle_unanswered
from perdure.harness.sizing import Fits, Known, Stuck, Waits, context_after, known_in, overflowed, weigh
from perdure.harness.spending import Overspent, capped, caps, reached
from perdure.harness.stored import ASSISTANT, GENERATION, LIVE, USER
from perdure.harness.stream import Stream
from perdure.harness.usage import count_request
from perdure.messages import AssistantMessage, StopReason, UserMessage, calls_of
from perdure.model import Model, Request, ToolSpec, Usage
from perdure.records import ConversationId, EntryId, ErrorInfo, Running, Task, UnansweredReason
from perdure.settle.state import evolve
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import InvocationTransaction, TaskTransaction
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness, Settings

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

    @phase(first=True, stages=True)
    async def prepare(
        self,
        tx: InvocationTransaction,
        round: int = 0,
        refused: int = 0,
        done: dict[str, Any] | None = None,
        known: dict[str, Any] | None = None,
    ) -> None:
        """Place what the boundary places, and pin the request: a recovered request is the same request.

        Only stages: a part of the commit of the input, or of the round's last result. `done` is of the round before,
        `known` of the compactions of this run.
        """
        harness, run, conversation = self.harness, tx.invocation.id, tx.invocation.conversation
        await fill_in(tx)
        settings = await harness.settings(tx, conversation)
        loadout = harness.installed.loadout(uses := await in_use(harness, tx, conversation, settings))
        if done and not done.get("observed") and loadout.hooks("after_tools"):
            tx.next(self.observe, round=round, refused=refused, done={**done, "known": known})
            return
        limits = await caps(harness, tx, conversation, settings)
        live, remembered = await tx.doc(LIVE, run), known_in({"known": known})
        if await self._over(tx, settings, limits, round, refused, done or {}, remembered):
            return
        _show(live, round=round, attempt=1)
        tools = loadout.offered(settings, harness.installed.tools)
        system = await stage_front(harness, tx, conversation, settings, loadout, tools)
        weighed = await weigh(harness, tx, settings, system, tools, remembered)
        if not isinstance(weighed, Fits):
            await self._too_large(tx, weighed, round, refused)
            return
        tx.next(
            self.request,
            model=settings.model,
            tools=tools,
            sequential=settings.sequential,
            cutoff=await _newest(tx, conversation),
            round=round,
            refused=refused,
            attempt=1,
            began=tx.now,
            **pinned(uses),
            **capped(limits),
            **weighed.known.kept(),
        )

    async def _over(
        self,
        tx: InvocationTransaction,
        settings: Settings,
        limits: Any,
        round: int,
        refused: int,
        done: dict[str, Any],
        remembered: Known,
    ) -> bool:
        """Whether the run ends at this boundary: results ask for it (H23), it reached a limit, or there is a reset."""
        harness, conversation = self.harness, tx.invocation.conversation
        asks: dict[str, Any] = (await tx.doc(LIVE, tx.invocation.id)).lend().get("asks") or {}
        if asks.get("handoff") is not None:
            hand_off(tx, asks["handoff"])
            await self._end(tx, "reset", "a tool handed the conversation off")
            await place_due(harness, tx, conversation, "final", None)
        elif asks and asks["terminate"] >= done.get("calls", 0) > 0:
            await self._finished(tx, EntryId(done["answer"]))
        elif round >= settings.max_rounds:
            await self._end(tx, "limit", f"the run reached its limit of {settings.max_rounds} rounds")
        elif refused >= REFUSED_ROUNDS:
            await self._end(tx, "limit", f"no tool call could be run in {refused} rounds in a row")
        elif limits and (spent := await reached(tx, limits)) is not None:
            await self._end(tx, "limit", spent)
        elif (round > 0 or remembered.since is not None) and (
            reset := await place_due(harness, tx, conversation, "round", tx.invocation.id)
        ) is not None:
            await self._end(tx, "reset", f"the conversation was reset by submission {reset.id}")
            await place_due(harness, tx, conversation, "final", None)
        else:
            return False
        return True

    async def _too_large(self, tx: InvocationTransaction, found: Waits | Stuck, round: int, refused: int) -> None:
        """The next request does not fit: a compaction comes first, or the run ends (H34)."""
        if isinstance(found, Stuck):
            await self._end(tx, "overflow", found.detail)
            return
        await tx.wait([found.task], then=self.prepare, round=round, refused=refused, **found.known.kept())

    @phase
    async def observe(self, invocation: Invocation, round: int, refused: int, done: dict[str, Any]) -> None:
        """Tell after_tools hooks of the results of a round, before anything follows from them; again after a crash."""
        harness, run = self.harness, invocation.id
        results = await results_of(harness, invocation.conversation, done["answer"])
        seen = RoundDone(conversation=invocation.conversation, run=run, round=round - 1, results=results)
        await observe(harness, harness.installed.loadout(uses_of(done)), "after_tools", seen, run)

        async def body(tx: InvocationTransaction) -> None:
            known = done.get("known")
            tx.next(self.prepare, round=round, refused=refused, done={**done, "observed": True}, known=known)

        await invocation.record(body)

    @phase(whole=True)
    async def request(self, invocation: Invocation, pin: dict[str, Any]) -> None:
        """Ask the model; commit its answer with everything that follows from it."""
        harness = self.harness
        if invocation.attempt > 1:  # an attempt of this process ended without an outcome
            await invocation.record(partial(self._lost, pin=pin))
        model = self._model(pin["model"])
        if isinstance(model, str):
            await invocation.record(partial(self._ended, reason="no_model", detail=model))
            return
        installed = harness.installed
        loadout = installed.loadout(uses_of(pin))
        request = await self._build(invocation, model, installed, pin)
        request = await pinned_request(harness, invocation, loadout, request, pin)
        stream = Stream(harness, invocation, model)
        try:
            message = await stream.run(request, capped=pin.get("capped", False))
        except Overspent as error:
            await invocation.record(partial(self._ended, reason="limit", detail=str(error)))
        except ModelError as error:
            chance = harness.clock.random()
            pin = {**pin, "began": pin["began"] + stream.waited}  # its budget of retries begins with its turn
            await invocation.record(partial(self._failed, error=error, text=stream.text, pin=pin, chance=chance))
        else:
            isolation = await harness.isolation(installed.tools.get(call.name) for call in calls_of(message))
            seen = AnswerReceived(
                conversation=invocation.conversation,
                run=invocation.id,
                round=pin["round"],
                model=model.name,
                message=message,
                usage=stream.answer.usage,
            )
            more = None if calls_of(message) else await on_yield(harness, loadout, seen)
            entries: list[EntryId] = []
            answered = partial(self._answered, message=message, usage=stream.answer.usage, isolation=isolation)
            answered = partial(answered, installed=installed, pin=pin, sent=request.tools, more=more, entries=entries)
            await invocation.record(answered)
            seen = msgspec.structs.replace(seen, entry=entries[-1])
            await observe(harness, loadout, "after_response", seen, invocation.id)

    def _model(self, name: str | None) -> Model | str:
        """The model of that name, or why there is none."""
        try:
            found = self.harness.model(name)
        except PerdureError as error:
            return clip(str(error), MOST_TOLD)
        if found is None:
            return "no model is configured" if name is None else f"no model named {name!r} is available"
        return found

    async def _build(self, invocation: Invocation, model: Model, installed: Installed, pin: dict[str, Any]) -> Request:
        harness, conversation = self.harness, invocation.conversation
        front = await front_of(harness, conversation, installed, pin)
        entries = await harness.transcript(conversation, EntryId(pin["cutoff"]))
        if front.stale:
            entries = [entry for entry in entries if entry.id not in front.stale]
        return Request(
            model=model.name,
            messages=harness.renderings.request(conversation, entries, model.name),
            system=front.system,
            tools=front.tools,
            options={"attempt": pin["attempt"]},
        )

    # -- what a request can end with: bodies of commits, which may run again ------------------

    async def _answered(
        self,
        tx: InvocationTransaction,
        *,
        message: AssistantMessage,
        usage: Usage | None,
        isolation: str,
        installed: Installed,
        pin: dict[str, Any],
        sent: tuple[ToolSpec, ...],
        more: tuple[UserMessage, str] | None,
        entries: list[EntryId],
    ) -> None:
        run, round = tx.own, pin["round"]
        about, known = {"run": run.id, "round": round, **context_after(usage)}, known_in(pin).kept()
        entry = tx.append(run.conversation, ASSISTANT, messages=(message,), data=about, task=run.id)
        entries.append(entry.id)
        await count_request(tx, run.conversation, pin["model"], usage)
        calls = calls_of(message)
        if more is not None:
            tx.append(run.conversation, USER, messages=(more[0],), data={"extension": more[1]}, task=run.id)
            tx.next(self.prepare, round=round + 1, **known)
            return
        if not calls:
            await self._finished(tx, entry.id)
            return
        live = await tx.doc(LIVE, run.id)
        _show(live, round=round, attempt=pin["attempt"])
        offered = {name: installed.ready(name).described for name in installed.offered(pin["tools"])}
        most = len(calls) - 1
        gone = {tool.name for tool in sent} - set(offered)
        verdicts = [judge(call, offered, gone, stop=message.stop, last=at == most) for at, call in enumerate(calls)]
        tasks = await start_calls(self.harness, tx, entry.id, calls, verdicts, installed, isolation, pin, live)
        refused = 0 if tasks else pin["refused"] + 1
        done = {"calls": len(calls), "answer": entry.id, **pinned(uses_of(pin))}
        await tx.wait(tasks, then=self.prepare, round=round + 1, refused=refused, done=done, **known)

    async def _finished(self, tx: InvocationTransaction, answer: EntryId) -> None:
        """The run ends with this answer, and what waits for that starts the next one."""
        run = tx.own
        settle_answered(tx, run.id, answer)
        await place_due(self.harness, tx, run.conversation, "final", None)
        tx.complete({"answer": answer})

    async def _failed(
        self, tx: InvocationTransaction, *, error: ModelError, text: str, pin: dict[str, Any], chance: float
    ) -> None:
        run = tx.own
        lost = bool(text) or error.kind in ("cut", "timeout")
        await count_request(tx, run.conversation, pin["model"], None, lost=lost)
        self._keep_partial(tx, run, text, pin, "error")
        live = await tx.doc(LIVE, run.id)
        attempt = pin["attempt"]
        wait = wait_before_retry(
            error, self.harness.defaults.retry, attempt=attempt, elapsed=tx.now - pin["began"], chance=chance
        )
        message = clip(clean_text(str(error)), MOST_TOLD)
        if wait is None:
            told = f"{error.kind}: {message}"
            if error.kind != "overflow":
                await self._end(tx, "model_error", told)
                return
            _show(live, round=pin["round"], attempt=attempt)
            system = await system_in(tx, run.conversation)
            found = await overflowed(self.harness, tx, told, system, pin["tools"], known_in(pin))
            await self._too_large(tx, found, pin["round"], pin["refused"])
            return
        _show(live, round=pin["round"], attempt=attempt + 1)
        told = {"attempt": attempt + 1, "attempts": self.harness.defaults.retry.attempts, "wait": round(wait, 1)}
        live["retry"] = {"kind": error.kind, "message": message, "at": tx.now + wait, **told}
        timer = tx.timer(tx.now + wait, owner=tx.invocation)
        await tx.wait([timer], then=self.request, **{**pin, "attempt": attempt + 1})

    async def lost(self, tx: TaskTransaction, run: Task, pin: dict[str, Any]) -> None:
        """An attempt ended without its own code: its use is unknown, what was committed of it is kept (H12, K46)."""
        await count_request(tx, run.conversation, str(pin["model"]), None, lost=True)
        live = await tx.doc(LIVE, run.id)
        self._keep_partial(tx, run, live["text"], pin, "interrupted")
        _show(live, round=pin["round"], attempt=pin["attempt"])

    async def _lost(self, tx: InvocationTransaction, *, pin: dict[str, Any]) -> None:
        await self.lost(tx, tx.own, pin)

    async def recovered(self, tx: TaskTransaction, before: Task) -> None:
        """In the recovery commit: the attempt that ran when the last process ended is lost, and told so already there.

        Where that cannot be told (a document that this code cannot read), the request's next attempt meets the reason.
        """
        state = before.state
        if before.kind != GENERATION or before.abort is not None or not isinstance(state, Running):
            return
        pin = cast("dict[str, Any] | None", state.checkpoint.data)
        if state.checkpoint.phase != "request" or pin is None:
            return
        restore = tx.save()
        try:
            run = tx.task(before.id)
            assert run is not None
            await self.lost(tx, run, pin)
            tx.put_task(evolve(run, attempt=0))
        except PerdureError:
            restore()
        self.harness.warming.begin(before.conversation, str(pin["model"]))

    def _keep_partial(self, tx: TaskTransaction, run: Task, text: str, pin: dict[str, Any], stop: StopReason) -> None:
        if text:
            message = stopped(text, str(pin["model"]), stop)
            data = {"run": run.id, "round": pin["round"]}
            tx.append(run.conversation, ASSISTANT, messages=(message,), data=data, task=run.id)

    async def _ended(self, tx: InvocationTransaction, *, reason: UnansweredReason, detail: str) -> None:
        await self._end(tx, reason, detail)

    async def _end(self, tx: InvocationTransaction, reason: UnansweredReason, detail: str) -> None:
        """The run ends without an answer; the inbox is left alone (H6), but for finished summaries (H35)."""
        settle_unanswered(tx, tx.invocation.id, reason, detail)
        await place_summaries(tx, tx.invocation.conversation)
        tx.fail(ErrorInfo(type=reason, message=detail))

    async def abort(self, invocation: Invocation) -> None:
        """Keep what was seen of the answer, and start the next run with what arrived after the abort (K32)."""

        async def body(tx: InvocationTransaction) -> None:
            run = tx.own
            await fill_in(tx)
            assert isinstance(run.state, Running)
            pin: dict[str, Any] = run.state.checkpoint.data or {}
            if "model" in pin and run.attempt > 1:  # else the request was not sent: its back-off was cut short
                await count_request(tx, run.conversation, str(pin["model"]), None, lost=True)
                self._keep_partial(tx, run, (await tx.doc(LIVE, run.id))["text"], pin, "aborted")
            reason = run.abort.reason if run.abort is not None else "aborted"
            settle_unanswered(tx, run.id, "aborted", reason)
            await place_summaries(tx, run.conversation)
            await place_due(self.harness, tx, run.conversation, "final", None, after=run.memos.get(ABORTED_AT, 0))
            tx.aborted()

        await invocation.record(body)


#: Memo of an aborted run: the newest id at that time. Inputs after it are placed when the run ends.
ABORTED_AT = "perdure.aborted_at"


async def _newest(tx: InvocationTransaction, conversation: ConversationId) -> int:
    """The newest entry of the active transcript, as this transaction leaves it."""
    own = [entry.id for entry in tx.entries if entry.conversation == conversation]
    entries = [] if own else (await tx.transcript(conversation)).entries
    return own[-1] if own else max(entries[0].id, entries[-1].id) if entries else 0


def _show(live: Any, *, round: int, attempt: int) -> None:
    """What the run shows from now on; only what differs is written."""
    shown = live.lend()
    if "asks" in shown:
        del live["asks"]
    wanted: dict[str, Any] = {
        "round": round,
        "attempt": attempt,
        "text": "",
        "thinking": "",
        "retry": None,
        "tools": {},
    }
    for name, value in wanted.items():
        if shown[name] != value:
            live[name] = value
