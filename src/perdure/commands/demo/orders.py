"""What the client asks for: errands of a flower shop, the same for the same seed."""

from __future__ import annotations

import random

import msgspec

#: Where the errands are talked about: three conversations, so that several runs are cut off at once.
CONVERSATIONS = ("shop", "market", "garden")
#: What `bash` runs, and what it appends a line to: the errand, once.
SCRIPT, DISPATCHED = "dispatch.sh", "dispatched.log"
#: It leaves something running for as long as it lives itself: when the agent was killed, none of it may be there.
SCRIPT_TEXT = f"""\
sleep 30 &
echo "$1" >> {DISPATCHED}
sleep 0.1
kill $!
"""

_PEOPLE = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jan")
_GOODS = ("roses", "tulips", "lilies", "asters", "daisies", "irises")
_SHAPES = (
    "{write}, {bash} and {pay}",
    "{pay}, {write} and {bash}",
    "{pay}, {bash} and {write} in parallel",
    "{pay}, {bash} and {pay2} in parallel. Then {write}",
)


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """One task for the agent. `name` is its request id, and what its side effects are told apart by."""

    name: str
    conversation: str
    text: str
    when_busy: str


def errand(number: int, seed: int) -> Errand:
    """The errand with this number."""
    chance = random.Random(f"errand {number} {seed}")
    name = f"errand-{number}"
    first, second = chance.sample(_PEOPLE, 2)
    goods = f"{chance.randint(2, 12)} {chance.choice(_GOODS)}"
    text = chance.choice(_SHAPES).format(
        write=f'write {name}.txt with "{goods} for {first}"',
        bash=f"run `sh {SCRIPT} {name}`",
        pay=f"pay {chance.randint(1, 99)} to {first}",
        pay2=f"pay {chance.randint(1, 99)} to {second}",
    )
    return Errand(
        name=name,
        conversation=CONVERSATIONS[number % len(CONVERSATIONS)],
        text=text[0].upper() + text[1:],
        when_busy="steer" if chance.random() < 0.2 else "follow_up",
    )
