"""`perdure run`: hand a prompt in, work here or follow the session's owner, and end with how it was settled."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import click
import msgspec

from perdure.app.handing_in import HandedIn, HandInSession, answer_of, described
from perdure.app.opening import Store, store
from perdure.app.session import Session
from perdure.clock import Clock, SystemClock
from perdure.commands.choosing import Chosen
from perdure.commands.chosen import check_model, preflight
from perdure.commands.following import Following, beside, first_of
from perdure.commands.installed import Installed, install
from perdure.commands.options import Means, Place, as_json_option, equipped, named, placed, seconds
from perdure.commands.others import Others
from perdure.commands.output import Output
from perdure.commands.picking import pick
from perdure.commands.private import hide_secrets, keep_private
from perdure.commands.remembered import (
    check_before_taking_over,
    refuse_missing_tools,
    remember,
    taken_over,
)
from perdure.commands.sides import Here, Side, There
from perdure.commands.signals import Signals
from perdure.commands.sinks import Lines, Person, Sink
from perdure.commands.staying import stay
from perdure.commands.text import argument
from perdure.commands.trail import Event
from perdure.errors import Fenced, NotFound, OwnerGone, PerdureError, SessionOwned, UsageError
from perdure.harness.job import JOB
from perdure.surface.settled import Answered, NotAnswered

DONE, FAILED, WAITS, ABORTED = 0, 1, 3, 130

#: What asks for an abort; everything else that stops a run leaves it to be resumed.
ABORTING = ("SIGINT", "timeout")


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is handed in."""

    prompt: str
    conversation: str | None
    request_id: str | None
    timeout: float | None


@click.command()
@click.argument("prompt")
@placed
@equipped
@click.option(
    "--conversation",
    metavar="KEY",
    callback=named,
    help="The conversation, made if new; the root by default.",
)
@click.option("--request-id", metavar="ID", callback=named, help="Repeat a run with the same id, and it is done once.")
@click.option("--timeout", metavar="SECONDS", callback=seconds, help="Abort the run when it takes longer.")
@as_json_option
def run(prompt: str, place: Place, means: Means, json: bool, **ask: Any) -> int:
    """Give the agent a task and watch it work. PROMPT is the task; - reads it from standard input.

    What the model says goes to standard output; its tool calls and their results, one line each, to standard error.
    Where another process works in the session, the prompt is handed in to it and followed from here; the process that
    it was handed in to goes on until it is done.

    \b
    Exit codes: 0 answered, 1 failed, 2 usage, 3 waits for an answer or is held, 130 aborted.
    Ctrl-C aborts the run (twice: leaves at once, to be resumed). SIGTERM leaves in order, to be resumed.
    """
    ask["timeout"] = ask["timeout"] or means.configuration["timeout"]
    asked = Ask(prompt=_prompt(prompt), **ask)
    installed = install(means.tools, means.allow, means.ask, means.configuration["permissions"])
    clock = SystemClock()
    preflight(means.model, means.configuration, clock)
    hide_secrets()
    with Output() as output:
        sink = Lines(output) if json else Person(output)
        return asyncio.run(_main(output, lambda: Running(place, means, asked, installed, sink, clock)))


def _prompt(prompt: str) -> str:
    text = _read_stdin() if prompt == "-" else argument(prompt)
    if not text.strip():
        source = "standard input" if prompt == "-" else "PROMPT"
        raise UsageError(f"{source} is empty: say what to do")
    return text


def _read_stdin() -> str:
    """All of standard input as UTF-8; nothing where it is closed."""
    if sys.stdin is None:
        return ""
    return sys.stdin.buffer.read().decode("utf-8-sig", errors="replace")


async def _main(output: Output, make: Callable[[], Running]) -> int:
    async with Signals() as signals:
        running = make()
        signals.first.add_done_callback(lambda first: running.stop(first.result().name))
        output.on_closed(lambda: running.stop("SIGPIPE"))
        try:
            return await running.run()
        except PerdureError as error:
            code = 2 if isinstance(error, UsageError | NotFound) else FAILED
            running.end({"status": "failed", "error": type(error).__name__, "message": str(error), "exit": code})
            raise


async def _at_once() -> None:
    """Nobody relies on who only follows."""


