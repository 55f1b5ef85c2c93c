"""Where a transcript may be cut, and what is cut off (H27): pure.

A cut keeps everything from an entry on. It never separates a call from its result, the attempts at one answer from each
other, or anything from a round that still runs: those stretches stay whole, on one side.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec

from perdure.harness import tokens
from perdure.messages import AssistantMessage, ToolMessage, UserMessage, call_key, calls_of
from perdure.records import Entry, EntryId


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A place to cut: `first` is the oldest entry that is kept, `index` where it stands in the transcript.

    `older` and `kept` are the estimated tokens of what comes before it and of the rest.
    """

    first: EntryId
    index: int
    older: int
    kept: int


def choose(entries: Sequence[Entry], keep: int, *, open: Set[int] = frozenset()) -> Cut | None:
    """The furthest cut of an active transcript that keeps at least `keep` tokens, and the last stretch in any case.

    `open`: assistant entries whose calls still run. None where nothing would be cut off that says something, beside the
    head that a summary stands for already.
    """
    sizes = [tokens.of_entry(entry) for entry in entries]
    begin = 1 if entries and entries[0].head is not None else 0
    kept = 0
    for start, end in reversed(stretches(entries, begin, open)):
        kept += sum(sizes[start:end])
        if kept >= keep:
            fresh = sum(sizes[begin:start])
            if not fresh:
                return None
            return Cut(first=entries[start].id, index=start, older=fresh + sum(sizes[:begin]), kept=kept)
    return None


def newest_turn(entries: Sequence[Entry]) -> int:
    """The tokens of the newest thing that a user said, and of all that came after it."""
    spoken = (at for at in reversed(range(len(entries))) if _is_said(entries[at]))
    return sum(map(tokens.of_entry, entries[next(spoken, len(entries)) :]))


def _is_said(entry: Entry) -> bool:
    return any(isinstance(message, UserMessage) for message in entry.messages)


def stretches(entries: Sequence[Entry], begin: int = 0, open: Set[int] = frozenset()) -> list[tuple[int, int]]:
    """What stays together, as (first, one past the last), in order and without gaps from `begin` on."""
    reach = _reaches(entries, begin, open)
    found: list[tuple[int, int]] = []
    start, last = begin, begin
    for index in range(begin, len(entries)):
        if index > last:
            found.append((start, index))
            start = last = index
        last = max(last, reach[index])
    if begin < len(entries):
        found.append((start, len(entries)))
    return found


def _reaches(entries: Sequence[Entry], begin: int, open: Set[int]) -> list[int]:
    """For each entry the last one that it must not be separated from."""
    results: dict[str, int] = {}
    attempts: dict[tuple[object, object], int] = {}
    for index in range(begin, len(entries)):
        for message in entries[index].messages:
            if isinstance(message, ToolMessage):
                results[message.call] = index  # the last one: none is left alone behind
            elif isinstance(message, AssistantMessage):
                attempts[_answer_of(entries[index])] = index
    return [_reach(entries, index, results, attempts, open) for index in range(len(entries))]


def _reach(
    entries: Sequence[Entry],
    index: int,
    results: dict[str, int],
    attempts: dict[tuple[object, object], int],
    open: Set[int],
) -> int:
    entry = entries[index]
    if entry.id in open:
        return len(entries) - 1
    last = index
    count = 0
    for message in entry.messages:
        if isinstance(message, AssistantMessage):
            last = max(last, attempts.get(_answer_of(entry), index))
            for _ in calls_of(message):
                found = results.get(call_key(entry.id, count))
                last = max(last, _end_of_round(entries, index) if found is None else found)
                count += 1
    return last


def _answer_of(entry: Entry) -> tuple[object, object]:
    """What tells the attempts at one answer from others: run and round; an entry without them stands for itself."""
    data = entry.data
    if isinstance(data, dict) and "run" in data:
        return data["run"], data.get("round")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return "entry", entry.id


def _end_of_round(entries: Sequence[Entry], index: int) -> int:
    """The last entry before somebody speaks again: of a call whose result nobody ever wrote."""
    for later in range(index + 1, len(entries)):
        if any(isinstance(message, UserMessage | AssistantMessage) for message in entries[later].messages):
            return later - 1
    return len(entries) - 1
