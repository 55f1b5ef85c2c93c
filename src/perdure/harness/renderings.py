"""What was rendered of the transcripts in memory: a cache, nothing depends on what is in it."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.harness.context import Rendered, rendered
from perdure.messages import Message
from perdure.records import ConversationId, Entry

#: Conversations whose last rendering is kept, and entries from which on it is worth it.
KEEP = 256
SHORT = 8


class Renderings:
    """Renders the requests of a session. A round and a run cost what they added, however long their conversation is."""

    def __init__(self) -> None:
        self._kept: dict[ConversationId, Rendered] = {}

    def request(self, conversation: ConversationId, entries: Sequence[Entry], model: str) -> tuple[Message, ...]:
        """As `render`."""
        made = rendered(entries, model=model, before=self._kept.pop(conversation, None))
        if len(entries) >= SHORT and made.settled:
            self._kept[conversation] = made
            if len(self._kept) > KEEP:
                del self._kept[next(iter(self._kept))]
        return made.request()
