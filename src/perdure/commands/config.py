"""`perdure config show`: the effective settings, each with its source."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click
import msgspec

from perdure.commands.chosen import keys
from perdure.commands.configuration import Configuration, shown
from perdure.commands.options import as_json_option, configuration, meaningless
from perdure.commands.text import as_json, one_line


@click.group()
def config() -> None:
    """Show what is configured.

    \b
    Settings come from PERDURE_* variables, over perdure.toml of the project,
    over config.toml of the user. Options of a command go before all of them.
    """


@config.command()
@as_json_option
def show(json: bool) -> int:
    """Show the effective settings, and where each is from. Keys are never shown: only whether they are there."""
    found = configuration(telling=False)
    present = [key.variable for key in keys(os.environ)]
    if json:
        values = {name: msgspec.to_builtins(each) for name, each in found.values.items()}
        rest = {name: msgspec.to_builtins(getattr(found, name)) for name in ("files", "withheld", "strange")}
        print(as_json({"settings": values, **rest, "keys": present}))
        return 0
    for line in _lines(found, present):
        print(line)
    return 0


def _lines(found: Configuration, present: list[str]) -> Iterator[str]:
    cells = [(name, one_line(shown(each.value), 200), each.source) for name, each in found.values.items()]
    widths = [max(len(row[at]) for row in cells) for at in (0, 1)]
    for name, value, source in cells:
        yield f"{name.ljust(widths[0])}  {value.ljust(widths[1])}  {source}"
    yield ""
    for file in found.files:
        state = ("trusted" if file.trusted else "not trusted: see trust") if file.found else "not there"
        yield f"file {file.path} ({state})"
    for each in found.withheld:
        yield f"{each.source} sets {each.name}, which {each.why}"
    for name in found.strange:
        yield meaningless(name)
    for variable in present:
        yield f"{variable} is set (its value is shown nowhere)"
