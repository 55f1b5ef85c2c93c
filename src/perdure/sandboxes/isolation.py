"""What the intent of a command records of where it runs, and what that proves when nobody saw how it ended (R9)."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection
from typing import Literal

import msgspec

from perdure.sandboxes.strategies import named
from perdure.sandboxes.table import boot_id, owner, owner_lives

PREFIX = "local:"


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is kept together, and by whom: machine, run of the machine, process."""

    strategy: str
    machine: str
    boot: str
    owner: str

    def recorded(self) -> str:
        """As text, for an intent. It begins with "local:" and the strategy."""
        return f"{PREFIX}{self.strategy} {self.machine} {self.boot} {self.owner}"


def read_isolation(recorded: str) -> Isolation | None:
    """None for what is none of ours."""
    strategy, *rest = recorded.removeprefix(PREFIX).split(" ")
    if not recorded.startswith(PREFIX) or named(strategy) is None or len(rest) != 3:
        return None
    machine, boot, owner = rest
    return Isolation(strategy=strategy, machine=machine, boot=boot, owner=owner)


def present(strategy: str) -> Isolation:
    """Of commands that this process runs."""
    return Isolation(strategy=strategy, machine=machine_id(), boot=boot_id() or "-", owner=owner())


@functools.cache
def machine_id() -> str:
    """Tells machines apart."""
    try:
        with open("/etc/machine-id", "rb") as file:
            found = file.read().decode().strip()
    except (OSError, ValueError):
        found = ""
    return found or os.uname().nodename.replace(" ", "-") or "-"


#: What became of the process that ran the command: it lives, it is gone, the machine was started anew since; or it was
#: on another machine, or in another container.
Fate = Literal["lives", "gone", "rebooted", "elsewhere"]


def fate_of_owner(recorded: Isolation) -> Fate:
    """Looks at this machine."""
    here = present(recorded.strategy)
    if recorded.boot == here.boot != "-":
        lives = owner_lives(recorded.owner)
        return "elsewhere" if lives is None else "lives" if lives else "gone"
    same_machine = recorded.machine == here.machine and "-" not in (recorded.boot, here.boot)
    return "rebooted" if same_machine else "elsewhere"


def proved(recorded: Isolation | None, fate: Fate, killed: Collection[str] = ()) -> str:
    """What is known of a command whose call was interrupted, in words for the model.

    `killed` is what was found of it afterwards, and ended.
    """
    if recorded is None:
        return "Whether anything that it had started still runs is not known."
    if fate == "rebooted":
        return "The machine was started anew since: nothing that it had started still runs."
    if fate == "lives":
        return "The process that ran it has lost its session but still lives: what it had started may still run."
    strategy = named(recorded.strategy)
    assert strategy is not None
    where = "" if fate == "gone" else " if that process is gone: it was on another machine or in another container"
    match strategy.kind:
        case "namespace":
            return f"The command and everything it had started were killed with its process{where}."
        case "subreaper":
            unless = f"unless the command had killed the helper that does this.{_swept(killed)}"
            return f"The command and everything it had started were killed with its process{where}, {unless}"
        case "group":
            return f"What it had started may still be running.{_swept(killed)}"


def _swept(killed: Collection[str]) -> str:
    """What was ended afterwards."""
    if not killed:
        return " Nothing of it was found now."
    shown = ", ".join(list(killed)[:10]) + (", …" if len(killed) > 10 else "")
    return f" Found now and killed: {shown}."
