"""`perdure doctor`: what is here, why it is so, and what is broken."""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

import click
import msgspec

from perdure.clock import SystemClock
from perdure.commands.doctor_findings import (
    Finding,
    configured,
    extras,
    isolation,
    model,
    modes,
    platform_here,
    sqlite_here,
    store_health,
)
from perdure.commands.options import as_json_option, configuration, named
from perdure.commands.text import as_json, one_line
from perdure.errors import PerdureError

MARKS = {"ok": "ok    ", "note": "note  ", "broken": "BROKEN"}


@click.command()
@click.option("--store", metavar="URL", callback=named, help="The store.  [default: .perdure/store.db]")
@click.option("--model", metavar="NAME", callback=named, help="As if a command were given it.")
@as_json_option
def doctor(store: str | None, model: str | None, json: bool) -> int:
    """Say what perdure finds here and why: model, isolation of commands, SQLite, the store, settings.

    Nothing is changed, and no model is asked. Exit codes: 0 in order, 1 something is broken.
    """
    findings = asyncio.run(_look(store, model))
    broken = any(each.state == "broken" for each in findings)
    if json:
        print(as_json({"broken": broken, "findings": msgspec.to_builtins(findings)}))
        return int(broken)
    width = max(len(each.what) for each in findings)
    for each in findings:
        print(f"{MARKS[each.state]} {each.what.ljust(width)}  {one_line(each.says, 600)}")
    return int(broken)


async def _look(asked: str | None, flag: str | None) -> list[Finding]:
    clock = SystemClock()
    found: list[Finding] = [platform_here()]
    try:
        settings = configuration(telling=False)
    except PerdureError as error:
        return [*found, Finding(what="settings", state="broken", says=str(error))]
    store = asked or settings["store"]
    looks: list[Any] = [
        lambda: configured(settings),
        lambda: model(flag, settings, os.environ, clock),
        extras,
        isolation,
        sqlite_here,
        lambda: store_health(store, clock),
        lambda: modes(store),
    ]
    for look in looks:
        told = look()
        found += await told if inspect.iscoroutine(told) else told
    return found
