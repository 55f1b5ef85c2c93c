"""What a transaction is judged by before it is admitted, so that storage has nothing to refuse (K8)."""

from __future__ import annotations

from perdure.errors import TaskRefused, UsageError
from perdure.records import Conversation, ConversationId, Entry, EntryId, Task
from perdure.session.transaction import Transaction


def in_memory(tx: Transaction) -> bool:
    """Whether `judge` has nothing to read."""
    if tx.candidate.conversations:
        return False
    known = tx.memory.tip.conversations
    for entry in tx.entries:
        if entry.conversation not in known or entry.head is not None:
            return False
    tasks = tx.candidate.tasks
    return not tasks or all(task.id < tx.floor or task.conversation in known for task in tasks.values())


async def judge(tx: Transaction) -> None:
    """Refuse what cannot be: missing conversations, used keys, stale heads. May read storage."""
    floors: dict[ConversationId, EntryId | None] = {}
    for entry in tx.entries:
        await tx.use(entry.conversation)
        if entry.head is not None:
            await _judge_head(tx, entry, entry.head, floors)
    for task in tx.candidate.tasks.values():
        if task.id >= tx.floor:
            _judge_owner(tx, task, await tx.use(task.conversation))
    keys: dict[str, None] = {}
    for conversation in tx.candidate.conversations.values():
        if conversation.key is not None and not conversation.deleted:
            if conversation.key in keys or await _used(tx, conversation.key, conversation.id):
                raise UsageError(
                    f"key {conversation.key!r} belongs to another conversation: look it up with find_conversation()"
                )
            keys[conversation.key] = None


def _judge_owner(tx: Transaction, task: Task, conversation: Conversation) -> None:
    """Conversations of live tasks are in memory, and were judged when the task was made."""
    owner = conversation.owner
    if owner is not None and tx.candidate.task(owner) is None:
        raise TaskRefused(
            f"conversation {conversation.id} belongs to task {owner}, which has ended: "
            f"it takes no new work such as {task.kind!r} (K29); fork it to go on"
        )


async def _used(tx: Transaction, key: str, id: ConversationId) -> bool:
    """Whether another conversation has the key, when this commit is through."""
    known = tx.memory.tip.keys.get(key)
    if known is not None:
        return known not in tx.candidate.conversations
    if key in tx.unused or id in tx.memory.tip.conversations:
        return False
    stored = await tx.memory.by_key(key)
    return stored is not None and stored.id not in tx.candidate.conversations


async def _judge_head(
    tx: Transaction, entry: Entry, head: EntryId, floors: dict[ConversationId, EntryId | None]
) -> None:
    where = entry.conversation
    if where not in floors:
        new = where in tx.candidate.conversations and where >= tx.floor
        floors[where] = None if new else (await tx.transcript(where)).floor
    floor = floors[where]
    if head != entry.id:
        if floor is not None and head < floor:
            raise TaskRefused(f"head {head} is stale: the transcript already starts at entry {floor}")
        await tx.visible(where, head)
    floors[where] = head
