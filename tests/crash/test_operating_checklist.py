"""The last line of the operating checklist: what each backend promises of crashes, power, files, backups, sharing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.app.opening import open_storage
from perdure.backends import jsonl_backup, sqlite_backup
from perdure.clock import SystemClock
from perdure.errors import SessionOwned, UsageError
from perdure.messages import text_of
from perdure.telemetry import Telemetry
from perdure.testing.crash import Point
from perdure.testing.scenario.kennel import Kennel
from perdure.testing.scenario.ordeal import undergo

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
BACKUPS: dict[str, Callable[[str, str], Any]] = {"sqlite": sqlite_backup.backup, "jsonl": jsonl_backup.backup}


def modes(path: Path) -> set[tuple[bool, int]]:
    """Whether each is a directory, and who may do what with it."""
    found = [path, *path.rglob("*")] if path.is_dir() else list(path.parent.glob(f"{path.name}*"))
    return {(each.is_dir(), stat.S_IMODE(each.stat().st_mode)) for each in found}


async def said(url: str) -> list[str]:
    async with perdure.open(url) as session:
        chat = await session.conversation("till")
        return [text_of(entry.messages[0]) async for entry in chat.history()]


@pytest.mark.parametrize("backend", ["sqlite", "jsonl"])
async def test_12_a_store_survives_crash_and_power_loss_is_its_owners_alone_can_be_backed_up_and_is_not_shared(
    backend: str, kennel: Kennel, place: Callable[[], Path], tmp_path: Path
):
    for how in (Point("write", 9, "before"), Point("sync", 5, "before"), Point("sync", 5, "drop")):
        assert undergo(kennel, place(), "plain", [how], backend=backend).hits == 1

    path = tmp_path / "work"
    url = f"jsonl:{path}" if backend == "jsonl" else str(path)
    mask = os.umask(0)
    try:
        async with perdure.open(url, model="demo") as session:
            chat = await session.conversation("till")
            await (await chat.submit("Hello")).wait()
            with pytest.raises(SessionOwned, match=str(os.getpid())):
                async with perdure.open(url):
                    pass
            assert modes(path) <= {(False, 0o600), (True, 0o700)}
            copy = tmp_path / "copy"
            BACKUPS[backend](str(path), str(copy))
    finally:
        os.umask(mask)
    assert modes(copy) <= {(False, 0o600), (True, 0o700)}
    assert await said(f"jsonl:{copy}" if backend == "jsonl" else str(copy)) == await said(url)


async def test_12_what_is_in_memory_ends_with_its_process_makes_no_file_and_is_seen_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    async with perdure.open("memory:", model="demo") as session:
        await (await (await session.conversation("till")).submit("Hello")).wait()
    assert await said("memory:") == []
    assert os.listdir(tmp_path) == []
    with pytest.raises(UsageError, match="only by the process"):
        await open_storage("memory:", SystemClock(), Telemetry(), mode="look")
