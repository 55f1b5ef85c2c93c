"""One chat: lines become prompts, commands and answers; what the conversation says is shown as it comes."""

from __future__ import annotations

import asyncio
import getpass
import signal
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Any

from perdure.app.handing_in import HandInSession, described
from perdure.app.opening import Store
from perdure.clock import Clock
from perdure.commands.asking import answer_of, is_answer, told
from perdure.commands.attending import Attending, Look
from perdure.commands.choosing import Chosen
from perdure.commands.chosen import check_model
from perdure.commands.following import beside, first_of
from perdure.commands.installed import Installed
from perdure.commands.keyboard import Keyboard
from perdure.commands.lines import Lines
from perdure.commands.links import Link, Own, Theirs, WhenBusy
from perdure.commands.options import Means
from perdure.commands.output import Output
from perdure.commands.picking import pick
from perdure.commands.remembered import check_before_taking_over, refuse_missing_tools, taken_over
from perdure.commands.sinks import Person
from perdure.commands.slash import SlashCommands
from perdure.commands.trail import Event
from perdure.errors import Fenced, NotFound, OwnerGone, PerdureError, SessionOwned, StorageError
from perdure.surface.settled import NotAnswered, Settled

DONE, FAILED, USAGE, WAITS, ABORTED = 0, 1, 2, 3, 130


