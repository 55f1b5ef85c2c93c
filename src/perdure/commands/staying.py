"""Staying for what others handed in: they rely on the session's owner, and may lack the tools of its other work."""

from __future__ import annotations

import asyncio
import contextlib

from perdure.app.handing_in import HandInSession
from perdure.app.session import Session
from perdure.commands.following import first_of, moving
from perdure.commands.sides import Here
from perdure.errors import Fenced


async def stay(session: Session, reader: HandInSession, own: int, stop: asyncio.Future[str], side: Here) -> None:
    """Work until no input that came after `own` goes on by itself, or until it is asked to stop or was fenced off."""
    told = False
    try:
        with contextlib.suppress(Fenced):  # whoever took the session over goes on with it
            while not stop.done() and await _relied_on(session, reader, own):
                if not told:
                    side.note("going on with what other shells handed in; Ctrl-C leaves it to them")
                    told = True
                await first_of(side.changed(), stop)
    finally:
        side.close()


async def _relied_on(session: Session, reader: HandInSession, own: int) -> bool:
    """Whether something was handed in that is not taken yet, or was taken and goes on."""
    inspection = session.inspect()
    later = {item.conversation for item in inspection.submissions if item.id > own}
    if any(moving(session, inspection, conversation) for conversation in later):
        return True
    return bool(await reader.storage.scan_inbound(session.key))
