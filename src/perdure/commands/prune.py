"""`perdure prune`: forget what is long settled."""

from __future__ import annotations

import asyncio
import re

import click

from perdure.app.opening import open
from perdure.commands.looked_at import looking
from perdure.commands.options import Place, as_json_option, placed
from perdure.commands.text import argument, as_json
from perdure.errors import SessionOwned
from perdure.session.retention import Pruned

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")


def age(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A time as `30d`: seconds, minutes, hours, days, weeks."""
    found = _AGE.fullmatch(argument(value))
    if found is None:
        raise click.BadParameter(f"{argument(value)!r} is no age: a number and one of s, m, h, d, w, such as 30d")
    return float(found[1]) * SECONDS[found[2]]


@click.command()
@placed
@click.option("--older-than", required=True, metavar="AGE", callback=age, help="What ended longer ago, such as 30d.")
@click.option("--dry-run", is_flag=True, help="Only say how much that would be.")
@as_json_option
def prune(place: Place, older_than: float, dry_run: bool, json: bool) -> int:
    """Forget ended tasks, settled submissions and taken hand-ins that are older than that.

    Transcripts stay (see perdure rm), and so does what tells a repeated request id.
    """
    found = asyncio.run(_prunable(place, older_than) if dry_run else _prune(place, older_than))
    if json:
        print(as_json({"dry_run": dry_run, **{name: getattr(found, name) for name in Pruned.__struct_fields__}}))
        return 0
    what = f"{found.tasks} tasks, {found.submissions} submissions, {found.inbound} taken hand-ins"
    print(f"would forget {what}" if dry_run else f"forgot {what}")
    return 0


async def _prunable(place: Place, older_than: float) -> Pruned:
    async with looking(place) as session:
        return await session.prunable(older_than=older_than)


async def _prune(place: Place, older_than: float) -> Pruned:
    async with looking(place):
        pass  # who prunes makes no store and no session
    try:
        async with open(place.store, session=place.session, model=None) as session:
            return await session.prune(older_than=older_than)
    except SessionOwned as error:
        raise SessionOwned(
            f"{str(error).split(':', maxsplit=1)[0]}: prune when it has ended, or there with session.prune(); "
            "--dry-run works beside it"
        ) from None
