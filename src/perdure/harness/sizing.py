"""Whether the context of a run's next request fits its model, and what is done where it does not (H26, H34, I43).

Staged in the commit that would pin the request: the run goes on to it, or waits for a compaction as for a tool. What it
remembers of that is part of its checkpoints, so a crash forgets none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import PerdureError
from perdure.harness import tokens
from perdure.harness.compaction import COMPACT, open_rounds, start_compaction, transcript_of
from perdure.harness.cutting import Cut, choose
from perdure.harness.runs import accepts_work
from perdure.harness.thresholds import MOST_TRIES, Beside, First, Full, Thresholds, judge, thresholds
from perdure.messages import ToolMessage
from perdure.model import Usage
from perdure.records import ConversationId, Entry, Task
from perdure.tasks.transaction import InvocationTransaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness, Settings

#: Conversations whose sizes are kept.
KEEP = 256


class Known(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run remembers of its compactions, as its checkpoints keep it.

    `tries`: those it waited for since its context was last below the threshold. `blocked`: it waited for one at all.
    `beside`: the size at which it began one beside it. While it waits for one, `since` is the newest id before that,
    and `overflow` what its model said, where it had refused the request.
    """

    tries: int = 0
    blocked: bool = False
    beside: int | None = None
    since: int | None = None
    overflow: str | None = None

    def kept(self) -> dict[str, Any]:
        """For a checkpoint: nothing, where there is nothing to remember."""
        return {} if self == Known() else {"known": msgspec.to_builtins(self)}


def known_in(data: Mapping[str, Any]) -> Known:
    """What a checkpoint keeps of it."""
    kept = data.get("known")
    return Known() if kept is None else msgspec.convert(kept, Known)


class Fits(msgspec.Struct, frozen=True):
    """The request can be pinned."""

    known: Known


class Waits(msgspec.Struct, frozen=True):
    """The run waits for this compaction."""

    task: Task
    known: Known


class Stuck(msgspec.Struct, frozen=True):
    """The run ends: this does not fit."""

    detail: str


async def weigh(
    harness: Harness, tx: InvocationTransaction, settings: Settings, system: str, tools: Sequence[str], known: Known
) -> Fits | Waits | Stuck:
    """Judge the next request of a run. `known` is what it remembered when it went on to it."""
    conversation, returning = tx.invocation.conversation, known.since is not None
    window = harness.window(settings.model)
    if not returning and (window is None or not settings.compaction):
        return Fits(known)
    if returning:
        placed = await _head_since(tx, conversation, known.since or 0)
        if known.overflow is not None:
            told = f"{known.overflow}. Nothing was summarised."
            found = Stuck(f"{told} {shares(await transcript_of(tx, conversation), _fixed(harness, system, tools))}")
            return Fits(Known(blocked=True, tries=MOST_TRIES)) if placed else found
        tries = known.tries if placed else MOST_TRIES  # refused, failed or stopped: it would be again
        known = Known(tries=tries, blocked=True, beside=known.beside)
        if window is None:
            return Fits(known)
    assert window is not None
    limits = thresholds(settings, window)
    size = await _size(harness, tx, conversation)
    whole = size.estimated + (size.measured or 0)
    if size.measured is None and size.estimated > limits.keep:  # else nothing could be cut off
        whole += sum(_fixed(harness, system, tools))
    if (limits.background is None or whole < limits.background) and whole < limits.blocking:
        return Fits(known if not known.tries else msgspec.structs.replace(known, tries=0))
    return await _judged(harness, tx, limits, whole, known, _fixed(harness, system, tools))


async def _judged(
    harness: Harness,
    tx: InvocationTransaction,
    limits: Thresholds,
    size: int,
    known: Known,
    fixed: tuple[int, int],
) -> Fits | Waits | Stuck:
    conversation = tx.invocation.conversation
    entries = await transcript_of(tx, conversation)
    open = await open_rounds(tx, conversation)
    tries = known.tries if size >= limits.blocking else 0
    running = any(task.kind == COMPACT for task in tx.candidate.scope(conversation))
    running = running or not accepts_work(tx, conversation)

    def cut(keep: int) -> Cut | None:
        return choose(entries, keep, open=open)

    verdict = judge(size, limits, cut, tries=tries, running=running, begun_at=known.beside)
    match verdict:
        case First(keep):
            task = start_compaction(harness, tx, conversation, reason="threshold", keep=keep, owner=tx.invocation)
            return Waits(task, Known(tries=tries + 1, blocked=True, beside=known.beside, since=task.id))
        case Beside(keep):
            start_compaction(harness, tx, conversation, reason="background", keep=keep)
            return Fits(Known(tries=tries, blocked=known.blocked, beside=size))
        case Full():
            told = f"the context has about {size:,} tokens, the model takes {limits.window:,}"
            return Stuck(f"{told}. {shares(entries, fixed)}")
        case _:
            return Fits(msgspec.structs.replace(known, tries=tries))


