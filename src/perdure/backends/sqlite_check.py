"""Checking a store file: SQLite's own check of the file, then every record, then what records say of each other.

It reads one state of the store in one read transaction, beside a live owner too, and changes nothing.
While it reads, the owner's log cannot be emptied: it grows by what is committed meanwhile, and shrinks again after.
"""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import apsw
import msgspec

from perdure.backends.sqlite_check_records import Session, check_session
from perdure.backends.sqlite_check_strays import schema_differences, strays
from perdure.backends.sqlite_errors import opening_failed, translated
from perdure.backends.sqlite_schema import connect_reader
from perdure.errors import NotFound, UsageError

#: SQLite's list of what is wrong in a file is cut here.
MOST = 100
#: Virtual machine steps of SQLite between two words about progress.
STEPS = 200_000

#: Told of progress: what is done, how much of it, of how much (0: nobody knows).
Tell = Callable[[str, int, int], None]


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong. `session` is None where the file itself is."""

    session: str | None
    what: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and what is wrong with it."""

    path: str
    bytes: int
    schema: int
    sessions: int
    records: dict[str, int]
    damage: list[Damage]

    @property
    def healthy(self) -> bool:
        return not self.damage


def check(path: str, tell: Tell = lambda what, done, total: None, *, quick: bool = False) -> Checked:
    """Check a store. `quick`: only that its pages fit together. Raises what opening it raises."""
    name = find(path)
    found = _Found()
    with reading(name, tell) as connection:
        try:
            _look(connection, found, tell, quick=quick)
        except apsw.CorruptError as error:  # what SQLite needs to look any further
            found.damage.append(Damage(session=None, what=f"SQLite: {error}"))
    return Checked(
        path=name,
        bytes=found.bytes,
        schema=found.schema,
        sessions=found.sessions,
        records=found.records,
        damage=found.damage,
    )


class _Found:
    def __init__(self) -> None:
        self.schema = 0
        self.bytes = 0
        self.sessions = 0
        self.records: dict[str, int] = {}
        self.damage: list[Damage] = []


def _look(connection: apsw.Connection, found: _Found, tell: Tell, *, quick: bool) -> None:
    found.schema = connection.pragma("user_version")
    found.bytes = connection.pragma("page_count") * connection.pragma("page_size")
    connection.execute("SELECT count(*) FROM session").get  # noqa: B018 - the state is that of the first read
    found.damage += [Damage(session=None, what=what) for what in _file(connection, quick=quick)]
    if found.damage:
        return
    differences = list(schema_differences(connection, found.schema))
    found.damage += [Damage(session=None, what=what) for _, what in differences]
    if any(kind == "table" for kind, _ in differences):
        return
    sessions = [Session(*row) for row in connection.execute(SESSIONS)]
    found.sessions = len(sessions)
    total = sum(connection.execute(f'SELECT count(*) FROM "{table}"').get for table in _COUNTED)
    for session in () if quick else sessions:
        for what in check_session(connection, session, found.records, lambda done: tell("records", done, total)):
            found.damage.append(Damage(session=session.key, what=what))
    if not quick:
        keys = {session.number: session.key for session in sessions}
        found.damage += [Damage(session=keys.get(number), what=what) for number, what in strays(connection)]


SESSIONS = "SELECT id, key, epoch, head, next_id, open, owner FROM session ORDER BY id"
_COUNTED = ("conversation", "entry", "task", "submission", "document", "base", "delta", "inbound")


def find(path: str) -> str:
    """The file that a path names. Raises NotFound where there is none."""
    name = os.path.realpath(path)
    if os.path.isdir(name):
        raise UsageError(f"{name} is a directory: name the file of a store in it")
    if not os.path.exists(name):
        raise NotFound(f"no store at {name}: check the path")
    if not os.path.isfile(name):
        raise UsageError(f"{name} is a pipe or a device, and a store is a file: name the file of a store")
    return name


@contextmanager
def reading(path: str, tell: Tell) -> Generator[apsw.Connection]:
    """A connection to one state of the store."""
    try:
        connection = connect_reader(path, vfs=None)
    except Exception as error:
        raise opening_failed(error, path) from error
    try:
        connection.set_progress_handler(_ticking(tell), STEPS)
        connection.execute("BEGIN")
        yield connection
    except apsw.Error as error:
        raise translated(error, path, doing="while reading") from error
    finally:
        connection.set_progress_handler(None)
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.close()


def _ticking(tell: Tell) -> Callable[[], bool]:
    count = 0

    def tick() -> bool:
        nonlocal count
        count += 1
        tell("the file", count, 0)
        return False

    return tick


def _file(connection: apsw.Connection, *, quick: bool) -> Iterator[str]:
    """What SQLite finds wrong."""
    pragma = "quick_check" if quick else "integrity_check"
    try:
        for (line,) in connection.execute(f"PRAGMA {pragma}({MOST})"):
            if line != "ok":
                yield f"SQLite: {line}"
    except apsw.CorruptError as error:
        yield f"SQLite: {error}"
