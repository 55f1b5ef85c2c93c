"""What a session keeps: the tree of its conversations, for how long, and what all of it used (K15, K47, H17)."""

from __future__ import annotations

from typing import Any

from perdure.harness.conversation import ConversationHandle
from perdure.harness.stored import USAGE_TOTAL
from perdure.harness.tree import Branch, tree
from perdure.harness.usage import shown, summed
from perdure.records import ConversationId
from perdure.session.line import Line, forbid_inside_commit
from perdure.session.reading import snapshot
from perdure.session.retention import Deleted, Pruned, delete_conversation, prunable, prune


class Keeping:
    """Looking over all conversations, deletion and pruning, for a session."""

    _line: Line

    async def tree(self, *, limit: int = 1000) -> list[Branch]:
        """The conversations as trees, the oldest first: forks below what they left, owned ones below their owners.

        At most `limit` of the newest conversations, and all that they stand below.
        """
        return await tree(self._line, limit=limit)

    async def usage(self) -> dict[str, Any]:
        """What all conversations used together (H17), those that were deleted included."""
        total = await snapshot(self._line, USAGE_TOTAL, 0, "")
        return shown(await summed(self._line) if total is None else total)

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

    async def prunable(self, *, older_than: float) -> Pruned:
        """What `prune` would forget now. Changes nothing."""
        return await prunable(self._line, self._line.clock.now() - older_than)
