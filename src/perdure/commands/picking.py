"""The model for a conversation, from everything that can say which."""

from __future__ import annotations

import os

from perdure.app.handing_in import HandInSession
from perdure.commands.choosing import Chosen
from perdure.commands.chosen import chosen
from perdure.commands.configuration import Configuration
from perdure.commands.remembered import model_of_conversation


async def pick(
    reader: HandInSession, flag: str | None, configuration: Configuration, key: str | None, id: int | None = None
) -> Chosen:
    """Who answers in the conversation with that key or id; in the root conversation where neither is given."""
    before = None if flag else await model_of_conversation(reader, key, id)
    return await chosen(flag, configuration, before, os.environ)
