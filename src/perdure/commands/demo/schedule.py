"""When the agent dies: a seed decides it, the same way each time."""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from perdure.errors import UsageError

#: Where a kill falls. "anywhere" is a moment that no place in the code decides.
Point = Literal["admission", "model_stream", "before_effect", "in_effect", "after_effect", "anywhere"]

#: Each of these has at least one kill.
NAMED: tuple[Point, ...] = ("admission", "model_stream", "before_effect", "in_effect", "after_effect")
POINTS: tuple[Point, ...] = (*NAMED, "anywhere")
FEWEST = len(NAMED)
MOST = 100_000

#: What a kill at each point is in, for people.
DESCRIBED: dict[Point, str] = {
    "admission": "while a task was handed in",
    "model_stream": "while the model was answering",
    "before_effect": "between an intent and its effect",
    "in_effect": "inside an effect",
    "after_effect": "between an effect and its outcome",
    "anywhere": "at a random moment",
}

#: How long the agent may go on inside the point before the kill comes, in seconds: handing in takes a few milliseconds
#: of disk, a command runs for a tenth of a second, and a life at all lasts about one.
_REACH: dict[Point, float] = {"admission": 0.012, "in_effect": 0.12, "anywhere": 1.2}


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One kill: when the agent comes to `point` for the `nth` time in its life (with `tool`, if given), `delay` later.

    For "anywhere" the delay counts from the moment at which the agent is told to open its store.
    """

    point: Point
    nth: int = 1
    tool: str | None = None
    delay: float = 0.0


def schedule(kills: int, seed: int) -> list[Kill]:
    """The kills of a run, in order. Raises UsageError where there are too few to have one at each point."""
    if not FEWEST <= kills <= MOST:
        raise UsageError(
            f"--kills {kills}: give a number from {FEWEST} to {MOST:,}; there are {FEWEST} points that each need one"
        )
    chance = random.Random(f"kills {seed}")
    # The payment is the effect that must not happen twice: each point around it is met at least once.
    payment = {"before_effect", "in_effect", "after_effect"}
    found = [_kill(point, "pay" if point in payment else None, chance) for point in NAMED]
    found += [_kill(chance.choice(POINTS), None, chance) for _ in range(kills - FEWEST)]
    chance.shuffle(found)
    return found


def _kill(point: Point, tool: str | None, chance: random.Random) -> Kill:
    most = {"admission": 2, "model_stream": 12, "anywhere": 1}.get(point, 2 if tool else 4)
    delay = chance.random() * _REACH.get(point, 0.0)
    return Kill(point=point, nth=chance.randint(1, most), tool=tool, delay=round(delay, 4))
