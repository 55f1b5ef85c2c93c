"""One life of a process that works on the run: it opens the store, hands everything in again, and sees it through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from perdure.app.opening import store
from perdure.app.session import Session
from perdure.clock import Clock
from perdure.errors import AlreadyAnswered, NotFound, StorageRejected, StorageUncertain
from perdure.harness.anchor import ANCHOR
from perdure.harness.decisions import Allow, Decision, Deny, Edit
from perdure.harness.harness import RequestLimits, Settings
from perdure.harness.submissions import SubmissionHandle
from perdure.messages import user
from perdure.records import Inbound, encode
from perdure.sandbox import Sandbox
from perdure.session.change import Change
from perdure.session.documents import document
from perdure.storage import Storage
from perdure.surface.settled import Answered, NotAnswered
from perdure.telemetry import Telemetry
from perdure.testing.scenario.cast import (
    ACCEPTED,
    FILLING,
    SHOWN,
    TOO_MUCH,
    WINDOW,
    Checkout,
    Numbers,
    Report,
    Stage,
    model_of,
    registry_of,
)
from perdure.testing.scenario.notes import Accepted, Notes, Said, Settled, Shown
from perdure.testing.scenario.steps import REMARK, take_step

T = TypeVar("T")

SESSION = "main"
#: What is answered where a call of that tool is asked about.
DECISIONS: Mapping[str, Decision] = {"pay": Allow(), "send": Deny("not now"), "stamp": Edit({"n": 7})}
STARTED = document("scenario.started", scope="session")
#: What another process handed in before the session was opened, always under the same id.
HANDED_IN = "0196f3c8-0000-7000-8000-000000000001"


class Life:
    """A client of an open session in one life. It tells the notes whatever it was told."""

    def __init__(self, session: Session, stage: Stage) -> None:
        self.session = session
        self._stage = stage

    async def see_through(self, variant: str) -> None:
        """Work on the run until it is over."""
        await VARIANTS[variant](self)
        await self.session.wait_idle()

    # -- variants ---------------------------------------------------------------------------

    async def plain(self) -> None:
        """Three rounds, with a steer and a follow-up while they run."""
        work = [
            await self._submit("task: three rounds", "main"),
            await self._submit("task: answer, please", "later", when_busy="follow_up"),
            await self._submit("hurry up", "steer", when_busy="steer"),
        ]
        self._stage.ready.set()
        await self._settle(work)

    async def abort(self) -> None:
        """As plain, but stopped inside an effect; then the conversation goes on."""
        work = [
            await self._submit("task: linger", "main"),
            await self._submit("task: answer, please", "later", when_busy="follow_up"),
            await self._submit("hurry up", "steer", when_busy="steer"),
        ]
        self._stage.ready.set()
        if not self._stage.notes.said("aborted"):
            over = asyncio.ensure_future(work[0].wait())
            lingering = asyncio.ensure_future(self._stage.lingering.wait())
            await asyncio.wait([over, lingering], return_when=asyncio.FIRST_COMPLETED)
            for waiting in (over, lingering):
                waiting.cancel()
            self._say("aborting")
            await self._sure(self._abort)
            self._say("aborted")
        work.append(await self._submit("task: look", "afterwards"))
        await self._settle(work)

    async def tasks(self) -> None:
        """Tasks of the application's own: fail-fast children, a timer, a memo, a question, one in the background."""
        await self._sure(self._start_tasks)
        found = await self.session.snapshot(STARTED)
        for name in ("checkout", "report"):
            self._accepted(name, found[name], "task")
        work = [await self._submit("task: look", "main")]
        self._stage.ready.set()
        await self._answer(found["checkout"])
        for name in ("checkout", "report"):
            await self.session.wait_task(found[name])
        await self._settle(work)

    async def agents(self) -> None:
        """Sub-agents two deep, and one in the background, which is stopped when nothing is to do any more."""
        work = [await self._submit("task: agents", "main")]
        self._stage.ready.set()
        await self._settle(work)
        await self.session.wait_idle(background=True)
        for task in self.session.inspect().tasks:
            if task.kind == ANCHOR:
                await self._stop(task.id)

    async def _stop(self, agent: int) -> None:
        await self._sure(lambda: self.session.abort_task(agent, "the end"))

    async def shell(self) -> None:
        """Effects of commands, which leave processes behind."""
        work = [await self._submit("task: shell", "main")]
        self._stage.ready.set()
        await self._settle(work)

    async def approvals(self) -> None:
        """Calls that are asked about, some of them twice; the youngest question is answered first."""
        work = [await self._submit("task: approvals", "main")]
        self._stage.ready.set()
        deciding = asyncio.ensure_future(self._decide())
        await self._settle(work)
        deciding.cancel()

    async def odd(self) -> None:
        """Whatever a person, a model and a tool can come up with."""
        work = [await self._submit("task: odd \0 and \ud835", "main")]
        work.append(await self._submit("task: look \udcff, then", "later"))
        self._stage.ready.set()
        await self._settle(work)

    async def compact(self) -> None:
        """Summaries beside the work, on request, before a request and after an overflow; then a reset."""
        await self._sure(lambda: _fill(self.session, "before", [FILLING] * 3))
        work = [await self._submit(f"task: answer {number} {FILLING}", f"talk {number}") for number in range(2)]
        self._stage.ready.set()
        await self._settle(work)
        asked = await self._sure(self._compact)
        await self._settle([await self._submit("task: look", "meanwhile")])
        await self.session.wait_task(asked)
        work = [await self._submit(f"task: look {FILLING * 7}", "large")]
        work.append(await self._submit("hurry up", "steer", when_busy="steer"))
        await self._settle(work)
        await self._sure(lambda: _fill(self.session, "many", ["word"] * 16))
        await self._settle([await self._submit(f"task: answer, that is {TOO_MUCH}", "too much")])
        work = [await self._submit("task: three rounds", "main"), await self._sure(self._reset)]
        work.append(await self._submit("task: look", "afterwards"))
        await self._settle(work)

    async def kernel(self) -> None:
        """Commits on documents, entries, forks and questions, one after another."""
        await self.session.resume()
        while (number := await self._sure(lambda: take_step(self.session))) is not None:
            self._accepted("step", number, "step")

    # -- parts ------------------------------------------------------------------------------

    async def _sure(self, call: Callable[[], Awaitable[T]]) -> T:
        """What is refused was not kept, and can be handed in again a little later."""
        while True:
            try:
                return await call()
            except StorageRejected:
                self._say("refused")
                await self._stage.clock.sleep(0.1)

    async def _submit(self, text: str, request: str, **how: Any) -> SubmissionHandle:
        async def submit() -> SubmissionHandle:
            return await (await self.session.root()).submit(text, request_id=request, **how)

        sent = await self._sure(submit)
        self._accepted(request, sent.id)
        return sent

    async def _abort(self) -> None:
        await (await self.session.root()).abort()

    async def _compact(self) -> int:
        return await (await self.session.root()).compact("keep the numbers")

    async def _reset(self) -> SubmissionHandle:
        sent = await (await self.session.root()).reset("From here on.", request_id="reset")
        self._accepted("reset", sent.id)
        return sent

    async def _start_tasks(self) -> None:
        chat = await self.session.root()
        async with self.session.commit() as tx:
            started = await tx.doc(STARTED)
            if "checkout" not in started:
                home = await tx.use(chat.id)
                started["checkout"] = tx.create_task(Checkout, owner=home).id
                started["report"] = tx.create_task(Report, owner=home, background=True).id

    async def _settle(self, work: list[SubmissionHandle]) -> None:
        for sent in work:
            settled = await sent.wait()
            if isinstance(settled, Answered):
                how, answer = "done", None if settled.answer is None else settled.answer.id
            else:
                assert isinstance(settled, NotAnswered)
                how, answer = settled.reason, None
            self._stage.notes.add(Settled(id=sent.id, how=how, answer=answer, life=self._stage.life))

    async def _answer(self, checkout: Any) -> None:
        """Answer the question of the checkout, if nobody did so before."""
        await self.session.until(lambda: self._asked() is not None or not self._lives(checkout))
        question = self._asked()
        if question is not None:
            try:
                await self._sure(lambda: self.session.answer(question, "no", by="the client"))
            except (AlreadyAnswered, NotFound):
                self._say("answered before")

    async def _decide(self) -> None:
        """Answer what is asked about calls, each in its own way."""
        while True:
            await self.session.until(lambda: self._asked() is not None)
            question = self.session.inspect().questions[-1]
            decision = DECISIONS[question.call["name"]]
            try:
                await self._sure(lambda: self.session.answer(question.id, decision, by="the client"))  # noqa: B023
            except (AlreadyAnswered, NotFound):
                self._say("answered before")

    def _asked(self) -> int | None:
        return next((question.id for question in self.session.inspect().questions), None)

    def _lives(self, task: int) -> bool:
        return any(each.id == task for each in self.session.inspect().tasks)

    def _accepted(self, name: str, id: int, what: Any = "submission") -> None:
        self._stage.notes.add(Accepted(name=name, id=id, what=what, life=self._stage.life))
        self._stage.telemetry.emit(ACCEPTED)

    def _say(self, what: str) -> None:
        self._stage.notes.add(Said(what=what, life=self._stage.life))


