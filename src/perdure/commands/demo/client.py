"""The client of the agent: what it asked for, and what it was promised. It outlives every life of the agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from perdure.commands.demo.orders import Errand, errand
from perdure.commands.demo.places import append_line
from perdure.commands.demo.talk import Accepted, Submit

#: So many errands are open at a time, so that there is work wherever a kill falls.
OPEN_AT_ONCE = 3


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """The agent said that it accepted an errand. One line of the client's own file; the verifier starts from these."""

    request: str
    submission: int
    conversation: str


class Client:
    """Invariant: an errand is asked for under one request id until it is accepted, and then never again."""

    def __init__(self, path: str, seed: int) -> None:
        self._path = path
        self._seed = seed
        self._made = 0
        #: Not accepted as far as the client knows: the agent's word may have died with it. By request id.
        self._unsure: dict[str, Errand] = {}
        #: Asked for, in this life of the agent and in any.
        self._asked: set[str] = set()
        self._ever_asked: set[str] = set()
        #: Accepted and not settled, by submission.
        self._open: dict[int, str] = {}
        self.accepted = 0

    @property
    def answered(self) -> int:
        """How many were settled, as far as the client was told."""
        return self.accepted - len(self._open)

    @property
    def is_done(self) -> bool:
        """Everything that was asked for is accepted and settled."""
        return not self._unsure and not self._open

    def meet(self, live: Iterable[int]) -> None:
        """The agent lives again, with these submissions to settle; what settled while it died is seen only now."""
        self._asked.clear()
        live = set(live)
        self._open = {submission: request for submission, request in self._open.items() if submission in live}

    def wants(self, at_once: int) -> Iterator[tuple[Submit, bool]]:
        """What to ask for now, so that `at_once` errands are open; each with whether it was asked for before.

        What a death cut off comes first, under its old request id.
        """
        while len(self._unsure) + len(self._open) < at_once:
            self._made += 1
            new = errand(self._made, self._seed)
            self._unsure[new.name] = new
        for each in self._unsure.values():
            if each.name not in self._asked:
                self._asked.add(each.name)
                again = each.name in self._ever_asked
                self._ever_asked.add(each.name)
                submit = Submit(
                    request=each.name, conversation=each.conversation, text=each.text, when_busy=each.when_busy
                )
                yield submit, again

    def accept(self, word: Accepted) -> str:
        """From now on it has to be answered, whatever happens to the agent. Durable on return, which tells its text."""
        errand = self._unsure.pop(word.request)
        promise = Promise(request=word.request, submission=word.submission, conversation=errand.conversation)
        append_line(self._path, msgspec.json.encode(promise))
        self.accepted += 1
        if not word.settled:
            self._open[word.submission] = word.request
        return errand.text

    def settle(self, submission: int) -> str | None:
        """The agent settled it. Its request id; None where the agent never said that it had accepted it."""
        return self._open.pop(submission, None)