class Running:
    """One `perdure run`. It is asked to stop once, by a signal's name or `timeout`."""

    def __init__(self, place: Place, means: Means, ask: Ask, installed: Installed, sink: Sink, clock: Clock) -> None:
        self._place = place
        self._means = means
        self._ask = ask
        self._installed = installed
        self._sink = sink
        self._clock = clock
        self._stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        #: From here on something may be in the store, so a stop has to be carried out there.
        self._accepting = False
        self._submission: int | None = None
        self._handed: HandedIn | None = None
        self._others: Others | None = None

    def stop(self, why: str) -> None:
        """Ask it to end."""
        if not self._stop.done():
            self._stop.set_result(why)

    def end(self, event: Event) -> None:
        """Emit the last event."""
        known = {"session": self._place.session, "submission": self._submission}
        self._sink.emit({"type": "end", **known, **event})

    async def run(self) -> int:
        """Work to the end; the exit code."""
        timer = None
        if self._ask.timeout is not None:
            timer = asyncio.ensure_future(self._clock.sleep(self._ask.timeout))
            timer.add_done_callback(lambda slept: None if slept.cancelled() else self.stop("timeout"))
        work = asyncio.get_running_loop().create_task(self._work())
        try:
            await first_of(work, self._stop)
            if self._accepting or work.done():
                return await work
            work.cancel()
            await asyncio.wait([work])
            if not work.cancelled():
                return work.result()
            return self._left(self._stop.result(), "nothing was accepted")
        finally:
            if timer is not None:
                timer.cancel()

    async def _work(self) -> int:
        """Here, or where the session's owner is; again where that changes (K1a)."""
        take_over = self._means.take_over
        async with self._opened() as opened:
            if closed := keep_private(self._place.store):
                self._note(closed)
            reader = opened.hand_in(self._place.session)
            following = Following(reader, self._sink)
            while True:
                if take_over:
                    await check_before_taking_over(reader, self._installed.registry)
                async with AsyncExitStack() as stack:
                    model = await self._choose(reader)
                    owning = opened.session(
                        self._place.session, take_over=take_over, kill=self._means.kill, model=model.name
                    )
                    try:
                        session = await stack.enter_async_context(owning)
                    except SessionOwned:
                        pass
                    else:
                        return await self._here(session, reader, following, model)
                take_over = False
                try:
                    return await self._there(reader, following)
                except OwnerGone:
                    self._note("the owner of the session is gone: going on here")

    async def _choose(self, reader: HandInSession) -> Chosen:
        """Who answers. Raises UsageError where it cannot be asked from here."""
        model = await pick(reader, self._means.model, self._means.configuration, self._ask.conversation)
        check_model(model.name, self._clock)
        return model

    def _opened(self) -> AbstractAsyncContextManager[Store]:
        means = self._means
        registry = self._installed.registry
        return store(self._place.store, clock=self._clock, directory=means.directory, registry=registry)

    async def _here(self, session: Session, reader: HandInSession, following: Following, model: Chosen) -> int:
        """In a session of our own."""
        if self._submission is None and self._handed is not None:  # it was taken when the session was opened
            self._accepted(answer_of(await reader.inbound(self._handed.id)), model)
        try:
            await refuse_missing_tools(reader, session.inspect(), self._installed.registry)
        except UsageError as error:
            if self._submission is None:
                raise
            return self._kept(str(error))
        self._accepting = True
        before = session.inspect().submissions
        self._others = Others(reader, (item for item in before if item.id != self._submission), self._note)
        if self._submission is None:
            key = self._ask.conversation
            chat = await session.root() if key is None else await session.conversation(key)
            await remember(chat, model, self._installed.needs)
            submitted = await chat.submit(self._ask.prompt, request_id=self._ask.request_id)
            self._accepted({"submission": submitted.id, "conversation": chat.id}, model)
        assert self._submission is not None
        await self._others.begin()
        await session.resume()
        side = Here(session, self._submission, self._clock, self._note)
        try:
            return await self._follow(following, side, lambda: self._stay(session, reader))
        except Fenced as fenced:
            owner = (await reader.info()).owner
            text = taken_over(session.key, owner and described(owner), self._submission)
            raise Fenced(text) from fenced

    async def _there(self, reader: HandInSession, following: Following) -> int:
        """In the session of another process."""
        if self._handed is None:
            self._handed = await self._hand_in(reader)
        if self._submission is None:
            taken = asyncio.ensure_future(self._handed.taken())
            await first_of(taken, self._stop)
            if not taken.done() and self._stop.result() not in ABORTING:
                taken.cancel()
                return self._left(self._stop.result(), f"it stays handed in, and {There.afterwards}")
            self._accepted(await taken)
        assert self._submission is not None
        try:
            return await self._follow(following, There(reader), _at_once)
        except OwnerGone:
            look = await following.look(self._submission)  # it may have been the last thing that the owner did
            if look.settled is None:
                raise
            return self._settled(look.settled)

    async def _hand_in(self, reader: HandInSession) -> HandedIn:
        owner = (await reader.info()).owner
        if owner is None:
            raise OwnerGone(f"session {reader.key!r} has no owner any more")
        self._note(f"session {reader.key!r} is owned by {described(owner)}: the prompt is handed in to it")
        if self._means.model or self._installed.needs:
            self._note("its owner answers with its own model and tools, not with those given here")
        key = self._ask.conversation
        chat = await reader.root() if key is None else await reader.conversation(key)
        self._accepting = True
        handed = await chat.submit(self._ask.prompt, request_id=self._ask.request_id)
        self._sink.emit({"type": "handed_in", "session": reader.key, "item": handed.id, "owner": owner})
        return handed

    async def _stay(self, session: Session, reader: HandInSession) -> None:
        """Who handed something in relies on this process and its tools: it goes on until that is settled."""
        assert self._submission is not None
        await stay(session, reader, self._submission, self._stop, Here(session, None, self._clock, self._note))
        await self._tell_others()
        jobs = sum(task.kind == JOB for task in session.inspect().tasks)
        if jobs:
            self._note(f"{jobs} in the background ended with this process; perdure chat keeps them while it is open")

    async def _tell_others(self) -> None:
        if self._others is not None:
            await self._others.end()

    async def _follow(self, following: Following, side: Side, before_end: Callable[[], Awaitable[None]]) -> int:
        """Tell what happens until it is settled, waits, or is left; the exit code."""
        assert self._submission is not None
        aborting: asyncio.Future[None] | None = None
        try:
            while True:
                look = await following.look(self._submission)
                if look.settled is not None:
                    await before_end()
                    return self._settled(look.settled)
                if look.waits and aborting is None:
                    await before_end()
                    self.end({"status": "waiting", "waits": look.waits, "exit": WAITS})
                    return WAITS
                if self._stop.done() and aborting is None:
                    if self._stop.result() not in ABORTING:
                        await self._tell_others()
                        return self._left(self._stop.result(), side.afterwards)
                    self._note(f"{self._reason()}: aborting")
                    aborting = beside(side.abort(self._submission, self._reason()))
                if aborting is None:
                    await first_of(side.changed(), self._stop)
                else:
                    await side.changed()
                    if aborting.done():
                        aborting.result()
        finally:
            side.close()

    def _accepted(self, answer: dict[str, Any], model: Chosen | None = None) -> None:
        """It is durable; `model` answers it where that is done here."""
        self._submission = answer["submission"]
        event = {"type": "accepted", "session": self._place.session, "request_id": self._ask.request_id}
        self._sink.emit({**event, **answer, **({} if model is None else {"model": model})})

    def _note(self, text: str) -> None:
        self._sink.emit({"type": "note", "text": text})

    def _reason(self) -> str:
        return (
            f"the time limit of {self._ask.timeout:g} s passed" if self._stop.result() == "timeout" else "interrupted"
        )

    def _settled(self, settled: Answered | NotAnswered) -> int:
        if isinstance(settled, Answered):
            answer = None if settled.answer is None else {"entry": settled.answer.id, "text": settled.text}
            self.end({"status": "done", "entry": settled.entry, "answer": answer, "exit": DONE})
            return DONE
        timed_out = self._stop.done() and self._stop.result() == "timeout"
        code = ABORTED if settled.reason == "aborted" and not timed_out else FAILED
        self.end({"status": "unanswered", "reason": settled.reason, "detail": settled.detail, "exit": code})
        return code

    def _kept(self, why: str) -> int:
        """The owner that it was handed in to is gone, and what else is unfinished cannot be gone on with here."""
        what = f"the prompt is kept as submission {self._submission}, but its owner is gone: {why}"
        wait = {"submission": self._submission, "what": what, "remedy": "perdure resume with that goes on with both"}
        self.end({"status": "waiting", "waits": [wait], "exit": WAITS})
        return WAITS

    def _left(self, why: str, remedy: str) -> int:
        code = FAILED if why == "timeout" else 128 + signal.Signals[why]
        self.end({"status": "stopped", "signal": why, "remedy": remedy, "exit": code})
        return code
