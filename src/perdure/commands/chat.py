"""`perdure chat`: talk with the agent line by line, over a terminal or a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime

import click

from perdure.app.handing_in import HandInSession
from perdure.app.opening import store
from perdure.clock import Clock, SystemClock
from perdure.commands.chatting import Chatting
from perdure.commands.chosen import preflight
from perdure.commands.installed import install
from perdure.commands.keyboard import Keyboard, Redirected
from perdure.commands.options import Means, Place, equipped, named, placed
from perdure.commands.output import Output
from perdure.commands.private import hide_secrets, keep_private
from perdure.commands.settings import GUARDED
from perdure.commands.signals import Interrupts
from perdure.errors import NotFound, UsageError


@click.command()
@placed
@equipped
@click.option("--conversation", metavar="KEY", callback=named, help="The conversation, made if new.")
@click.option("-c", "--continue", "go_on", is_flag=True, help="Go on with the conversation that was changed last.")
def chat(place: Place, means: Means, conversation: str | None, go_on: bool) -> int:
    """Talk with the agent: each line is a prompt. Without an option it is a new conversation.

    A line that ends with a backslash goes on in the next; a block stands between lines of three quotation marks.
    /help lists the commands. What the model says goes to standard output, everything else to standard error.
    On a terminal a line that comes while the agent works waits for its turn (/steer TEXT reaches it before).
    Over a pipe, lines are taken one after another.

    \b
    Exit codes: 0 all were answered, 1 one failed, 2 usage, 3 one waits for an answer or is held, 130 left by Ctrl-C.
    Ctrl-C stops what is running, twice leaves. What is unfinished then goes on with perdure resume.
    """
    if go_on and conversation is not None:
        raise click.UsageError("--continue finds the conversation, --conversation names it: give one of them")
    ask = (*means.ask, *(name for name in GUARDED if name not in (*means.allow, *means.ask)))
    installed = install(means.tools, means.allow, ask, means.configuration["permissions"], guarded=True)
    clock = SystemClock()
    preflight(means.model, means.configuration, clock)
    hide_secrets()

    async def talk(output: Output) -> int:
        async with (
            store(place.store, clock=clock, directory=means.directory, registry=installed.registry) as opened,
            Interrupts() as interrupts,
        ):
            reader = opened.hand_in(place.session)
            where = await newest(reader) if go_on else conversation or new_key(clock)
            with Keyboard(os.environ) as keyboard:
                interrupts.restore = keyboard.restore
                if keyboard.for_person:
                    sys.stdout = Redirected()
                chatting = Chatting(opened, reader, means, installed, output, keyboard, clock, where)
                interrupts.on_signal(chatting.signalled)
                output.on_closed(lambda: chatting.leave("SIGPIPE"))
                if closed := keep_private(place.store):
                    chatting.note(closed)
                return await chatting.run()

    with Output() as output:
        return asyncio.run(talk(output))


def new_key(clock: Clock) -> str:
    """The key of a conversation that begins now."""
    began = datetime.fromtimestamp(clock.now(), UTC).astimezone()
    return f"chat-{began:%Y%m%d-%H%M%S}-{clock.uuid7()[-4:]}"


async def newest(reader: HandInSession) -> int:
    """The conversation that was changed last. Raises UsageError where there is none."""
    try:
        page = await reader.conversations(limit=50)
    except NotFound:
        page = []
    found: list[tuple[int, int]] = []
    for each in page:
        entries = await (await reader.find(each.id)).entries(limit=1)
        found.append((entries[0].id if entries else 0, each.id))
    if not found:
        raise UsageError("there is no conversation to go on with: leave --continue out")
    return max(found)[1]
