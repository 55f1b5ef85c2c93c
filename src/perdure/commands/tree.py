"""`perdure tree`: a picture of the conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import click

from perdure.commands.looked_at import found, looking
from perdure.commands.options import Place, as_json_option, named, placed
from perdure.commands.text import as_json, one_line
from perdure.harness.tree import Branch


@click.command()
@click.argument("conversation", required=False, callback=named)
@placed
@click.option(
    "--limit", default=1000, show_default=True, metavar="N", type=click.IntRange(1, 100_000),
    help="At most so many of the newest, and what they stand below.",
)  # fmt: skip
@as_json_option
def tree(conversation: str | None, place: Place, limit: int, json: bool) -> int:
    """Draw the conversations: forks below what they left, and those that tasks own below their owner.

    With CONVERSATION (a key or an id), it and all below it. Works beside the session's owner.
    """
    trees = asyncio.run(_trees(place, conversation, limit))
    for line in map(as_json, _flat(trees)) if json else _picture(trees):
        print(line)
    return 0


async def _trees(place: Place, name: str | None, limit: int) -> list[Branch]:
    async with looking(place) as session:
        if name is None:
            return await session.tree(limit=limit)
        id = await found(session, name)
        all_of_them = await session.tree(limit=max(limit, 100_000))
        return [branch for top in all_of_them for _, branch in top.walk() if branch.id == id]


def _flat(trees: Iterable[Branch]) -> Iterator[dict[str, Any]]:
    """A line for each conversation; `under` says below which one it stands."""
    for top in trees:
        for _, branch in top.walk():
            yield {name: getattr(branch, name) for name in Branch.__struct_fields__ if name != "below"}


def _picture(trees: Iterable[Branch]) -> Iterator[str]:
    for top in trees:
        #: For each depth, whether more stands below the same conversation further down.
        open: list[bool] = []
        last = {
            each.id: place == len(branch.below) - 1
            for _, branch in top.walk()
            for place, each in enumerate(branch.below)
        }
        for depth, branch in top.walk():
            if depth == 0:
                yield _described(branch)
                continue
            del open[depth - 1 :]
            rails = "".join("│  " if more else "   " for more in open)
            open.append(not last[branch.id])
            yield f"{rails}{'└─ ' if last[branch.id] else '├─ '}{_described(branch)}"


def _described(branch: Branch) -> str:
    """Its id, what it is called, where it comes from, and how many entries are its own."""
    facts = [f"owned by task {branch.owner}"] if branch.owner is not None else []
    if branch.forked is not None:
        of = "" if branch.forked.conversation == branch.under else f" of {branch.forked.conversation}"
        facts.append(f"forked at {branch.forked.entry}{of}")
    facts.append("1 entry" if branch.entries == 1 else f"{branch.entries:,} entries")
    if branch.deleted:
        facts.append("deleted, kept for its forks")
    names = [str(branch.id), *([one_line(branch.key, 60)] if branch.key else [])]
    title = f' "{one_line(branch.title, 60)}"' if branch.title else ""
    return f"{' '.join(names)}{title} ({', '.join(facts)})"
