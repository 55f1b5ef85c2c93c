"""Attending a conversation: everything that is new in it becomes events, whoever asked for it."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.app.looking import ReadSession
from perdure.commands.following import STEADY_TRIES, asks_of, waits_of
from perdure.commands.sinks import Sink
from perdure.commands.trail import Event, Trail, facts
from perdure.harness.stored import GENERATION, USER
from perdure.messages import text_of
from perdure.records import Entry
from perdure.surface.settled import Settled


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a conversation at one point of the line."""

    entries: list[Entry]
    run: int | None
    live: dict[str, Any] | None
    settled: dict[int, Settled]
    waits: list[Event]
    asks: list[Event]


class Attending:
    """Follows one conversation from an entry on. `open` are the submissions of this process that are not settled."""

    def __init__(self, reader: ReadSession, sink: Sink, conversation: int, last: int) -> None:
        self._reader = reader
        self._sink = sink
        self._last = last
        self._trail = Trail()
        self._run: int | None = None
        self.id = conversation
        self.open: dict[int, None] = {}
        self._mine: dict[int, None] = {}

    def expect(self, submission: int) -> None:
        """One more submission of this process."""
        self.open[submission] = None
        self._mine[submission] = None

    async def look(self) -> Look:
        """Read, and tell what is new. Settled submissions are told once."""
        storage, key = self._reader.storage, self._reader.key
        before, found = await storage.head(key), await self._read()
        for _ in range(STEADY_TRIES):
            after = await storage.head(key)
            if after == before:
                break
            before, found = after, await self._read()
        for entry in found.entries:
            self._tell(entry)
        if found.live is not None and found.run is not None:
            self._turn_to(found.run)
            for event in self._trail.live(found.live):
                self._sink.emit(event)
        for id in found.settled:
            self.open.pop(id, None)
        return found

    async def _read(self) -> Look:
        view = await self._reader.glance(live=True)
        inspection = view.inspect()
        settled = {id: how for id in self.open if (how := await self._reader.submission(id).settled()) is not None}
        chat = await view.find(self.id)
        run = next((t.id for t in inspection.tasks if t.kind == GENERATION and t.conversation == self.id), None)
        entries: list[Entry] = []
        before: Any = None
        while page := await chat.entries(before=before, limit=50):
            entries.extend(entry for entry in page if entry.id > self._last)
            if page[-1].id <= self._last:
                break
            before = page[-1].id
        return Look(
            entries=entries[::-1],
            run=run,
            live=await chat.live(),
            settled=settled,
            waits=waits_of(view, inspection, self.id),
            asks=asks_of(inspection, self.id),
        )

    def _tell(self, entry: Entry) -> None:
        self._last = entry.id
        data = facts(entry)
        if entry.kind == USER.name and data.get("submission") not in self._mine:
            text = " ".join(map(text_of, entry.messages))
            self._sink.emit({"type": "note", "text": f"from another shell: {text}"})
        if (run := data.get("run")) is not None:
            self._turn_to(run)
        for event in self._trail.entry(entry):
            self._sink.emit(event)

    def _turn_to(self, run: int) -> None:
        if run != self._run:
            self._run, self._trail = run, Trail()
