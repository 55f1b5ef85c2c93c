"""The ledger against the provider's own bill, whenever the process is killed (H17, K46, I47).

What was billed and committed is in the ledger, to the cent; what was billed and lost is there as unknown.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.crash.spender import INPUTS, PRICE

import perdure
from perdure.messages import AssistantMessage
from perdure.testing.crash import Point, count_points, for_each_point
from perdure.testing.processes import Exit, run_child

pytestmark = pytest.mark.anyio
SPENDER = Path(__file__).with_name("spender.py")


def command(directory: Path, *rest: str) -> list[str]:
    directory.mkdir(exist_ok=True)
    return [sys.executable, str(SPENDER), str(directory), *rest]


async def judge(directory: Path) -> tuple[int, int]:
    """Finish the work, and compare. Returns how many requests are known, and how many are not."""
    assert run_child(command(directory)).code == 0
    bill = (await bill_of(directory)).split()
    asked, billed = bill.count("asked"), bill.count("billed")
    async with perdure.open(str(directory / "store.db"), mode="read") as session:
        chat = await session.conversation("till")
        (row,) = (await chat.usage())["models"].values()
        said = [message async for entry in chat.history() for message in entry.messages]
        answers = [each for each in said if isinstance(each, AssistantMessage) and each.stop != "interrupted"]
        assert await session.usage() == await chat.usage() == await chat.usage(subtree=True)
    known = row["requests"] - row["unknown"]
    assert known == 2 * INPUTS == len(answers)
    assert row["cost"] == known * PRICE
    assert known <= billed <= row["requests"]
    assert asked <= row["requests"]
    return known, row["unknown"]


async def bill_of(directory: Path) -> str:
    return _read(directory / "bill")


def _read(path: Path) -> str:
    return path.read_text()


@pytest.mark.invariant("HA-133")
@pytest.mark.parametrize("where", ["asked", "billed"])
async def test_a_request_that_its_process_did_not_survive_is_counted_as_unknown_and_asked_again(
    tmp_path: Path, where: str
):
    for at in (1, 4):
        assert run_child(command(tmp_path / str(at), where, str(at))).killed
        assert (await judge(tmp_path / str(at)))[1] == 1


async def test_deaths_again_and_again_add_up(tmp_path: Path):
    for _ in range(3):
        assert run_child(command(tmp_path / "one", "billed", "2")).killed
    assert (await judge(tmp_path / "one"))[1] == 3


@pytest.mark.invariant("HA-130")
async def test_the_ledger_is_what_was_billed_wherever_the_process_is_killed(tmp_path: Path, crash_form: str):
    points = count_points(command(tmp_path / "count"))
    assert await judge(tmp_path / "count") == (2 * INPUTS, 0)
    step = 1 if crash_form == "full" else max(points.writes // 4, 1)
    numbers = itertools.count()

    def start(point: Point) -> Exit:
        return run_child(command(tmp_path / str(next(numbers))), point.environment(), grace=0.0)

    lost: list[Any] = []
    for place, (_, end) in enumerate(for_each_point(start, "write", "before", first=5, step=step, last=points.writes)):
        if end.killed:
            lost.append((await judge(tmp_path / str(place)))[1])
    assert lost
    assert max(lost) <= 1
