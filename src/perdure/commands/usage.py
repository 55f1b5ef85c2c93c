"""`perdure usage`: tokens and cost, by model and by tool."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import click

from perdure.commands.looked_at import found, looking
from perdure.commands.options import Place, as_json_option, named, placed
from perdure.commands.text import as_json, one_line
from perdure.harness.usage import BUCKETS

COLUMNS = ("requests", *BUCKETS)
TITLES = {"cache_read": "cache read", "cache_write": "cache write"}


@click.command()
@click.argument("conversation", required=False, callback=named)
@placed
@as_json_option
def usage(conversation: str | None, place: Place, json: bool) -> int:
    """Show what CONVERSATION used (a key or an id), or the whole session. Works beside the session's owner.

    Buckets of tokens are disjoint, cost is in US dollars. What no provider told is unknown, not zero.
    """
    report = asyncio.run(_report(place, conversation))
    if json:
        print(as_json(report))
        return 0
    for line in _lines(report):
        print(line)
    return 0


async def _report(place: Place, name: str | None) -> dict[str, Any]:
    async with looking(place) as session:
        if name is None:
            return {"session": session.key, "used": await session.usage()}
        chat = await session.find(await found(session, name))
        own, subtree = await chat.usage(), await chat.usage(subtree=True)
        return {"session": session.key, "conversation": chat.id, "used": own, "subtree": subtree}


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    where = f"session {report['session']}"
    if "conversation" not in report:
        yield from _section(f"{where}, all conversations", report["used"])
        return
    yield from _section(f"conversation {report['conversation']} of {where}", report["used"])
    if report["subtree"] != report["used"]:
        yield ""
        yield from _section("with the conversations below it", report["subtree"])


def _section(title: str, ledger: Mapping[str, Any]) -> Iterator[str]:
    yield title
    models, tools = ledger["models"], ledger["tools"]
    if not models and not tools:
        yield "  nothing yet"
    if models:
        yield from _table([["model", *(TITLES.get(name, name) for name in COLUMNS)], *_rows(models)])
        for name, row in sorted(models.items()):
            yield from _unknown(name, row)
    if tools:
        rows = [
            [one_line(name, 60), _amount(row["calls"]), _amount(row["errors"])] for name, row in sorted(tools.items())
        ]
        yield from _table([["tool", "calls", "errors"], *rows])


def _rows(models: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, row in sorted(models.items()):
        cells = [_cost(row) if column == "cost" else _amount(row.get(column)) for column in COLUMNS]
        yield [one_line(name, 60), *cells]


def _unknown(name: str, row: Mapping[str, Any]) -> Iterator[str]:
    """What the buckets lack. Where no cost is known at all, its column says so."""
    lacking = [f"{row['unknown']:,} of unknown use"] if row["unknown"] else []
    lacking += [f"{row['unpriced']:,} of unknown cost"] if row.get("unpriced") else []
    if lacking:
        yield f"  {one_line(name, 60)}: of {row['requests']:,} requests, {' and '.join(lacking)}"


def _cost(row: Mapping[str, Any]) -> str:
    return "unknown" if row.get("cost") is None else f"${row['cost']:,.4f}"


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _table(rows: list[list[str]]) -> Iterator[str]:
    """The first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield f"  {name.ljust(widths[0])}  {numbers}"
