"""`perdure retry`: let a held task go on."""

from __future__ import annotations

import asyncio

import click

from perdure.commands.acting import acting
from perdure.commands.options import Place, id_of, placed


@click.command()
@click.argument("task", callback=id_of("task"))
@placed
def retry(task: int, place: Place) -> int:
    """Let the held TASK go on: one that was parked, or whose outcome is uncertain."""

    async def act() -> bool:
        async with acting(place, lambda session: session.retry(task)) as acted:
            return acted.own is None

    told = asyncio.run(act())
    print(f"task {task} goes on" if told else f"task {task} goes on with perdure resume")
    return 0
