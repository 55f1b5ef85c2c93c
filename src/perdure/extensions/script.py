"""What a shell command does, as far as it can be judged before it runs."""

from __future__ import annotations

import msgspec


class Unclear(Exception):
    """What the command does cannot be told, and why."""


class Command(msgspec.Struct, frozen=True):
    """A program with its arguments. A word is None where it is only known when it runs.

    `assigned` are the variables that are set for it.
    """

    words: tuple[str | None, ...]
    assigned: tuple[str, ...] = ()


class Script(msgspec.Struct, kw_only=True):
    """What a text does. Paths are as written, None where they are only known when it runs."""

    commands: list[Command] = []
    writes: list[str | None] = []
    reads: list[str | None] = []
    #: Variables that are set for what follows.
    assigned: list[str] = []
