"""What the client and the agent's process say to each other: one JSON object a line, over the agent's pipes."""

from __future__ import annotations

import msgspec

from perdure.commands.demo.schedule import Kill, Point

# -- to the agent -------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Open the store. When the agent comes to the point of `kill`, it says so and goes no further."""

    store: str
    directory: str
    kill: Kill | None


class Proceed(msgspec.Struct, frozen=True, kw_only=True, tag="proceed"):
    """Go on with what was left unfinished."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """A task for the agent. It is accepted when `Accepted` comes back, and not before."""

    request: str
    conversation: str
    text: str
    when_busy: str = "follow_up"


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """Finish everything and close in order."""


Order = Open | Proceed | Submit | Finish

# -- from the agent -----------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The process has started; nothing is open."""


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """The session is open and nothing runs yet.

    `live` are submissions that are not settled, `tasks` counts unfinished work.
    `suspects` are tasks whose present step the process did not survive twice: they are spared until they have moved.
    """

    commit: int
    live: tuple[int, ...]
    tasks: int
    suspects: tuple[int, ...]


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """A submission is durable; `settled` where it was handed in before and is settled by now."""

    request: str
    submission: int
    settled: bool


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="settled"):
    """A submission is settled; `answered` with an answer, else it says why not."""

    submission: int
    answered: bool
    why: str = ""


class Wrote(msgspec.Struct, frozen=True, kw_only=True, tag="wrote"):
    """An entry was committed: its text in one line, the tools that it calls, or the one whose result it is."""

    entry: int
    conversation: int
    kind: str
    text: str
    calls: tuple[str, ...] = ()
    tool: str | None = None
    error: str | None = None
    stop: str | None = None


class Effect(msgspec.Struct, frozen=True, kw_only=True, tag="effect"):
    """Something happened outside that cannot be taken back."""

    text: str


class Moved(msgspec.Struct, frozen=True, kw_only=True, tag="moved"):
    """A suspect came through its step: the process may die in it again."""

    task: int


class Reached(msgspec.Struct, frozen=True, kw_only=True, tag="reached"):
    """The agent stands at the point where it is to be killed."""

    point: Point
    detail: str


class Closed(msgspec.Struct, frozen=True, kw_only=True, tag="closed"):
    """Everything is finished and closed."""


Report = Ready | Opened | Accepted | Settled | Wrote | Effect | Moved | Reached | Closed

read_order = msgspec.json.Decoder(Order).decode
read_report = msgspec.json.Decoder(Report).decode


def line_of(message: Order | Report) -> str:
    """The message without its line's end."""
    return msgspec.json.encode(message).decode()
