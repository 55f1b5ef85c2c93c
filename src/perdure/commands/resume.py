"""`perdure resume`: go on with what is unfinished, until the session is idle or waits for someone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

import click

from perdure.app.handing_in import HandInSession, described
from perdure.app.opening import store
from perdure.app.session import Session
from perdure.clock import Clock, SystemClock
from perdure.commands.choosing import Chosen
from perdure.commands.chosen import check_model, chosen, preflight
from perdure.commands.following import asks_of, first_of, going_on, waits_of
from perdure.commands.installed import install
from perdure.commands.looked_at import looking
from perdure.commands.options import Means, Place, as_json_option, equipped, placed
from perdure.commands.output import Output
from perdure.commands.private import hide_secrets, keep_private
from perdure.commands.remembered import (
    asked_before,
    check_before_taking_over,
    model_of_session,
    refuse_missing_tools,
    taken_over,
)
from perdure.commands.settings import GUARDED
from perdure.commands.sides import Here, Side, There
from perdure.commands.signals import Signals
from perdure.commands.sinks import Lines, Person, Sink
from perdure.commands.trail import Event
from perdure.errors import Fenced, NotFound, OwnerGone, SessionOwned
from perdure.harness.registry import Registry
from perdure.surface.settled import Answered
from perdure.tasks.inspection import Inspection

IDLE, FAILED, WAITS = 0, 1, 3


@click.command()
@placed
@equipped
@as_json_option
def resume(place: Place, means: Means, json: bool) -> int:
    """Go on with the unfinished work of the session, until it is idle or waits for someone.

    Give it the tools that the work was started with. Where another process works in the session, it is watched.

    \b
    Exit codes: 0 idle, 1 an input failed, 2 usage, 3 waits for an answer or is held.
    Ctrl-C and SIGTERM leave in order; what is unfinished is resumed later.
    """
    registry = _installed(means, ())
    clock = SystemClock()
    preflight(means.model, means.configuration, clock)
    hide_secrets()
    with Output() as output:
        sink = Lines(output) if json else Person(output)
        return asyncio.run(_main(output, place, means, registry, sink, clock))


async def _main(output: Output, place: Place, means: Means, registry: Registry, sink: Sink, clock: Clock) -> int:
    async with Signals() as signals:
        stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def stop(why: str) -> None:
            if not stopped.done():
                stopped.set_result(why)

        signals.first.add_done_callback(lambda first: stop(first.result().name))
        output.on_closed(lambda: stop("SIGPIPE"))
        async with looking(place) as session:  # one that is not there is not made
            asked = await asked_before(session)
        if asked:
            registry = _installed(means, [name for name in asked if name in GUARDED or name in registry.tools])
        return await Resuming(place, means, registry, sink, clock, stopped).run()


def _installed(means: Means, asked: Sequence[str]) -> Registry:
    """What is offered; also what the work may use that is asked about each time: nobody has to allow that again."""
    ask = dict.fromkeys((*means.ask, *(name for name in asked if name not in means.allow)))
    return install(means.tools, means.allow, tuple(ask), means.configuration["permissions"]).registry


class Resuming:
    """One `perdure resume`: the inputs that were unfinished at its start, and how each was settled."""

    def __init__(
        self,
        place: Place,
        means: Means,
        registry: Registry,
        sink: Sink,
        clock: Clock,
        stopped: asyncio.Future[str],
    ) -> None:
        self._place = place
        self._means = means
        self._registry = registry
        self._sink = sink
        self._clock = clock
        self._stopped = stopped
        #: Inputs that were seen unfinished and are not settled yet.
        self._open: dict[int, None] = {}
        self._seen = False
        self._failed = 0
        self._answered = 0

    async def run(self) -> int:
        """The exit code."""
        means, place, take_over = self._means, self._place, self._means.take_over
        opening = store(place.store, clock=self._clock, directory=means.directory, registry=self._registry)
        async with opening as opened:
            if closed := keep_private(place.store):
                self._note(closed)
            reader = opened.hand_in(place.session)
            self._note_open(await reader.inspect())
            while True:
                if take_over:
                    await check_before_taking_over(reader, self._registry)
                async with AsyncExitStack() as stack:
                    model = await self._choose(reader)
                    owning = opened.session(place.session, take_over=take_over, kill=means.kill, model=model.name)
                    try:
                        session = await stack.enter_async_context(owning)
                    except SessionOwned:
                        pass
                    else:
                        return await self._here(session, reader, model)
                take_over = False
                try:
                    return await self._there(reader)
                except OwnerGone:
                    self._note("the owner of the session is gone: going on here")

    async def _choose(self, reader: HandInSession) -> Chosen:
        """Who answers: whoever did so before. Raises UsageError where it cannot be asked from here."""
        started = None if self._means.model else await model_of_session(reader)
        model = started or await chosen(self._means.model, self._means.configuration, None, os.environ)
        check_model(model.name, self._clock)
        return model

    async def _here(self, session: Session, reader: HandInSession, model: Chosen) -> int:
        await refuse_missing_tools(reader, session.inspect(), self._registry)
        self._note_open(session.inspect())  # with what was handed in meanwhile
        if self._seen:
            self._sink.emit({"type": "resumed", "session": session.key, "model": model})
        await session.resume()
        try:
            return await self._watch(reader, Here(session, None, self._clock, self._note))
        except Fenced as fenced:
            owner = (await reader.info()).owner
            raise Fenced(taken_over(session.key, owner and described(owner), None)) from fenced

    async def _there(self, reader: HandInSession) -> int:
        owner = (await reader.info()).owner
        if owner is None:
            raise OwnerGone(f"session {reader.key!r} has no owner any more")
        self._note(f"session {reader.key!r} is worked on by {described(owner)}: watching it")
        return await self._watch(reader, There(reader))

    async def _watch(self, reader: HandInSession, side: Side) -> int:
        try:
            while True:
                view = await reader.glance(live=True)
                inspection = view.inspect()
                self._note_open(inspection)
                for id in list(self._open):
                    await self._settle(reader, id)
                if not going_on(view, inspection):
                    asks = asks_of(inspection, None)  # of background work, for which nothing waits
                    return self._end({"status": "waiting", "waits": asks}, WAITS) if asks else self._idle(side)
                waits = waits_of(view, inspection, None)
                if waits:
                    return self._end({"status": "waiting", "waits": waits}, WAITS)
                if self._stopped.done():
                    why = self._stopped.result()
                    event = {"status": "stopped", "signal": why, "remedy": side.afterwards}
                    return self._end(event, 128 + signal.Signals[why])
                await first_of(side.changed(), self._stopped)
        finally:
            side.close()

    def _note_open(self, inspection: Inspection) -> None:
        self._seen = self._seen or bool(inspection.submissions or inspection.tasks)
        self._open.update(dict.fromkeys(item.id for item in inspection.submissions))

    async def _settle(self, reader: HandInSession, id: int) -> None:
        """Tell how an input was settled, once."""
        try:
            settled = await reader.submission(id).settled()
            conversation = (await reader.submission(id).record()).conversation
        except NotFound:
            del self._open[id]
            return
        if settled is None:
            return
        del self._open[id]
        event: Event = {"type": "settled", "submission": id, "conversation": conversation}
        if isinstance(settled, Answered):
            self._answered += 1
            self._sink.emit({**event, "status": "done", "text": settled.text})
        else:
            self._failed += settled.reason != "aborted"
            self._sink.emit({**event, "status": "unanswered", "reason": settled.reason, "detail": settled.detail})

    def _idle(self, side: Side) -> int:
        for id in self._open:
            self._note(f"input {id} stays in its inbox: the next input of its conversation lets it go first")
        if not self._seen:
            self._note("there is nothing to resume")
        return self._end({"status": "idle", "queued": list(self._open)}, FAILED if self._failed else IDLE)

    def _end(self, event: Event, code: int) -> int:
        counts = {"answered": self._answered, "failed": self._failed}
        self._sink.emit({"type": "end", "session": self._place.session, **counts, **event, "exit": code})
        return code

    def _note(self, text: str) -> None:
        self._sink.emit({"type": "note", "text": text})
