"""Reads what a request will show while the commit before it is being flushed: a head start, nothing depends on it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.errors import PerdureError
from perdure.records import ConversationId

if TYPE_CHECKING:
    from perdure.harness.harness import Harness

#: Transcripts that are read ahead at a time: what a session opens with may be many.
AHEAD = 8


class Warming:
    """Transcripts being read ahead. What goes wrong here is met again, and told, by the request itself."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._reading: dict[ConversationId, asyncio.Task[None]] = {}

    def begin(self, conversation: ConversationId, model: str | None) -> None:
        """Read the transcript that is not in memory, and render it for a model. The conversation is in memory."""
        memory = self._harness.line.memory
        known = memory.transcripts.get(conversation) is not None or conversation in self._reading
        if known or len(self._reading) >= AHEAD:
            return
        work = self._read(conversation, model)
        reading = self._reading[conversation] = self._harness.scheduler.spawn(work, f"perdure warming {conversation}")
        reading.add_done_callback(lambda _: self._reading.pop(conversation, None))

    async def wait(self, conversation: ConversationId) -> None:
        """Wait for a reading that was begun."""
        reading = self._reading.get(conversation)
        if reading is not None:
            await asyncio.wait([reading])

    async def _read(self, conversation: ConversationId, model: str | None) -> None:
        memory = self._harness.line.memory
        with suppress(PerdureError):
            record = memory.tip.conversations.get(conversation)
            if record is None:
                return
            transcript = await memory.transcript(record)
            if model is not None and memory.transcripts.get(conversation) is transcript:
                self._harness.renderings.request(conversation, transcript.entries, model)