class Chatting:
    """`conversation` is a key, which need not be there yet, or an id."""

    def __init__(
        self,
        opened: Store,
        reader: HandInSession,
        means: Means,
        installed: Installed,
        output: Output,
        keyboard: Keyboard,
        clock: Clock,
        conversation: str | int,
    ) -> None:
        self._opened = opened
        self._means = means
        self._installed = installed
        self._keyboard = keyboard
        self._clock = clock
        self._lines = Lines()
        self._sink = Person(output)
        self._slash = SlashCommands(self)
        self._line: asyncio.Future[str | None] | None = None
        self._left: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._aborting: asyncio.Future[None] | None = None
        self._interrupted = False
        #: What was said to wait, and the question that the next line answers.
        self._told: dict[str, None] = {}
        self._question: Event | None = None
        self._busy = False
        self._code = DONE
        self.reader = reader
        self.conversation = conversation
        self.attending: Attending | None = None
        self.link: Link | None = None
        #: Who answers from now on, as /model said.
        self.asked_model: str | None = None
        self._reopen = False

    # -- the chat ---------------------------------------------------------------------------

    async def run(self) -> int:
        """Until the last line, or until it is left; the exit code."""
        take_over = self._means.take_over
        while True:
            async with AsyncExitStack() as stack:
                self.link = await self._connect(stack, take_over=take_over)
                take_over = self._reopen = False
                try:
                    if await self._serve(self.link):
                        return self._ended(self.link)
                except OwnerGone:
                    self.note("the owner of the session is gone: going on here")
                except Fenced:
                    owner = (await self.reader.info()).owner
                    self.note(taken_over(self.reader.key, owner and described(owner), None))
                finally:
                    self.link.close()

    async def _connect(self, stack: AsyncExitStack, *, take_over: bool) -> Link:
        """Open the session, or hand things in to whoever has it."""
        if take_over:
            await check_before_taking_over(self.reader, self._installed.registry)
        key = self.conversation if isinstance(self.conversation, str) else None
        number = None if key is not None else int(self.conversation)
        model = await pick(self.reader, self.asked_model or self._means.model, self._means.configuration, key, number)
        check_model(model.name, self._clock)
        owning = self._opened.session(self.reader.key, take_over=take_over, kill=self._means.kill, model=model.name)
        try:
            session = await stack.enter_async_context(owning)
        except SessionOwned:
            owner = (await self.reader.info()).owner
            whose = described(owner) if owner is not None else "another process"
            self.note(
                f"session {self.reader.key!r} is owned by {whose}, which answers: what is said is handed in to it"
            )
            return Theirs(self.reader)
        await refuse_missing_tools(self.reader, session.inspect(), self._installed.registry)
        self._say(model)
        await self._attend_known()
        await session.resume()
        return Own(session, model, self._installed.needs, self._clock, self.note)

    async def _attend_known(self) -> None:
        """From the newest entry of a conversation that is there already."""
        if self.attending is not None:
            return
        try:
            name = self.conversation
            id = (await self.reader.find_key(name)).id if isinstance(name, str) else name
            newest = await (await self.reader.find(id)).entries(limit=1)
        except NotFound:
            return
        last = newest[0].id if newest else 0
        self.attending = Attending(self.reader, self._sink, id, last)
        if last:
            self.note(f"going on with conversation {name} (perdure show {name} has what was said)")

    async def _serve(self, link: Link) -> bool:
        """Take lines and show what happens; False where the session has to be opened anew."""
        await self._attend_known()
        while True:
            look = None if self.attending is None else await self.attending.look()
            self._show(look)
            if self._left.done() or (self._reopen and not self._busy):
                return self._left.done()
            if self._line is None and self._takes_lines():
                self._line = asyncio.ensure_future(self._keyboard.next())
            waited: list[Awaitable[Any]] = [self._left, link.changed()]
            await first_of(*waited, *([] if self._line is None else [self._line]))
            if self._aborting is not None and self._aborting.done():
                self._aborting.result()
                self._aborting = None
            if self._line is not None and self._line.done():
                line, self._line = self._line.result(), None
                await self._take(link, line)

    def _takes_lines(self) -> bool:
        """A person may say something at any time; lines of a pipe wait until what was said is settled, or asks."""
        return self._keyboard.for_person or not self._busy or self._question is not None

    # -- what comes in ----------------------------------------------------------------------

    async def _take(self, link: Link, line: str | None) -> None:
        self._interrupted = False
        whole = self._lines.end() if line is None else self._lines.line(line)
        try:
            if whole is not None and whole.strip():
                await self._act(link, whole)
        except (StorageError, OwnerGone, Fenced):
            raise
        except PerdureError as error:
            self._wrong(str(error))
        if line is None:
            self._close_input()

    def _close_input(self) -> None:
        """There are no more lines: a person leaves at once, a pipe when everything is settled."""
        if self._keyboard.for_person or not self._busy or self._question is not None:
            self.leave("end")

    async def _act(self, link: Link, text: str) -> None:
        if text.startswith("/") and not text.startswith("//") and "\n" not in text:
            await self._slash.act(link, text)
        elif self._question is not None:
            await self._answer(link, text)
        else:
            await self.say(link, text.removeprefix("/") if text.startswith("//") else text)

    async def say(self, link: Link, text: str, when_busy: WhenBusy = "follow_up") -> None:
        """Hand a prompt to the conversation."""
        waits = self._busy
        id, submission = await link.submit(self.conversation, text, when_busy)
        if self.attending is None:
            self.attending = Attending(self.reader, self._sink, id, 0)
        self.conversation = id
        self.attending.expect(submission)
        self._busy = True
        if waits:
            self.note("it is told with the next step" if when_busy == "steer" else "it waits for its turn")

    async def _answer(self, link: Link, text: str) -> None:
        question = self._question
        assert question is not None
        if not is_answer(question, text):
            self.note(f"{question['call']['name']} is denied")
            await self.say(link, text, "steer")
            return
        await link.answer(question["question"], answer_of(question, text), _user())
        self._question = None

    # -- what goes out ----------------------------------------------------------------------

    def _show(self, look: Look | None) -> None:
        if look is None:
            self._busy = False
            return
        for how in look.settled.values():
            self._settled(how)
        assert self.attending is not None
        before, self._busy = self._busy, bool(self.attending.open) or look.run is not None
        self._question = look.asks[0] if look.asks else None
        if self._question is not None:
            self._tell_once(self._question["what"], told(self._question))
        waiting = self._busy and bool(look.waits)
        for wait in look.waits if waiting else ():
            if "question" not in wait:
                self._tell_once(wait["what"], f"{wait['what']}; {wait['remedy'].replace('perdure retry', '/retry')}")
        if waiting and not look.asks:
            self._code = WAITS
            self._busy = self._keyboard.for_person  # over a pipe, nothing would ever move it
        if before and not self._busy:
            self._sink.rest()

    def _tell_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told[what] = None
            self.note(text)

    def _settled(self, how: Settled) -> None:
        if isinstance(how, NotAnswered):
            self.note(f"not answered ({how.reason}): {how.detail}")
            self._code = ABORTED if how.reason == "aborted" else FAILED

    def note(self, text: str) -> None:
        """One line to the person."""
        self._sink.emit({"type": "note", "text": text})

    def _wrong(self, text: str) -> None:
        """A line could not be acted on."""
        self.note(text)
        self._code = USAGE

    def _say(self, model: Chosen) -> None:
        self.note(model.line)

    # -- how it ends ------------------------------------------------------------------------

    def leave(self, why: str) -> None:
        """Ask it to end: by a signal's name, or `end`."""
        if not self._left.done():
            self._left.set_result(why)

    def open_anew(self, model: str) -> None:
        """Open the session with another model, when nothing runs."""
        check_model(model, self._clock)
        self.asked_model, self._reopen = model, True
        if self._busy:
            self.note("from the next prompt after this one is done")

    def signalled(self, name: str) -> bool:
        """A signal came; says whether the process leaves."""
        if name == "SIGINT" and not self._interrupted:
            self._interrupted = True
            self._lines.drop()
            if self._busy and self.attending is not None and self.link is not None:
                self.note("aborting; Ctrl-C again leaves")
                self.abort(self.link)
            else:
                self.note("Ctrl-C again leaves")
            return False
        self.leave(name)
        return True

    def abort(self, link: Link) -> None:
        """Stop what runs in the conversation."""
        if self.attending is not None and self._aborting is None:
            self._aborting = beside(link.abort(self.attending.id))

    def _ended(self, link: Link) -> int:
        why = self._left.result()
        if self._line is not None:
            self._line.cancel()
        self._sink.rest()
        unfinished = self.attending is not None and bool(self.attending.open)
        if unfinished:
            self.note(f"it is not finished: {link.afterwards}")
        if why not in ("end", "quit"):
            return 128 + signal.Signals[why]
        if self._keyboard.for_person:
            return DONE
        return WAITS if (unfinished or self._question is not None) and self._code == DONE else self._code


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return None
