"""What a session keeps, and for how long (K47)."""

from __future__ import annotations

from perdure.harness.conversation import ConversationHandle
from perdure.records import ConversationId
from perdure.session.line import Line, forbid_inside_commit
from perdure.session.retention import Deleted, Pruned, delete_conversation, prune


class Keeping:
    """Deletion and pruning, for a session."""

    _line: Line

    async def delete(self, conversation: ConversationHandle | int) -> Deleted:
        """Delete a conversation and those that its tasks own; forks keep what they see of it.

        Durable on return, and finished by the next call where a crash interrupts it. The key is free again.
        Raises NotFound; TaskRefused while it has live work (background included) or queued submissions.
        """
        forbid_inside_commit("delete()")
        id = conversation if isinstance(conversation, int) else conversation.id
        return await delete_conversation(self._line, ConversationId(id))

    async def prune(self, *, older_than: float) -> Pruned:
        """Forget ended tasks, settled submissions and consumed inbound items that are older than so many seconds.

        Repeated request ids are still recognised. Entries and documents stay: delete their conversation.
        """
        forbid_inside_commit("prune()")
        return await prune(self._line, self._line.clock.now() - older_than)
