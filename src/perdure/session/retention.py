"""Deleting conversations and pruning by age (K47): commits of bounded size, each maybe the last before a crash.

A deletion is decided by one commit, which leaves tombstones and notes them in a document of the session.
What they leave behind is then removed page by page; the note goes last, so that whoever prunes or deletes next goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.errors import TaskRefused
from perdure.records import (
    ROOT,
    Conversation,
    ConversationId,
    Document,
    EntryId,
    Inbound,
    Submission,
    Task,
    TaskId,
    decode_conversation,
    decode_entry,
    decode_inbound,
    decode_submission,
    decode_task,
    encode,
)
from perdure.session.documents import declare
from perdure.session.transaction import Transaction
from perdure.settle.state import State
from perdure.storage import PutSubmission, Remove, RemoveEntries, Write

if TYPE_CHECKING:
    from perdure.session.line import Line

#: At most so many rows go in one commit.
PAGE = 200
#: Tombstones whose leftovers are not removed yet, by conversation id.
DELETIONS = declare("perdure.deletions", scope="session", initial=lambda: {"open": []})


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What a deletion did: the conversations, owned ones first, and how many rows of theirs went.

    `kept` are those of them that left a tombstone, because forks see their entries.
    """

    conversations: tuple[ConversationId, ...] = ()
    kept: tuple[ConversationId, ...] = ()
    submissions: int = 0
    documents: int = 0


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows were pruned. Of a submission with a request id, what tells a repeated request stays."""

    tasks: int = 0
    submissions: int = 0
    inbound: int = 0


async def delete_conversation(line: Line, id: ConversationId) -> Deleted:
    """Delete a conversation and those that tasks of it own. Raises NotFound; TaskRefused while it has live work."""
    _not_root(id)
    await finish_deletions(line)
    await line.memory.conversation(id)
    doomed = await _with_owned(line, id)
    for start in range(0, len(doomed), PAGE):  # owned ones first: after a crash, the same call finds the rest
        async with line.commit(Transaction) as tx:
            await _judge(tx, doomed[start:])
            await _doom(tx, doomed[start : start + PAGE])
    removed = await finish_deletions(line)
    return msgspec.structs.replace(removed, conversations=tuple(doomed))


async def decide_deletion(tx: Transaction, id: ConversationId) -> Deleted:
    """The deciding commit alone, as a part of another one; `finish_deletions` removes what is left behind.

    Refuses what `delete_conversation` does, and more conversations than one commit takes, before it stages anything.
    """
    _not_root(id)
    await tx.use(id)
    await tx.line.flushed()
    doomed = await _with_owned(tx.line, id)
    if len(doomed) > PAGE:
        raise TaskRefused(f"conversation {id} owns {len(doomed) - 1} others: delete them from the owner of the session")
    await _judge(tx, doomed)
    await _doom(tx, doomed)
    return Deleted(conversations=tuple(doomed))


def _not_root(id: ConversationId) -> None:
    if id == ROOT:
        raise TaskRefused("the root conversation stays: delete conversations that you made by key, or by a fork")


async def _doom(tx: Transaction, doomed: Sequence[ConversationId]) -> None:
    noted = await tx.doc(DELETIONS)
    for each in doomed:
        conversation = await tx.use(each)
        tx.candidate.put_conversation(msgspec.structs.replace(conversation, key=None, title=None, deleted=True))
        noted["open"].append(int(each))


async def _with_owned(line: Line, id: ConversationId) -> list[ConversationId]:
    """The conversation and all that its tasks own, directly or through conversations: owned ones first."""
    owned = [each async for each in _conversations(line) if each.owner is not None]
    homes: dict[TaskId, ConversationId] = {}
    owners = sorted({each.owner for each in owned if each.owner is not None})
    for start in range(0, len(owners), PAGE):
        for body in await line.storage.read_tasks(line.session, owners[start : start + PAGE]):
            task = decode_task(body, line.session)
            homes[task.id] = task.conversation
    doomed: dict[ConversationId, None] = {id: None}
    for each in sorted(owned, key=lambda each: each.id):  # what owns is older than what it owns
        if each.owner is not None and homes.get(each.owner) in doomed:
            doomed[each.id] = None
    return sorted(doomed, key=lambda each: (each == id, -each))


async def _conversations(line: Line) -> AsyncIterator[Conversation]:
    before: int | None = None
    while bodies := await line.storage.scan_conversations(line.session, before=before, limit=PAGE):
        for body in bodies:
            conversation = decode_conversation(body, line.session)
            before = conversation.id
            yield conversation


async def _judge(tx: Transaction, doomed: Sequence[ConversationId]) -> None:
    """Refuse to delete what has work, background included (K47)."""
    tip = tx.memory.tip
    for id in doomed:
        conversation = await tx.use(id)
        if conversation.owner is not None and conversation.owner in tip.tasks:
            raise TaskRefused(f"conversation {id} belongs to task {conversation.owner}, which is live: abort it first")
        for task in tip.scopes.get(id, ()):
            kind = tip.tasks[task].kind
            raise TaskRefused(f"conversation {id} has live work, task {task} ({kind!r}): wait for it, or abort it")
        for item in tip.queued.get(id, ()):
            raise TaskRefused(f"conversation {id} has a queued submission, {item}: let it run, or withdraw it first")


# -- what tombstones leave behind ------------------------------------------------------------------


async def finish_deletions(line: Line) -> Deleted:
    """Remove what deleted conversations left behind, also those of a deletion that a crash interrupted."""
    kept: list[ConversationId] = []
    submissions = documents = 0
    while True:
        async with line.commit(Transaction) as tx:
            noted = await tx.snapshot(DELETIONS)
        if not noted or not noted["open"]:
            return Deleted(kept=tuple(kept), submissions=submissions, documents=documents)
        id = ConversationId(noted["open"][0])
        submissions += await _remove_submissions(line, id)
        documents += await _remove_documents(line, id)
        await _remove_entries(line, id)
        if await _close_tombstone(line, id):
            kept.append(id)


async def _remove_submissions(line: Line, id: ConversationId) -> int:
    count = 0
    while bodies := await line.storage.scan_submissions(line.session, live=False, conversation=id, limit=PAGE):
        writes: list[Write] = [Remove("submission", decode_submission(body, line.session).id) for body in bodies]
        await _remove(line, writes)
        count += len(writes)
    return count


async def _remove_documents(line: Line, id: ConversationId) -> int:
    """All but what forks read through ancestry."""
    forked = bool(await line.storage.forks_of(line.session, id))
    count = 0
    page: list[Write] = []
    async for record in line.memory.shelves.records(("conversation", id), retired=True):
        if not (forked and record.history == "rewindable"):
            page.append(Remove("document", record.id))
        if len(page) == PAGE:
            await _remove(line, page)
            count, page = count + len(page), []
    await _remove(line, page)
    return count + len(page)


async def _remove_entries(line: Line, id: ConversationId) -> None:
    """Those that no fork sees, newest first."""
    forks = [decode_conversation(each, line.session) for each in await line.storage.forks_of(line.session, id)]
    through = max((each.parent.entry for each in forks if each.parent is not None), default=EntryId(0))
    while bodies := await line.storage.scan_entries(line.session, id, limit=PAGE):
        oldest = decode_entry(bodies[-1], line.session).id
        if decode_entry(bodies[0], line.session).id <= through:
            return
        await _remove(line, [RemoveEntries(id, max(through, EntryId(oldest - 1)))])


async def _close_tombstone(line: Line, id: ConversationId) -> bool:
    """The note goes, and the tombstone where no fork needs it. Says whether it stays."""
    async with line.commit(Transaction) as tx:
        await line.flushed()
        noted = await tx.doc(DELETIONS)
        if int(id) not in noted["open"]:
            return False  # somebody else was here
        noted["open"].remove(int(id))
        body = await line.storage.read_conversation(line.session, id)
        if body is None:
            return False
        if await line.storage.forks_of(line.session, id):
            return True
        tx.removes.append(Remove("conversation", id))
        await _free_parent(tx, decode_conversation(body, line.session), noted["open"])
        return False


async def _free_parent(tx: Transaction, gone: Conversation, open: list[int]) -> None:
    """A deleted parent whose last fork went has nobody left to be kept for."""
    if gone.parent is None or int(gone.parent.conversation) in open:
        return
    parent = await tx.memory.ancestor(gone.parent.conversation)
    if parent is not None and parent.deleted:
        open.append(int(parent.id))


async def _remove(line: Line, writes: Sequence[Write]) -> None:
    if writes:
        async with line.commit(Transaction) as tx:
            tx.removes.extend(writes)


# -- age -------------------------------------------------------------------------------------------


async def prune(line: Line, before: float) -> Pruned:
    """Forget ended tasks, settled submissions and consumed inbound items from before then, in seconds since the epoch.

    Stays: what live work still asks for, tasks that own conversations, and of each submission with a request id
    what tells a repeated request from a new one.
    """
    await finish_deletions(line)
    return Pruned(
        tasks=await _prune_tasks(line, before),
        submissions=await _prune_submissions(line, before),
        inbound=await _prune_inbound(line, before),
    )


async def prunable(line: Line, before: float) -> Pruned:
    """How many rows `prune` would remove. Changes nothing, and needs no right to write."""
    tasks = submissions = inbound = 0
    async for page in _old_tasks(line, before):
        owners = await _owners(line, page)
        tasks += sum(_forgotten(line.memory.tip, task, owners) for task in page)
    async for items in _old_submissions(line, before):
        submissions += len(items)
    async for taken in _old_inbound(line, before):
        inbound += len(taken)
    return Pruned(tasks=tasks, submissions=submissions, inbound=inbound)


async def _old_tasks(line: Line, before: float) -> AsyncIterator[list[Task]]:
    after = 0
    while bodies := await line.storage.scan_tasks(
        line.session, live=False, after=after, limit=PAGE, ended_before=before
    ):
        tasks = [decode_task(body, line.session) for body in bodies]
        after = tasks[-1].id
        yield tasks


async def _owners(line: Line, tasks: Sequence[Task]) -> dict[TaskId | None, None]:
    """Those of these tasks that own conversations."""
    owned = await line.storage.owned_conversations(line.session, [task.id for task in tasks])
    return {decode_conversation(body, line.session).owner: None for body in owned}


def _forgotten(tip: State, task: Task, owners: Mapping[TaskId | None, None]) -> bool:
    """Whether nobody asks for an ended task any more."""
    return task.id not in tip.waiters and task.id not in owners and task.owner not in tip.tasks


async def _prune_tasks(line: Line, before: float) -> int:
    count = 0
    async for tasks in _old_tasks(line, before):
        documents = [each for task in tasks for each in await _documents(line, task)]
        owners = await _owners(line, tasks)
        async with line.commit(Transaction) as tx:
            gone = {task.id: None for task in tasks if _forgotten(tx.memory.tip, task, owners)}
            tx.removes.extend(Remove("document", each.id) for each in documents if each.owner in gone)
            tx.removes.extend(Remove("task", id) for id in gone)
        count += len(gone)
    return count


async def _documents(line: Line, task: Task) -> list[Document]:
    return [record async for record in line.memory.shelves.records(("task", task.id), retired=True)]


async def _old_submissions(line: Line, before: float) -> AsyncIterator[list[Submission]]:
    """Pages of them; what is removed or loses its age meanwhile is no part of the next one."""
    after = 0
    while bodies := await line.storage.scan_submissions(
        line.session, live=False, after=after, limit=PAGE, ended_before=before
    ):
        items = [decode_submission(body, line.session) for body in bodies]
        after = items[-1].id
        yield items


async def _prune_submissions(line: Line, before: float) -> int:
    count = 0
    async for items in _old_submissions(line, before):
        await _remove(line, [_pruned(item) for item in items])
        count += len(items)
    return count


def _pruned(item: Submission) -> Write:
    """Without a request id it goes. With one it stays, but without an age it is not looked at again."""
    if item.request_id is None:
        return Remove("submission", item.id)
    kept = msgspec.structs.replace(item, content=None)
    return PutSubmission(item.id, item.conversation, item.request_id, False, None, encode(kept))


async def _old_inbound(line: Line, before: float) -> AsyncIterator[list[Inbound]]:
    after = ""
    while bodies := await line.storage.scan_inbound(line.session, taken=True, after=after, limit=PAGE):
        items = [decode_inbound(body, line.session) for body in bodies]
        after = items[-1].id
        yield [item for item in items if item.at < before]


async def _prune_inbound(line: Line, before: float) -> int:
    count = 0
    async for items in _old_inbound(line, before):
        await _remove(line, [Remove("inbound", item.id) for item in items])
        count += len(items)
    return count


__all__ = [
    "Deleted",
    "Pruned",
    "decide_deletion",
    "delete_conversation",
    "finish_deletions",
    "prunable",
    "prune",
]
