"""Commands of a chat, over a session of this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import perdure
from perdure.app.handing_in import HandInSession
from perdure.app.session import Session
from perdure.clock import SystemClock
from perdure.commands.attending import Attending
from perdure.commands.choosing import Chosen
from perdure.commands.links import Link, Own, WhenBusy
from perdure.commands.slash import SlashCommands
from perdure.testing.scripted import ScriptedModel, answer, say, wait

pytestmark = pytest.mark.anyio


class Nowhere:
    def emit(self, event: object) -> None:
        pass


class Talk:
    """A chat that keeps what it is told."""

    def __init__(self, reader: HandInSession, conversation: int) -> None:
        self.reader = reader
        self.attending: Attending | None = Attending(reader, Nowhere(), conversation, 0)
        self.notes: list[str] = []

    async def say(self, link: Link, text: str, when_busy: WhenBusy = "follow_up") -> None:
        raise NotImplementedError

    def note(self, text: str) -> None:
        self.notes.append(text)

    def abort(self, link: Link) -> None:
        raise NotImplementedError

    def leave(self, why: str) -> None:
        raise NotImplementedError

    def open_anew(self, model: str) -> None:
        raise NotImplementedError


def link_to(session: Session) -> Own:
    return Own(session, Chosen(name="demo", by="flag", why="-"), {}, SystemClock(), lambda text: None)


async def test_what_is_taken_back_is_named_and_a_word_for_the_next_step_is_told_apart(tmp_path: Path) -> None:
    done = asyncio.Event()
    model = ScriptedModel([answer(wait(done), say("Hi"))])
    async with perdure.store(str(tmp_path / "s.db"), model=model) as opened, opened.session("main") as session:
        chat = await session.root()
        await chat.submit("Hello")
        talk, link = Talk(opened.hand_in("main"), chat.id), link_to(session)
        assert talk.attending is not None
        talk.attending.expect((await chat.submit("and then this")).id)
        talk.attending.expect((await chat.submit("quicker", when_busy="steer")).id)
        await SlashCommands(talk).act(link, "/unqueue")
        await SlashCommands(talk).act(link, "/unqueue")
        link.close()
        done.set()
    assert talk.notes == [
        "taken back: and then this",
        "taken back, which was said with /steer: quicker",
        "nothing waits for its turn",
    ]
