"""What the outside world saw: accepted submissions and effects. It outlives every simulated process."""

from __future__ import annotations

from typing import Any

from perdure.errors import PerdureError


class Violation(PerdureError):
    """An invariant did not hold."""


class Ledger:
    """Kept by the simulation itself, never by the code under test."""

    def __init__(self) -> None:
        #: Submissions whose admission was acknowledged: id -> (conversation key, request id).
        self.accepted: dict[int, tuple[str, str | None]] = {}
        #: The submission that each acknowledged request id returned.
        self.requests: dict[tuple[str, str], int] = {}
        #: How often each effect happened, by idempotency key.
        self.effects: dict[str, int] = {}
        #: Keys of effects that may be repeated.
        self.safe: dict[str, bool] = {}
        #: The question of each asking hook about each call, by task and hook.
        self.asked: dict[tuple[int | None, str], int] = {}
        #: The entries that each fork saw when it was made, newest first; without those that somebody began to delete.
        self.forks: dict[int, list[int]] = {}
        #: Broken invariants, oldest first. The first one ends the run.
        self.violations: list[str] = []
        #: What happened how often, for the report.
        self.counts: dict[str, int] = {}

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def violated(self, what: str) -> None:
        self.violations.append(what)

    def accept(self, id: int, key: str, request_id: str | None) -> None:
        """A caller was told that its submission is durable, under this id."""
        if request_id is not None:
            known = self.requests.setdefault((key, request_id), id)
            if known != id:
                self.violated(f"request {request_id!r} of {key!r} was first submission {known}, then {id}")
        self.accepted[id] = (key, request_id)

    def effect(self, key: str, *, safe: bool) -> None:
        """An effect happened in the world."""
        self.effects[key] = self.effects.get(key, 0) + 1
        self.safe[key] = safe
        self.count("safe effects" if safe else "unsafe effects")
        if not safe and self.effects[key] > 1:
            self.violated(f"unsafe effect {key!r} happened {self.effects[key]} times")

    def question(self, id: int, call: tuple[int | None, str]) -> None:
        """A hook asked about a call."""
        if self.asked.setdefault(call, id) != id:
            self.violated(f"hook {call[1]!r} asked twice about the call of task {call[0]}")

    def blocked(self, key: str) -> None:
        """A call ended as one that does not run."""
        self.count("blocked calls")
        if key in self.effects:
            self.violated(f"the call {key!r} was blocked, and its effect happened")

    def raise_first(self) -> None:
        if self.violations:
            raise Violation(self.violations[0])


def plan_of(text: str) -> dict[str, Any]:
    """The plan that a simulated user wrote into an input: "rounds=2 calls=su"."""
    words = dict(word.split("=", 1) for word in text.split() if "=" in word)
    return {"rounds": int(words.get("rounds", 0)), "calls": words.get("calls", "")}
