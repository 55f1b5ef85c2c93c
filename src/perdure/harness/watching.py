"""How a conversation is watched: its view, its frames, its agent events (K43, H30)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.harness.feed import EVENTS
from perdure.harness.view import conversation_projection
from perdure.records import ConversationId
from perdure.surface.events import Events
from perdure.surface.frames import Frame
from perdure.views.frame import FRAMES
from perdure.views.watch import Reader, View, Watch

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


class Watched:
    """What a conversation offers to readers. None of it starts any work (K39)."""

    _harness: Harness
    id: ConversationId

    def view(self) -> View:
        """Its committed state, to be read at any time: `async with chat.view() as view: view.value` (K43).

        Opening it raises NotFound, SessionClosed. It follows each commit until the block is left, the session closes or
        the conversation is deleted. `perdure.surface.ConversationView` says what is in it.
        """
        return View(self._join)

    def watch(self) -> Watch[Frame]:
        """Its newest whole state, then exactly what each commit does to it, in order (H30).

        `async with chat.watch() as watch: async for frame in watch`. Opening it raises as `view`.
        A reader that falls 100 frames behind is given the newest whole state instead of them; see `Watch`.
        `perdure.Replica` follows the frames.
        """
        return Watch(self._join, FRAMES)

    def events(self) -> Watch[Events]:
        """What happens in it, in batches, one a commit, after a snapshot (H30). Opening it raises as `view`.

        A reader that falls 100 batches behind is given a new snapshot instead of them.
        """
        return Watch(self._join, EVENTS)

    async def _join(self, reader: Reader) -> Any:
        return await self._harness.views.join(self.id, conversation_projection(self.id), reader)
