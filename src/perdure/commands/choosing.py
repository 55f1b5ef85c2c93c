"""Who answers, and why: a pure choice from what there is.

A flag, else what the conversation was told by a flag before, else the configuration, else the model that the
conversation was worked on with, else a key in the environment, else a local server, else the demo model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

#: How a model was chosen. A `demo` by lack of anything else is no choice: the next run looks again.
By = Literal["flag", "configuration", "key", "server", "demo"]

DEMO = "demo"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key that is in the environment, and the model that it stands for. `missing`: how to install its library."""

    variable: str
    model: str
    missing: str | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A local server that answered, and the first of its models."""

    name: str
    url: str
    model: str


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The model that a conversation was worked on with last, and how it was chosen."""

    model: str
    by: By


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to choose from. `configured` is a model and where it is set."""

    flag: str | None = None
    remembered: Remembered | None = None
    configured: tuple[str, str] | None = None
    keys: Sequence[Key] = ()
    #: None: nobody looked yet.
    servers: Sequence[Server] | None = None


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers."""

    name: str
    why: str
    by: By

    @property
    def line(self) -> str:
        """What is said of it, once."""
        return f"model {self.name}: {self.why} (--model NAME, PERDURE_MODEL or perdure.toml change it)"


def choose(found: Found) -> Chosen | None:
    """The choice; None where it depends on the local servers, and nobody looked for them yet."""
    if found.flag is not None:
        return Chosen(name=found.flag, why="as --model says", by="flag")
    remembered = found.remembered
    if remembered is not None and remembered.by == "flag":
        return Chosen(name=remembered.model, why="as --model said in this conversation before", by="flag")
    if found.configured is not None:
        name, source = found.configured
        return Chosen(name=name, why=f"as {source} says", by="configuration")
    if remembered is not None and remembered.by != "demo":
        return Chosen(name=remembered.model, why="as in this conversation before", by=remembered.by)
    return _by_key(found) or _by_server(found)


def _by_key(found: Found) -> Chosen | None:
    usable = [key for key in found.keys if key.missing is None]
    if not usable:
        return None
    others = ", ".join(key.variable for key in found.keys if key is not usable[0])
    why = f"{usable[0].variable} is set" + (f", before {others}" if others else "")
    return Chosen(name=usable[0].model, why=why, by="key")


def _by_server(found: Found) -> Chosen | None:
    if found.servers is None:
        return None
    lacking = "".join(f"{key.variable} is set, but its library is not installed: {key.missing}; " for key in found.keys)
    for server in found.servers:
        return Chosen(name=server.model, why=f"{lacking}{server.name} answers at {server.url}", by="server")
    nothing = "no key is in the environment, and" if not found.keys else "and"
    return Chosen(name=DEMO, why=f"{lacking}{nothing} no local server answers. It understands nothing", by="demo")
