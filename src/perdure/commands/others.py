"""Inputs that were unfinished before a command came with its own: they go on beside it, and that is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perdure.app.looking import ReadSession
from perdure.commands.text import one_line
from perdure.errors import NotFound
from perdure.harness.submissions import Answered, NotAnswered
from perdure.records import ROOT
from perdure.tasks.inspection import SubmissionInfo

#: How many are told one by one.
MOST_TOLD = 5


class Others:
    """What else was unfinished when the session was opened, told at the beginning and at the end."""

    def __init__(self, reader: ReadSession, found: Iterable[SubmissionInfo], note: Callable[[str], None]) -> None:
        self._reader = reader
        self._found = [item for item in found if item.type == "input"]
        self._note = note

    async def begin(self) -> None:
        """Say what goes on beside the command's own input."""
        for item in self._found[:MOST_TOLD]:
            how = "waits in its inbox" if item.state == "queued" else "goes on while this process works"
            self._note(f"{await self._name(item)} was not finished: it {how}")
        if (more := len(self._found) - MOST_TOLD) > 0:
            self._note(f"{more} more were not finished (perdure inspect lists them)")

    async def end(self) -> None:
        """Say what became of them; once."""
        found, self._found = self._found, []
        for item in found[:MOST_TOLD]:
            try:
                settled = await self._reader.submission(item.id).settled()
            except NotFound:
                continue
            match settled:
                case Answered(text=text):
                    self._note(f"{await self._name(item)} is answered: {one_line(text)}")
                case NotAnswered(reason=reason, detail=detail):
                    self._note(f"{await self._name(item)} was not answered ({reason}): {one_line(detail)}")
                case None:
                    self._note(f"{await self._name(item)} is not finished: perdure resume goes on with it")
        if len(found) > MOST_TOLD:
            self._note("perdure inspect shows what is left of the others, perdure resume goes on with it")

    async def _name(self, item: SubmissionInfo) -> str:
        if item.conversation == ROOT:
            return f"input {item.id} of the root conversation"
        record = await (await self._reader.find(item.conversation)).record()
        return f"input {item.id} of conversation {record.key or record.id}"
