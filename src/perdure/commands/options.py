"""Options that several commands share, and what they are gathered in."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from perdure.commands.configuration import Configuration, load
from perdure.commands.settings import GUARDED, SETTINGS, variable_of
from perdure.commands.suggestions import did_you_mean
from perdure.commands.text import argument
from perdure.commands.visible import visible
from perdure.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where work is kept."""

    store: str
    session: str


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What work is done with."""

    model: str | None  #: as the flag says
    tools: tuple[str, ...]
    allow: tuple[str, ...]
    ask: tuple[str, ...]  #: tools that are offered, and asked about
    directory: str
    take_over: bool
    kill: bool
    configuration: Configuration


def named(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A text that is not empty, as it was typed."""
    text = None if value is None else argument(value)
    if text == "":
        raise click.BadParameter("it is empty: give it a text")
    return text


def seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A duration."""
    if value is None:
        return None
    try:
        found = float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no number of seconds") from None
    if not math.isfinite(found) or found <= 0:
        raise click.BadParameter(f"{value} is no time to wait: give a number of seconds above 0")
    return found


def id_of(
    what: str, listed: str = "perdure inspect"
) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """Reads the id of a record of that kind."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()) or not 0 < int(value[:20]) < 2**40:
            raise UsageError(f"{argument(value)!r} is no {what} id: a number, see {listed}")
        return int(value)

    return read


def _asked(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    return tuple(dict.fromkeys(name for name in names if name != "read"))


def _allowed(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    for name in names:
        if name not in (*GUARDED, "read"):
            raise click.BadParameter(f"no tool {name!r} to allow; there are {', '.join(GUARDED)} (read is always on)")
    return tuple(dict.fromkeys(name for name in names if name != "read"))


def configuration(*, telling: bool = True) -> Configuration:
    """What is configured where this command runs, read once for it.

    A variable of ours that means nothing is told on standard error, unless the command says so itself.
    """
    root = click.get_current_context().find_root()
    found = root.meta.get("perdure.configuration")
    if found is None:
        found = root.meta["perdure.configuration"] = load(os.environ, os.getcwd())
        for name in found.strange if telling else ():
            print(f"perdure: {visible(meaningless(name))}", file=sys.stderr)
    return found


def meaningless(variable: str) -> str:
    """What is said of a variable that is called as if it were ours."""
    return f"{variable} means nothing here{did_you_mean(variable, map(variable_of, SETTINGS))}"


def _directory(configured: Configuration) -> str:
    """Where tools work, as it is configured."""
    found = configured.values["directory"]
    if not os.path.isdir(found.value):
        raise UsageError(f"{found.source}: directory = {found.value!r}: there is no such directory")
    return os.path.realpath(found.value)


def placed(function: F) -> F:
    """`--store` and `--session`, handed over as `place`."""

    @functools.wraps(function)
    def with_place(*args: Any, store: str | None, session: str | None, **rest: Any) -> Any:
        configured = configuration()
        place = Place(
            store=configured["store"] if store is None else store,
            session=configured["session"] if session is None else session,
        )
        return function(*args, place=place, **rest)

    for option in (
        click.option("--session", metavar="KEY", callback=named, help="Session.  [default: main]"),
        click.option(
            "--store", metavar="URL",
            help="Where work is kept: the path of a file, or memory: for nowhere.  [default: .perdure/store.db]",
        ),
    ):  # fmt: skip
        with_place = option(with_place)
    return with_place  # type: ignore[return-value]


def stored(function: F) -> F:
    """`--store` alone, handed over as `store`."""

    @functools.wraps(function)
    def with_store(*args: Any, store: str | None, **rest: Any) -> Any:
        return function(*args, store=configuration()["store"] if store is None else store, **rest)

    option = click.option("--store", metavar="PATH", help="The file of the store.  [default: .perdure/store.db]")
    return option(with_store)  # type: ignore[return-value]


def equipped(function: F) -> F:
    """The options that say what work is done with, handed over as `means`."""

    @functools.wraps(function)
    def with_means(*args: Any, **given: Any) -> Any:
        own = {name: given.pop(name) for name in Means.__struct_fields__ if name != "configuration"}
        if own["kill"] and not own["take_over"]:
            raise click.UsageError("--kill ends the owner of a session to take it over: add --take-over")
        configured = configuration()
        configured.refuse_withheld()
        own["directory"] = own["directory"] or _directory(configured)
        for name in ("tools", "allow"):
            own[name] = own[name] or configured[name]
        return function(*args, means=Means(**own, configuration=configured), **given)

    for option in (
        click.option("--kill", is_flag=True, help="With --take-over: end an owner that is stopped while it writes."),
        click.option("--take-over", is_flag=True, help="Take the session from its owner, which can write no more."),
        click.option(
            "--directory", metavar="PATH", help="Where tools work.  [default: here]",
            type=click.Path(exists=True, file_okay=False, readable=False, resolve_path=True),
        ),
        click.option(
            "--allow", multiple=True, metavar="NAMES", callback=_allowed,
            help="Offer tools that change something: bash, write, edit (comma-separated, or several times).",
        ),
        click.option(
            "--ask", multiple=True, metavar="NAMES", callback=_asked,
            help="Offer them too, and ask before each call: bash, write, edit, or tools of your own.",
        ),
        click.option(
            "--tools", multiple=True, metavar="MODULE:NAME",
            help="Offer your own: a function, a tool, a list of them, an Extension or a Registry. Several times.",
        ),
        click.option(
            "--model", metavar="NAME", callback=named,
            help="Who answers, as PROVIDER:NAME. By default it finds one, and says why.",
        ),
    ):  # fmt: skip
        with_means = option(with_means)
    return with_means  # type: ignore[return-value]


as_json_option = click.option("--json", "json", is_flag=True, help="One JSON object per line on standard output.")