VARIANTS: Mapping[str, Callable[[Life], Awaitable[None]]] = {
    "plain": Life.plain,
    "abort": Life.abort,
    "tasks": Life.tasks,
    "kernel": Life.kernel,
    "agents": Life.agents,
    "shell": Life.shell,
    "odd": Life.odd,
    "approvals": Life.approvals,
    "compact": Life.compact,
}


async def live(
    storage: Storage,
    variant: str,
    notes: Notes,
    *,
    life: int,
    clock: Clock,
    telemetry: Telemetry,
    sandbox: Sandbox | None = None,
    starting: Callable[[Session, str], None] = lambda session, effect: None,
    **options: Any,
) -> None:
    """One life: open the session on a storage that is open, work until the run is over, close the session."""
    ready, lingering = asyncio.Event(), asyncio.Event()
    opened: list[Session] = []
    stage = Stage(
        notes=notes,
        telemetry=telemetry,
        clock=clock,
        life=life,
        ready=ready,
        lingering=lingering,
        starting=lambda effect: starting(opened[0], effect),
        asks=variant == "approvals",
    )

    def shown(change: Change) -> None:
        entries = {int(entry.id): encode(entry).decode() for entry in change.entries}
        submissions = {int(item.id): encode(item).decode() for item in change.submissions.values()}
        notes.add(Shown(seq=change.seq, entries=entries, submissions=submissions, life=life))
        telemetry.emit(SHOWN)

    if variant == "tasks":
        await _hand_in(storage, notes, life, clock)
    options = {
        "registry": registry_of(stage),
        "model": model_of(stage),
        "schema": Numbers(),
        "limits": RequestLimits(first_byte=20, progress=20, total=60),
        "progress_interval": 0.002,
        "sandbox": sandbox,
        **(_cramped(stage) if variant == "compact" else {}),
        **options,
    }
    async with store(storage, clock=clock, telemetry=telemetry) as one, one.session(SESSION, **options) as session:
        opened.append(session)
        session.observe(shown)
        await Life(session, stage).see_through(variant)


def _cramped(stage: Stage) -> dict[str, Any]:
    """A small window, and what keeps a conversation within it."""
    settings = Settings(compaction_reserve=1000, compaction_keep_recent=100, compaction_background=400)
    return {"model": model_of(stage, WINDOW), "settings": settings}


async def _fill(session: Session, name: str, texts: list[str]) -> None:
    """Say all this, once."""
    chat = await session.root()
    async with session.commit() as tx:
        started = await tx.doc(STARTED)
        if name not in started:
            started[name] = True
            for text in texts:
                tx.append(chat.id, REMARK, messages=(user(text),))


async def _hand_in(storage: Storage, notes: Notes, life: int, clock: Clock) -> None:
    """What another process wants, before anybody opens the session (K1a). In doubt it hands it in again."""
    message = msgspec.to_builtins(user("task: answer another process"))
    item = Inbound(id=HANDED_IN, kind="input", body={"message": message}, at=0.0)
    while True:
        try:
            await storage.hand_in(SESSION, item)
        except (StorageRejected, StorageUncertain):
            await clock.sleep(0.1)
        else:
            break
    notes.add(Accepted(name=HANDED_IN, id=0, what="item", life=life))
