"""What was used (H17): disjoint buckets, unknown as unknown, counted once in each ledger that it belongs to.

A conversation has a ledger of its own, and one of what the conversations below it used (those that its tasks own, and
what those own). The session has one of all. The commit that says what an attempt or a call came to adds it to each of
them, so a total is read and never summed up, and what a deleted conversation spent stays in the totals above it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from perdure.errors import NotFound
from perdure.harness.stored import USAGE, USAGE_BELOW, USAGE_TOTAL
from perdure.model import Usage
from perdure.records import ConversationId, TaskId, decode_conversation, decode_task
from perdure.session.reading import snapshot

if TYPE_CHECKING:
    from perdure.session.line import Line
    from perdure.session.transaction import Transaction

BUCKETS = ("input", "cache_read", "cache_write", "output", "reasoning", "cost")

#: More tokens or dollars than this no attempt can use.
MOST = 1e15
#: Calls of tools that do not exist are counted together: a model can invent any number of names.
UNKNOWN_TOOL = "(unknown)"
#: Kept beside the buckets of a model for limits on spend: how many requests had a known cost, the dearest of them, and
#: how many attempts of unknown cost may be billed all the same.
PRICED, DEAREST, LOST = "priced", "dearest", "lost"


async def count_request(
    tx: Transaction, conversation: ConversationId, model: str, usage: Usage | None, *, lost: bool = False
) -> None:
    """Count one attempt of a request, in the commit that says what came of it.

    Without usage it counts as unknown. `lost`: nobody was told of its end, so that it may be billed all the same.
    """
    async for ledger in _ledgers(tx, conversation):
        _add_request(ledger, model, usage, lost=lost)


async def count_call(tx: Transaction, conversation: ConversationId, tool: str, *, error: bool) -> None:
    """Count one finished tool call, in the commit of its result."""
    async for ledger in _ledgers(tx, conversation):
        totals = ledger.lend()["tools"].get(tool) or {"calls": 0, "errors": 0}
        ledger["tools"][tool] = {"calls": totals["calls"] + 1, "errors": totals["errors"] + error}


def _add_request(ledger: Any, model: str, usage: Usage | None, *, lost: bool) -> None:
    totals: dict[str, Any] = dict(ledger.lend()["models"].get(model) or {"requests": 0, "unknown": 0})
    totals["requests"] += 1
    known = False
    for bucket in BUCKETS:
        value: Any = None if usage is None else getattr(usage, bucket)
        if _counts(value):
            known = True
            totals[bucket] = totals.get(bucket, 0) + value
            if bucket == "cost":
                totals[PRICED] = totals.get(PRICED, 0) + 1
                totals[DEAREST] = max(totals.get(DEAREST, 0), value)
    if not known:
        totals["unknown"] += 1
    if lost and not known:
        totals[LOST] = totals.get(LOST, 0) + 1
    ledger["models"][model] = totals  # one small operation, whatever changed


def _counts(value: object) -> bool:
    """A provider may send anything: what is no amount is unknown."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST


# -- the ledgers of a conversation ------------------------------------------------------------------


async def _ledgers(tx: Transaction, conversation: ConversationId) -> AsyncIterator[Any]:
    yield await total_of(tx)
    yield await tx.doc(USAGE, conversation)
    async for above in owners_above(tx, conversation):
        yield await tx.doc(USAGE_BELOW, above)


async def owners_above(tx: Transaction, conversation: ConversationId) -> AsyncIterator[ConversationId]:
    """The conversations whose tasks own this one, the nearest first."""
    at = await tx.use(conversation)
    while at.owner is not None:
        home = await _home(tx, at.owner)
        if home is None:
            return
        try:
            at = await tx.use(home)
        except NotFound:  # it is being deleted, and takes what it owns along
            return
        yield home


async def _home(tx: Transaction, id: TaskId) -> ConversationId | None:
    """The conversation of a task, also of one that has ended."""
    known = tx.candidate.task(id)
    if known is not None:
        return known.conversation
    await tx.line.flushed()
    bodies = await tx.line.storage.read_tasks(tx.line.session, [id])
    return decode_task(bodies[0], tx.line.session).conversation if bodies else None


async def total_of(tx: Transaction) -> Any:
    """A draft of the session's ledger. A store of an older perdure had none: it begins with what its conversations
    say."""
    if not tx.memory.fresh and await tx.snapshot(USAGE_TOTAL) is None:
        found = await summed(tx.line)
        ledger = await tx.doc(USAGE_TOTAL)
        ledger["models"], ledger["tools"] = found["models"], found["tools"]
        return ledger
    return await tx.doc(USAGE_TOTAL)


async def summed(line: Line) -> dict[str, Any]:
    """What all conversations say that they used, read one by one."""
    found: dict[str, Any] = USAGE.initial()
    before: int | None = None
    while bodies := await line.storage.scan_conversations(line.session, before=before):
        for body in bodies:
            before = decode_conversation(body, line.session).id
            found = merged(found, await snapshot(line, USAGE, before, ""))
    return found


# -- pure -------------------------------------------------------------------------------------------


def merged(*ledgers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Several ledgers as one."""
    found: dict[str, dict[str, dict[str, Any]]] = {"models": {}, "tools": {}}
    for ledger in ledgers:
        for part, rows in (ledger or {}).items():
            for name, row in rows.items():
                into = found.setdefault(part, {}).setdefault(name, {})
                for column, value in row.items():
                    join: Callable[..., Any] = max if column == DEAREST else _plus
                    into[column] = join(into.get(column, 0), value)
    return found


def _plus(one: Any, other: Any) -> Any:
    return one + other


def shown(ledger: Mapping[str, Any] | None) -> dict[str, Any]:
    """A ledger for those who ask: `unpriced` says how many requests are missing in a cost."""
    found = merged(ledger)
    for row in found["models"].values():
        for column in (DEAREST, LOST):
            row.pop(column, None)
        priced = row.pop(PRICED, None)
        if priced is not None and priced < row["requests"]:
            row["unpriced"] = row["requests"] - priced
    return found


def charged(ledger: Mapping[str, Any] | None) -> float:
    """What a limit is held against: the known cost, and for each lost attempt as much as the dearest known request to
    its model. Other attempts of unknown cost count nothing."""
    rows: list[dict[str, Any]] = list((ledger or {}).get("models", {}).values())
    return sum(row.get("cost", 0) + row.get(LOST, 0) * row.get(DEAREST, 0) for row in rows)
