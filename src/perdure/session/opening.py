"""Opening a session: claim it, load what is live, and make the one recovery commit (K46)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from perdure.clock import Clock
from perdure.errors import PerdureError, StorageError, StorageFull, StorageRejected, UsageError
from perdure.records import (
    ConversationId,
    Inbound,
    Submission,
    Task,
    TaskId,
    Waiting,
    decode_conversation,
    decode_inbound,
    decode_submission,
    decode_task,
)
from perdure.session.line import Line
from perdure.session.transaction import Transaction
from perdure.settle.rules import recovered
from perdure.storage import Storage
from perdure.telemetry import Telemetry
from perdure.values import clean_text

PAGE = 500
#: How often a commit that nobody can make in our stead is refused before opening gives up.
TRIES = 5

#: Acts on an inbound item inside the commit that takes it, and says what to answer.
InboundHandler = Callable[[Any, Inbound], Awaitable[Any]]


async def open_line(
    storage: Storage, session: str, *, clock: Clock, telemetry: Telemetry, take_over: bool = False, kill: bool = False
) -> tuple[Line, bool]:
    """Claim the session and load its live records; also says whether the last owner crashed. Runs no code (K39)."""
    opened = await storage.claim(clean_text(session), take_over=take_over, kill=kill)
    line = Line(storage, opened, clock, telemetry)
    if opened.head > 0:
        await load_live(line)
    return line, opened.head > 0 and not opened.clean


async def load_live(line: Line) -> None:
    """Load the live tasks and submissions and what settling needs around them: the state that the records are in."""
    tip = line.memory.tip
    tasks, submissions = await asyncio.gather(_live_tasks(line), _live_submissions(line))
    for task in tasks:
        tip.put_task(task)
    for submission in submissions:
        tip.put_submission(submission)
    await _load_conversations(line)
    await _load_outcomes(line)
    line.memory.published = tip.copy()


async def _live_tasks(line: Line) -> list[Task]:
    found: list[Task] = []
    while bodies := await line.storage.scan_tasks(
        line.session, live=True, after=found[-1].id if found else 0, limit=PAGE
    ):
        found.extend([decode_task(body, line.session) for body in bodies])
        if len(bodies) < PAGE:
            break
    return found


async def _live_submissions(line: Line) -> list[Submission]:
    found: list[Submission] = []
    while bodies := await line.storage.scan_submissions(
        line.session, live=True, after=found[-1].id if found else 0, limit=PAGE
    ):
        found.extend([decode_submission(body, line.session) for body in bodies])
        if len(bodies) < PAGE:
            break
    return found


async def _load_conversations(line: Line) -> None:
    """Those that live tasks own or live in, and those with queued submissions."""
    tip, storage, session = line.memory.tip, line.storage, line.session
    if tip.tasks:
        for body in await storage.owned_conversations(session, sorted(tip.tasks)):
            tip.put_conversation(decode_conversation(body, session))
    wanted: dict[ConversationId, None] = {task.conversation: None for task in tip.tasks.values()}
    wanted.update(dict.fromkeys(tip.queued))
    for id in wanted:
        if id not in tip.conversations:
            body = await storage.read_conversation(session, id)
            if body is not None:
                tip.put_conversation(decode_conversation(body, session))


async def _load_outcomes(line: Line) -> None:
    """Outcomes of ended tasks that waiting tasks still name."""
    tip = line.memory.tip
    named: dict[TaskId, None] = {}
    for task in tip.tasks.values():
        if isinstance(task.state, Waiting):
            named.update(dict.fromkeys(id for id in task.state.on if id not in tip.tasks))
    ids = list(named)
    for start in range(0, len(ids), PAGE):
        for body in await line.storage.read_tasks(line.session, ids[start : start + PAGE]):
            task = decode_task(body, line.session)
            if task.outcome is not None:
                tip.outcomes[task.id] = task.outcome


async def recover(
    line: Line,
    crashed: bool,
    make: Callable[[Line], Any],
    handlers: Mapping[str, InboundHandler],
    lost: Callable[[Any, Task], Awaitable[None]] | None = None,
) -> None:
    """One commit: what was running is reconciled, what was handed in is taken. Nothing is reserved before it (K46).

    `lost` stages what has to be told of a task that was running, given as it was.
    """

    async def reconcile(tx: Transaction) -> None:
        for task in list(line.memory.tip.tasks.values()):
            changed = recovered(task, crashed=crashed)
            if changed is not None:
                tx.put_task(changed)
                if lost is not None:
                    await lost(tx, task)

    await take_inbound(line, make, handlers, before=reconcile)


class _Unfit(Exception):
    """A handler broke on an item: whatever it had staged is dropped with the commit."""

    def __init__(self, id: str, error: Exception) -> None:
        super().__init__(id)
        self.id = id
        self.error = error


async def take_inbound(
    line: Line,
    make: Callable[[Line], Transaction],
    handlers: Mapping[str, InboundHandler],
    *,
    before: Callable[[Transaction], Awaitable[None]] | None = None,
) -> int:
    """Let the handlers act on every item that was handed in, in one commit. Returns how many were taken.

    An item that a handler breaks on is answered with the error, in a commit made anew without it.
    """
    broken: dict[str, Exception] = {}
    tries = 0
    while True:
        try:
            async with line.commit(make) as tx:
                if before is not None:
                    await before(tx)
                return await _take_all(tx, handlers, broken)
        except _Unfit as unfit:
            broken[unfit.id] = unfit.error
        except StorageFull:
            raise
        except StorageRejected:  # made anew, as all of the runtime's own commits (K8)
            tries += 1
            if tries == TRIES:
                raise


async def _take_all(tx: Transaction, handlers: Mapping[str, InboundHandler], broken: Mapping[str, Exception]) -> int:
    after, count = "", 0
    while bodies := await tx.line.storage.scan_inbound(tx.line.session, after=after):
        for item in [decode_inbound(body, tx.line.session) for body in bodies]:
            after = item.id
            tx.take(item, await _answer(tx, item, handlers, broken))
            count += 1
    return count


async def _answer(
    tx: Transaction, item: Inbound, handlers: Mapping[str, InboundHandler], broken: Mapping[str, Exception]
) -> Any:
    handler = handlers.get(item.kind)
    try:
        if item.id in broken:
            raise broken[item.id]
        if handler is None:
            raise UsageError(f"nothing here takes inbound items of kind {item.kind!r}")
        return await handler(tx, item)
    except StorageError:
        raise
    except Exception as error:
        if isinstance(error, PerdureError) or item.id in broken:
            # a refusal is an answer too; handlers judge before they stage
            return {"error": {"type": type(error).__name__, "message": str(error)}}
        raise _Unfit(item.id, error) from error
