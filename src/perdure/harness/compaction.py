"""The compaction task (H26 to H28): it summarises what is older, beside the work, and hands the summary in.

It changes nothing until its summary is placed, and that is one entry in one commit (I44, I45). What is said meanwhile
is placed by its own rules, and kept: a summary stands for what came before its head, and for nothing else (I46).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perdure.errors import ModelError, PerdureError, UsageError
from perdure.harness.consult import before_compact
from perdure.harness.context import render
from perdure.harness.cutting import Cut, choose, newest_turn
from perdure.harness.gate import MOST_TOLD
from perdure.harness.hooks import CompactionToDo, Refuse, Summary
from perdure.harness.loadout import in_use
from perdure.harness.output import clip
from perdure.harness.retry import wait_before_retry
from perdure.harness.runs import place_entry, run_of
from perdure.harness.spending import stopped_by
from perdure.harness.stored import LIVE
from perdure.harness.stream import Stream
from perdure.harness.summary import Piece, message_of, portion, record_of, request_of
from perdure.harness.thresholds import thresholds
from perdure.harness.usage import count_request
from perdure.inbox.admission import digest_of, queued
from perdure.messages import text_of
from perdure.model import Model, Usage
from perdure.records import ConversationId, Entry, EntryId, ErrorInfo, Running, Task
from perdure.session.transcripts import cut as active_of
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import InvocationTransaction, TaskTransaction
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness, Settings

COMPACT = "perdure.compaction"
Reason = Literal["manual", "background", "threshold", "overflow"]

#: What the summariser is shown at a time where its window is unknown, in tokens.
A_PORTION = 60_000
#: It is shown half of it at most so many times, when that was too much for it.
MOST_HALVINGS = 4
#: Instructions are not longer, in characters.
MOST_INSTRUCTIONS = 10_000


def start_compaction(
    harness: Harness,
    tx: TaskTransaction,
    conversation: ConversationId,
    *,
    reason: Reason,
    keep: int | None = None,
    instructions: str = "",
    owner: Any = None,
) -> Task:
    """Stage a compaction of a conversation, owned by it, or by the run that waits for it. Raises TaskRefused."""
    home = tx.candidate.conversation(conversation)
    input = {"reason": reason, "keep": keep, "instructions": clip(clean_text(instructions), MOST_INSTRUCTIONS)}
    return tx.create_task(harness.compaction, input, owner=home if owner is None else owner)


async def compact_conversation(
    harness: Harness, tx: TaskTransaction, conversation: ConversationId, instructions: str | None
) -> Task:
    """Start a compaction that somebody asked for. Raises UsageError, NotFound, TaskRefused."""
    if instructions is not None and not isinstance(instructions, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"instructions for a summary are a text, not {type(instructions).__name__}")
    await tx.use(conversation)
    return start_compaction(harness, tx, conversation, reason="manual", instructions=instructions or "")


async def transcript_of(tx: TaskTransaction, conversation: ConversationId) -> list[Entry]:
    """The active transcript as this transaction leaves it."""
    known = (await tx.transcript(conversation)).entries
    staged = [entry for entry in tx.entries if entry.conversation == conversation]
    if any(entry.head is not None for entry in staged):
        return active_of(sorted([*known, *staged], key=lambda entry: entry.id))
    return [*known, *staged]


async def open_rounds(tx: TaskTransaction, conversation: ConversationId) -> frozenset[int]:
    """The answers whose calls still run."""
    run = run_of(tx.candidate, conversation)
    live: dict[str, Any] | None = None if run is None else await tx.snapshot(LIVE, run.id)
    return frozenset(int(slot["call"].split(".")[0]) for slot in (live or {}).get("tools", {}).values())


class CompactionTask(TaskDefinition, reserved=True):
    """One compaction. A summary of much is made in portions, each of which carries the notes so far on."""

    kind = COMPACT

    def __init__(self, harness: Harness | None = None) -> None:
        self._harness = harness

    @property
    def harness(self) -> Harness:
        assert self._harness is not None
        return self._harness

    @phase(first=True, stages=True)
    async def select(self, tx: InvocationTransaction) -> None:
        """Choose what is summarised, and pin it: a part of the commit that starts it."""
        conversation, input = tx.invocation.conversation, tx.invocation.input
        settings = await self.harness.settings(tx, conversation)
        entries = await transcript_of(tx, conversation)
        window = self.harness.window(settings.model)
        found = self._cut(entries, await open_rounds(tx, conversation), input["keep"], settings, window)
        if found is None:
            tx.complete({"submission": None, "why": "there is nothing older to summarise"})
            return
        await tx.doc(LIVE, tx.invocation.id)
        limits = None if window is None else thresholds(settings, window)
        tx.next(
            self.summarise,
            model=settings.model,
            kept=found.first,
            cutoff=max(entry.id for entry in entries),
            older=found.older,
            budget=A_PORTION if limits is None else max(limits.blocking * 3 // 4, 1),
            done=0,
            notes="",
            attempt=1,
            halved=0,
            began=tx.now,
        )

    def _cut(
        self, entries: list[Entry], open: frozenset[int], keep: int | None, settings: Settings, window: int | None
    ) -> Cut | None:
        """As much as was asked for; without a wish as the settings say, else all but the newest turn, or answer."""
        if keep is not None:
            return choose(entries, keep, open=open)
        usual = settings.compaction_keep_recent if window is None else thresholds(settings, window).keep
        wishes = (usual, newest_turn(entries), 0)
        return next((found for wish in wishes if (found := choose(entries, wish, open=open)) is not None), None)

    @phase(whole=True)
    async def summarise(self, invocation: Invocation, pin: dict[str, Any]) -> None:
        """Ask for notes on the next portion; commit them, or hand them in when they are whole."""
        harness = self.harness
        if invocation.attempt > 1:
            await invocation.record(partial(self._lost, pin=pin))
        model = self._model(pin["model"])
        spent = await stopped_by(harness, invocation.conversation)
        if isinstance(model, str) or spent is not None:
            error = ErrorInfo(type="limit" if spent else "no_model", message=spent or str(model))
            await invocation.record(partial(self._end, error=error))
            return
        entries = await harness.transcript(invocation.conversation, EntryId(pin["cutoff"]))
        index = next((at for at, entry in enumerate(entries) if entry.id == pin["kept"]), len(entries))
        notes, pieces = record_of(entries, index, model.name)
        if (pin["done"], pin["attempt"], pin["halved"]) == (0, 1, 0):
            answer = await self._consult(invocation, pin, entries[:index])
            if isinstance(answer, Refuse):
                await invocation.record(partial(self._refused, why=answer.reason))
                return
            if answer is not None:
                await invocation.record(partial(self._hand_in, notes=answer.text, pin=pin, pieces=len(pieces)))
                return
        await self._ask(invocation, model, pin["notes"] or notes, pieces, pin)

    async def _consult(
        self, invocation: Invocation, pin: dict[str, Any], older: Sequence[Entry]
    ) -> Refuse | Summary | None:
        """What hooks say of it, before anything is spent (H24)."""
        harness = self.harness
        async with invocation.commit() as tx:
            settings = await harness.settings(tx, invocation.conversation)
            loadout = harness.installed.loadout(await in_use(harness, tx, invocation.conversation, settings))
        if not loadout.hooks("before_compact"):
            return None
        seen = CompactionToDo(
            conversation=invocation.conversation,
            reason=invocation.input["reason"],
            messages=render(older, model=str(pin["model"])),
            keep=pin["kept"],
            instructions=invocation.input["instructions"],
        )
        return await before_compact(harness, loadout, seen, invocation.id)

    async def _ask(
        self, invocation: Invocation, model: Model, notes: str, pieces: list[Piece], pin: dict[str, Any]
    ) -> None:
        end = portion(pieces, pin["done"], pin["budget"])
        instructions = invocation.input["instructions"]
        shown = pieces[pin["done"] : end]
        request = request_of(model.name, notes, shown, pin["budget"], instructions=instructions, attempt=pin["attempt"])
        stream = Stream(self.harness, invocation, model)
        usage: Usage | None = None
        try:
            message = await stream.run(request)
            usage = stream.answer.usage
            written = text_of(message).strip()
            if message.stop == "refusal":
                raise ModelError(f"{model.name} refused to write a summary", kind="invalid")
            if not written:  # once may be an accident
                kind = "cut" if pin["attempt"] == 1 else "invalid"
                raise ModelError(f"{model.name} wrote an empty summary", kind=kind)
        except ModelError as error:
            chance = self.harness.clock.random()
            await invocation.record(partial(self._failed, error=error, usage=usage, pin=pin, chance=chance))
        else:
            done = partial(self._written, notes=written, usage=usage, pin=pin, end=end, pieces=len(pieces))
            await invocation.record(done)

    def _model(self, name: str | None) -> Model | str:
        """The model of that name, or why there is none."""
        try:
            found = self.harness.model(name)
        except PerdureError as error:
            return clip(str(error), MOST_TOLD)
        return found or f"no model named {name!r} is available"

    # -- bodies of commits, which may run again -----------------------------------------------

    async def _written(
        self,
        tx: InvocationTransaction,
        *,
        notes: str,
        usage: Usage | None,
        pin: dict[str, Any],
        end: int,
        pieces: int,
    ) -> None:
        await count_request(tx, tx.invocation.conversation, pin["model"], usage)
        if end < pieces:
            await self._show(tx, 1)
            further: dict[str, Any] = {**pin, "notes": notes, "done": end, "attempt": 1, "began": tx.now}
            tx.next(self.summarise, **further)
            return
        await self._hand_in(tx, notes=notes, pin=pin, pieces=pieces)

    async def _hand_in(self, tx: InvocationTransaction, *, notes: str, pin: dict[str, Any], pieces: int) -> None:
        """Through the inbox: placed at once where no run is live, else at its next boundary (H35)."""
        conversation, task = tx.invocation.conversation, tx.invocation.id
        data = {"task": task, "reason": tx.invocation.input["reason"], "messages": pieces, "tokens": pin["older"]}
        content = {"head": pin["kept"], "message": msgspec.to_builtins(message_of(notes)), "data": data}
        item = queued(tx, conversation, "summary", content, request_id=None, body=digest_of("summary", content))
        tx.put_submission(item)
        if run_of(tx.candidate, conversation) is None:
            await place_entry(tx, item)
        tx.complete({"submission": item.id})

    async def _failed(
        self, tx: InvocationTransaction, *, error: ModelError, usage: Usage | None, pin: dict[str, Any], chance: float
    ) -> None:
        await count_request(tx, tx.invocation.conversation, pin["model"], usage)
        attempt = pin["attempt"]
        if error.kind == "overflow" and pin["halved"] < MOST_HALVINGS:
            await self._show(tx, 1)
            smaller: dict[str, Any] = {"budget": max(pin["budget"] // 2, 1), "halved": pin["halved"] + 1, "attempt": 1}
            tx.next(self.summarise, **{**pin, **smaller})
            return
        elapsed = tx.now - pin["began"]
        wait = wait_before_retry(error, self.harness.defaults.retry, attempt=attempt, elapsed=elapsed, chance=chance)
        message = clip(clean_text(str(error)), MOST_TOLD)
        if wait is None:
            tx.fail(ErrorInfo(type=error.kind, message=message))
            return
        live = await self._show(tx, attempt + 1)
        live["retry"] = {"kind": error.kind, "message": message, "at": tx.now + wait}
        timer = tx.timer(tx.now + wait, owner=tx.invocation)
        await tx.wait([timer], then=self.summarise, **{**pin, "attempt": attempt + 1})

    async def _lost(self, tx: InvocationTransaction, *, pin: dict[str, Any]) -> None:
        """The process died during this request: what it used is unknown (K46)."""
        await count_request(tx, tx.invocation.conversation, pin["model"], None, lost=True)
        await self._show(tx, pin["attempt"])

    async def _show(self, tx: InvocationTransaction, attempt: int) -> Any:
        live = await tx.doc(LIVE, tx.invocation.id)
        for name, value in {"attempt": attempt, "text": "", "thinking": "", "retry": None}.items():
            if live.lend()[name] != value:
                live[name] = value
        return live

    async def _end(self, tx: InvocationTransaction, *, error: ErrorInfo) -> None:
        tx.fail(error)

    async def _refused(self, tx: InvocationTransaction, *, why: str) -> None:
        tx.complete({"submission": None, "why": why})

    async def abort(self, invocation: Invocation) -> None:
        """Nothing was changed, and nothing will be."""

        async def body(tx: InvocationTransaction) -> None:
            own = tx.own
            assert isinstance(own.state, Running)
            pin: dict[str, Any] = own.state.checkpoint.data or {}
            if "model" in pin and own.attempt > 1:  # it was asked, or is by now
                await count_request(tx, own.conversation, pin["model"], None, lost=True)
            tx.aborted()

        await invocation.record(body)
