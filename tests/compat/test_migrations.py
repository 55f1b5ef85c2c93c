"""A store of an older schema is migrated whole or not at all, once, whoever opens it and whatever dies (I67)."""

from __future__ import annotations

import gzip
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from tests.compat.make import VERSIONS
from tests.compat.migrating import NEXT

import perdure
from perdure.backends.sqlite import open_sqlite
from perdure.errors import SchemaTooNew
from perdure.testing.crash import count_points, for_each_point
from perdure.testing.processes import run_child

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
HERE = Path(__file__).parent


@pytest.fixture(params=VERSIONS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress((HERE / f"{request.param}.db.gz").read_bytes()))
    return path


def command(path: Path) -> list[str]:
    return [sys.executable, str(HERE / "migrating.py"), str(path)]


def state(path: Path) -> tuple[int, int, list[bytes]]:
    """Schema, how often the migration ran, and every entry. The file must be whole, and the entries all migrated."""
    connection = apsw.Connection(str(path))
    try:
        assert connection.pragma("integrity_check") == "ok"
        schema = int(connection.pragma("user_version"))
        ran = 0
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'migrated'").fetchall():
            ran = len(connection.execute("SELECT n FROM migrated").fetchall())
            assert not connection.execute("SELECT 1 FROM entry WHERE size <> length(body)").fetchall()
        return schema, ran, [bytes(body) for (body,) in connection.execute("SELECT body FROM entry ORDER BY id")]
    finally:
        connection.close()


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.invariant("HA-138")
def test_a_migration_that_dies_at_any_write_leaves_the_old_store_or_the_new_one_and_the_next_opening_finishes(
    store: Path, tmp_path: Path, crash_form: str
):
    entries = state(store)[2]
    first = tmp_path / "count.db"
    shutil.copy(store, first)
    points = count_points(command(first))
    assert state(first)[:2] == (NEXT, 1)
    step = 1 if crash_form == "full" else max(points.writes // 6, 1)
    seen: set[int] = set()
    places = iter(range(10_000))
    last = Path()

    def start(point: object) -> object:
        nonlocal last
        last = tmp_path / f"{next(places)}.db"
        shutil.copy(store, last)
        return run_child(command(last), point.environment(), grace=0.0)  # type: ignore[attr-defined]

    for action in ("before", "torn") if crash_form == "full" else ("torn",):
        for _, end in for_each_point(start, "write", action, first=1, step=step, last=points.writes):  # type: ignore[arg-type]
            schema, ran, kept = state(last)
            assert (schema, ran, kept) in ((NEXT - 1, 0, entries), (NEXT, 1, entries))
            seen.add(schema)
            assert run_child(command(last)).code == 0
            assert state(last) == (NEXT, 1, entries)
            assert end is not None
    assert NEXT - 1 in seen


def test_processes_that_open_an_old_store_at_once_migrate_it_once(store: Path):
    entries = state(store)[2]
    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(run_child, [command(store)] * 4))
    # all of them open it; of those that claim the same session at once, some find it owned
    assert any(end.code == 0 for end in ends)
    assert all(end.code == 0 or "SessionOwned" in end.stderr for end in ends)
    assert state(store) == (NEXT, 1, entries)


async def test_a_store_of_the_next_version_is_refused_with_what_to_do_and_left_as_it_is(store: Path):
    assert run_child(command(store)).code == 0
    assert run_child(command(store)).code == 0
    before = state(store)
    content = bytes_of(store)
    for mode in ("own", "read", "hand-in"):
        with pytest.raises(SchemaTooNew, match=rf"schema {NEXT}.*upgrade perdure, or name another store"):
            async with perdure.open(str(store), session="finished", mode=mode) as session:
                await session.conversations()
    assert (bytes_of(store), state(store)) == (content, before)


async def test_opening_a_store_that_is_not_to_be_migrated_changes_no_record(store: Path):
    before = state(store)
    for _ in range(2):
        await (await open_sqlite(store)).close()
    assert state(store) == before
