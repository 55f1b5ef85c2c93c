"""One run through its crashes: killed at each point given, judged after each, then seen through and judged again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.errors import PerdureError
from perdure.testing.crash import Point
from perdure.testing.processes import Exit
from perdure.testing.scenario.judge import after_crash, at_end
from perdure.testing.scenario.kennel import DIGEST, NOTES, Kennel, raw_store
from perdure.testing.scenario.notes import Notes

#: How many undisturbed lives a run may take to its end.
MOST_LIVES = 3


class Broken(PerdureError):
    """A run did not survive its crashes. The message tells the points, what is wrong, and where the store is."""


class Survived(msgspec.Struct, frozen=True, kw_only=True):
    """A run that survived: how many of its points it reached, and all rows of its store, without the times.

    A failure of the disk counts as reached: a process need not end by it.
    """

    hits: int
    rows: dict[str, list[Any]]


def undergo(kennel: Kennel, directory: Path, variant: str, points: Sequence[Point], **how: Any) -> Survived:
    """Run a variant in a new directory: one life for each point, then undisturbed ones until it is over.

    Raises Broken, and keeps the directory then.
    """
    directory.mkdir()
    backend = how.get("backend", "sqlite")
    lives, hits = 0, 0
    exit = Exit(code=None, signal=None, stdout="", stderr="")
    for point in points:
        lives += 1
        exit = kennel.run(directory, variant, life=lives, point=str(point), **how)
        fails = point.action in ("error", "full")
        hits += fails or exit.killed
        if not exit.killed and exit.code != 0 and not (fails and exit.code == 1):
            raise _broken(directory, variant, points, [f"with {point} it ended by itself: {exit}"])
        _check(directory, variant, points, exit, backend, over=False)
    for _ in range(MOST_LIVES):
        lives += 1
        exit = kennel.run(directory, variant, life=lives, idle=2, **how)
        if exit.code == 0:
            break
    else:
        raise _broken(directory, variant, points, [f"it never came to its end: {exit}"])
    rows = _check(directory, variant, points, exit, backend, over=True)
    shutil.rmtree(directory)
    return Survived(hits=hits, rows=rows)


def _check(
    directory: Path, variant: str, points: Sequence[Point], exit: Exit, backend: str, *, over: bool
) -> dict[str, list[Any]]:
    notes = Notes(directory / NOTES)
    wrong = [f"processes were left behind: {exit.left}"] if exit.left else []
    try:
        with raw_store(directory, backend, directory / "aside") as raw:
            stored, digest, rows = raw.records(), raw.digest(), raw.without_times() if over else {}
    except AssertionError as damage:
        raise _broken(directory, variant, points, [*wrong, f"the database is damaged: {damage}"]) from damage
    wrong += at_end(stored, notes, variant) if over else after_crash(stored, notes)
    if over and digest != (directory / DIGEST).read_text():
        wrong.append("opening it again and again changed something")
    if wrong:
        raise _broken(directory, variant, points, wrong)
    return rows


def _broken(directory: Path, variant: str, points: Sequence[Point], wrong: Sequence[str]) -> Broken:
    where = ", ".join(map(str, points)) or "no point"
    return Broken(
        f"variant {variant!r} after {where}:" + "".join(f"\n  {each}" for each in wrong) + f"\n  see {directory}"
    )