async def overflowed(
    harness: Harness, tx: InvocationTransaction, told: str, system: str, tools: Sequence[str], known: Known
) -> Waits | Stuck:
    """The model refused a request as too large: the run waits for a compaction, once (H34), or ends."""
    conversation = tx.invocation.conversation
    settings = await harness.settings(tx, conversation)
    entries = await transcript_of(tx, conversation)
    fixed = _fixed(harness, system, tools)
    stuck = Stuck(f"{told}. {shares(entries, fixed)}")
    if known.blocked or not settings.compaction:
        return stuck
    window = harness.window(settings.model)
    whole = sum(map(tokens.of_entry, entries))
    usual = settings.compaction_keep_recent if window is None else thresholds(settings, window).keep
    wishes = (min(usual, whole // 2), 0)  # the estimate was wrong, or the window is smaller than it was said to be
    keep = next((wish for wish in wishes if choose(entries, wish) is not None), None)
    if keep is None:
        return stuck
    task = start_compaction(harness, tx, conversation, reason="overflow", keep=keep, owner=tx.invocation)
    return Waits(task, Known(blocked=True, since=task.id, overflow=told))


# -- sizes ------------------------------------------------------------------------------------------


class Size(msgspec.Struct, frozen=True):
    """`measured` is what the newest answer under the present head came to, `estimated` what came after it, or all."""

    measured: int | None
    estimated: int


#: Of an answer's entry: how large the context was after it, in tokens.
CONTEXT = "context"


def context_after(usage: Usage | None) -> dict[str, int]:
    """What an answer's entry keeps of its size."""
    size = tokens.measured(usage)
    return {} if size is None else {CONTEXT: size}


async def _size(harness: Harness, tx: InvocationTransaction, conversation: ConversationId) -> Size:
    transcript = await tx.transcript(conversation)
    staged = [entry for entry in tx.entries if entry.conversation == conversation]
    if any(entry.head is not None for entry in staged):
        return Size(None, sum(map(tokens.of_entry, await transcript_of(tx, conversation))))
    head = 0 if transcript.head is None else transcript.head.id
    since = 0
    for entry in chain(reversed(staged), reversed(transcript.entries)):
        if entry.id <= head:
            break  # what was measured before the head says nothing of what is left
        measured = _measured(entry)
        if measured is not None:
            return Size(measured, since)
        since += tokens.of_entry(entry)
    return Size(None, harness.sizes.of(conversation, transcript.entries) + sum(map(tokens.of_entry, staged)))


def _measured(entry: Entry) -> int | None:
    data = entry.data
    if not entry.messages or not isinstance(data, dict):
        return None
    found: object = data.get(CONTEXT)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return found if isinstance(found, int) else None


class Sizes:
    """Estimated sizes of transcripts: a cache, so that a round estimates what it added."""

    def __init__(self) -> None:
        #: First and last entry, their number, and the estimate.
        self._kept: dict[ConversationId, tuple[Entry, Entry, int, int]] = {}

    def of(self, conversation: ConversationId, entries: Sequence[Entry]) -> int:
        """The tokens of an active transcript."""
        if not entries:
            return 0
        kept = self._kept.pop(conversation, None)
        begin, whole = 0, 0
        if kept is not None:
            first, last, count, size = kept
            if count <= len(entries) and entries[0] is first and entries[count - 1] is last:
                begin, whole = count, size
        whole += sum(map(tokens.of_entry, entries[begin:]))
        self._kept[conversation] = (entries[0], entries[-1], len(entries), whole)
        if len(self._kept) > KEEP:
            del self._kept[next(iter(self._kept))]
        return whole


def _fixed(harness: Harness, system: str, tools: Sequence[str]) -> tuple[int, int]:
    """The tokens of the system prompt and of the tools; a tool that cannot be described has none."""
    try:
        return tokens.of_text(system), tokens.of_tools(harness.installed.specs(harness.installed.offered(tools)))
    except PerdureError:
        return tokens.of_text(system), 0


async def _head_since(tx: InvocationTransaction, conversation: ConversationId, since: int) -> bool:
    """Whether a head was placed after that id."""
    staged = any(entry.head is not None for entry in tx.entries if entry.conversation == conversation)
    head = (await tx.transcript(conversation)).head
    return staged or (head is not None and head.id > since)


def shares(entries: Iterable[Entry], fixed: tuple[int, int]) -> str:
    """What a context is made of, for whoever has to make it smaller."""
    listed = [(tokens.of_entry(entry), entry) for entry in entries]
    size, largest = max(listed, key=lambda each: each[0], default=(0, None))
    parts = [f"system prompt {fixed[0]:,}", f"tools {fixed[1]:,}", f"messages {sum(each for each, _ in listed):,}"]
    told = f"In tokens, about: {', '.join(parts)}"
    if largest is None:
        return told
    name = next((f" of {message.name}" for message in largest.messages if isinstance(message, ToolMessage)), "")
    return f"{told}; the largest of them is entry {largest.id} ({largest.kind}{name}) with {size:,}"
