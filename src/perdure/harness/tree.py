"""The tree of a session's conversations: forks below what they left, owned ones below the tasks that own them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.records import (
    Conversation,
    ConversationId,
    ForkPoint,
    TaskId,
    decode_conversation,
    decode_task,
)

if TYPE_CHECKING:
    from perdure.session.line import Line

#: At most so many rows are read at a time.
PAGE = 500


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in the tree.

    `under` is the conversation that it stands below: the one whose task (`owner`) it was made for, else the one that it
    was `forked` from. `entries` are its own, without those that it sees of others. `deleted`: it is kept for its forks.
    """

    id: ConversationId
    at: float
    key: str | None
    title: str | None
    under: ConversationId | None
    forked: ForkPoint | None
    owner: TaskId | None
    entries: int
    deleted: bool
    below: tuple[Branch, ...] = ()

    def walk(self) -> Iterator[tuple[int, Branch]]:
        """It and all below it, with the depth of each, in the order of a picture."""
        left: list[tuple[int, Branch]] = [(0, self)]
        while left:
            depth, branch = left.pop()
            yield depth, branch
            left.extend((depth + 1, each) for each in reversed(branch.below))


async def tree(line: Line, *, limit: int) -> list[Branch]:
    """The newest conversations with all that they stand below, as trees; the oldest first."""
    found = {each.id: each for each in await _newest(line, limit)}
    homes: dict[TaskId, ConversationId] = {}
    fresh = list(found.values())
    while fresh:
        homes.update(await _homes(line, [each.owner for each in fresh if each.owner is not None]))
        above = {_under(each, homes) for each in fresh} - {None} - found.keys()
        fresh = [
            each for id in sorted(above, key=lambda id: id or 0) if id and (each := await line.memory.ancestor(id))
        ]
        found.update((each.id, each) for each in fresh)
    return _planted(found.values(), homes, await _counts(line, sorted(found)))


async def _newest(line: Line, limit: int) -> list[Conversation]:
    found: list[Conversation] = []
    while len(found) < limit:
        before = found[-1].id if found else None
        bodies = await line.storage.scan_conversations(line.session, before=before, limit=min(PAGE, limit - len(found)))
        found.extend(decode_conversation(body, line.session) for body in bodies)
        if not bodies:
            break
    return found


async def _homes(line: Line, tasks: Sequence[TaskId]) -> dict[TaskId, ConversationId]:
    """The conversations that these tasks live in."""
    homes: dict[TaskId, ConversationId] = {}
    for start in range(0, len(tasks), PAGE):
        for body in await line.storage.read_tasks(line.session, tasks[start : start + PAGE]):
            task = decode_task(body, line.session)
            homes[task.id] = task.conversation
    return homes


async def _counts(line: Line, ids: Sequence[ConversationId]) -> dict[ConversationId, int]:
    counts: dict[ConversationId, int] = {}
    for start in range(0, len(ids), PAGE):
        counts.update(await line.storage.count_entries(line.session, ids[start : start + PAGE]))
    return counts


def _under(one: Conversation, homes: dict[TaskId, ConversationId]) -> ConversationId | None:
    home = None if one.owner is None else homes.get(one.owner)
    return home if home is not None or one.parent is None else one.parent.conversation


def _planted(
    conversations: Iterable[Conversation],
    homes: dict[TaskId, ConversationId],
    counts: dict[ConversationId, int],
) -> list[Branch]:
    """What stands below is younger: from the youngest on, whatever a branch holds is whole when it is made."""
    below: dict[ConversationId | None, list[Branch]] = {}
    known = {each.id for each in conversations}
    for one in sorted(conversations, key=lambda each: each.id, reverse=True):
        under = _under(one, homes)
        branch = Branch(
            id=one.id,
            at=one.at,
            key=one.key,
            title=one.title,
            under=under,
            forked=one.parent,
            owner=one.owner,
            entries=counts.get(one.id, 0),
            deleted=one.deleted,
            below=tuple(reversed(below.pop(one.id, []))),
        )
        below.setdefault(under if under in known else None, []).append(branch)
    return below.get(None, [])[::-1]


__all__ = ["Branch", "tree"]
