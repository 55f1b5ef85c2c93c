"""What a power loss may leave, as pure functions over a file's changes; and the VFS in one process."""

from random import Random
from threading import Thread

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import UsageError
from perdure.testing.vfs import SECTOR, Change, CrashingVFS, PowerLossVFS, redo, survivors, undo

#: A write (offset, bytes) or a truncation (size, None), small enough that they overlap.
steps = st.lists(st.tuples(st.integers(0, 3000), st.none() | st.binary(min_size=1, max_size=1500)), max_size=8)


def changed(content: bytes, steps: list[tuple[int, bytes | None]]) -> tuple[bytes, list[Change]]:
    """Do the steps one by one, noting each as the VFS does."""
    changes: list[Change] = []
    for offset, new in steps:
        old = content[offset:] if new is None else content[offset : offset + len(new)]
        changes.append(Change(offset, old, new, len(content)))
        content = redo(content, changes[-1:])
    return content, changes


@settings(max_examples=50)
@given(st.binary(max_size=2000), steps)
def test_undoing_the_changes_gives_what_was_synced(synced, steps):
    content, changes = changed(synced, steps)

    assert undo(content, changes) == synced


@settings(max_examples=50)
@given(st.binary(max_size=2000), steps, st.integers())
def test_dropping_everything_leaves_what_was_synced(synced, steps, seed):
    _, changes = changed(synced, steps)

    assert redo(synced, survivors(changes, "drop", Random(seed))) == synced


@settings(max_examples=50)
@given(st.binary(max_size=2000), steps, st.sampled_from(["prefix", "any"]), st.integers())
def test_every_byte_that_is_left_was_synced_or_written_there_or_is_a_gap(synced, steps, keep, seed):
    _, changes = changed(synced, steps)

    left = redo(synced, survivors(changes, keep, Random(seed)))

    for at, byte in enumerate(left):
        legal = {0, synced[at] if at < len(synced) else 0}
        for change in changes:
            if change.new is not None and change.offset <= at < change.offset + len(change.new):
                legal.add(change.new[at - change.offset])
        assert byte in legal


@settings(max_examples=50)
@given(st.binary(max_size=2000), steps, st.integers())
def test_a_prefix_is_what_was_there_at_some_moment_but_for_one_torn_write(synced, steps, seed):
    _, changes = changed(synced, steps)

    kept = survivors(changes, "prefix", Random(seed))
    whole = [change for change in kept if change in changes]

    assert len(kept) - len(whole) <= 1
    assert whole == changes[: len(whole)] or kept[:-1] == changes[: len(kept) - 1]


@settings(max_examples=50)
@given(st.integers(0, 5000), st.binary(min_size=1, max_size=5000), st.integers())
def test_sectors_are_kept_whole_or_not_at_all(offset, data, seed):
    change = Change(offset, b"", data, 0)

    for piece in survivors([change], "any", Random(seed)):
        assert piece.new is not None
        end = piece.offset + len(piece.new)
        assert piece.offset // SECTOR == (end - 1) // SECTOR
        assert piece.offset == offset or piece.offset % SECTOR == 0
        assert end == offset + len(data) or end % SECTOR == 0


@settings(max_examples=50)
@given(steps, st.sampled_from(["prefix", "any"]), st.integers())
def test_a_seed_leaves_the_same_again(steps, keep, seed):
    _, changes = changed(b"", steps)

    assert survivors(changes, keep, Random(seed)) == survivors(changes, keep, Random(seed))


# -- in one process -----------------------------------------------------------------------------


def opened(path: object, vfs: str) -> apsw.Connection:
    connection = apsw.Connection(str(path), vfs=vfs)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute("create table if not exists row (n integer)")
    return connection


@pytest.mark.parametrize("kind", [CrashingVFS, PowerLossVFS])
def test_a_database_works_as_usual_through_the_vfs(tmp_path, kind):
    vfs = kind("usual")
    writer = opened(tmp_path / "x.db", vfs.name)
    reader = apsw.Connection(str(tmp_path / "x.db"), vfs=vfs.name)

    for n in range(50):
        writer.execute("insert into row values (?)", (n,))
    seen = reader.execute("select count(*) from row").get
    reader.close()
    writer.close()
    plain = apsw.Connection(str(tmp_path / "x.db"))

    assert seen == 50
    assert plain.execute("select count(*) from row").get == 50
    assert plain.pragma("integrity_check") == "ok"
    assert vfs.writes > 50
    assert vfs.syncs > 50
    plain.close()


@pytest.mark.parametrize(
    "on,action,error,code",
    [
        ("write", "error", apsw.IOError, apsw.SQLITE_IOERR_WRITE),
        ("sync", "error", apsw.IOError, apsw.SQLITE_IOERR_FSYNC),
        ("write", "full", apsw.FullError, apsw.SQLITE_FULL),
    ],
)
def test_a_failing_write_or_sync_is_an_error_of_sqlite_and_the_next_one_works(tmp_path, on, action, error, code):
    counting = CrashingVFS("counting")
    opened(tmp_path / "counted.db", counting.name).close()
    before = {"write": counting.writes - 2, "sync": counting.syncs - 2}
    vfs = CrashingVFS("failing", on=on, at=before[on] + 3, action=action)
    connection = opened(tmp_path / "x.db", vfs.name)

    with pytest.raises(error) as caught:
        connection.executemany("insert into row values (?)", ((n,) for n in range(20)))
    connection.execute("insert into row values (100)")

    assert caught.value.extendedresult == code
    assert connection.execute("select max(n) from row").get == 100
    connection.close()


def test_what_ends_at_a_point_is_told_to_the_crash_function(tmp_path):
    class Ended(Exception):
        pass

    def end():
        raise Ended

    vfs = CrashingVFS("ending", at=3, crash=end)

    with pytest.raises(Ended):
        opened(tmp_path / "x.db", vfs.name)

    assert vfs.writes == 3


def test_before_the_end_other_threads_go_on_for_a_breath(tmp_path):
    order: list[str] = []
    vfs = CrashingVFS("breathing", at=3, crash=lambda: order.append("end"), breath=0.2)

    def pass_on() -> None:
        while vfs.writes < 3:
            pass
        order.append("passed on")

    other = Thread(target=pass_on)
    other.start()
    apsw.Connection(str(tmp_path / "a.db"), vfs=vfs.name).execute("create table t (n)")
    other.join()

    assert order == ["passed on", "end"]


def test_a_number_that_never_comes_is_refused():
    with pytest.raises(UsageError, match="counted from 1"):
        CrashingVFS("never", at=0)
