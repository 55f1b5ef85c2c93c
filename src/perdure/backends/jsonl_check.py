"""Checking a JSONL store: the marks of every file, then the same checks of records that a SQLite store gets.

It looks beside live owners and changes nothing. Each session is looked at as of one moment, one after another.
For the checks of records a session is put into a temporary SQLite database, which goes when they are done.
"""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from perdure.backends.jsonl import check_about
from perdure.backends.jsonl_disk import reading_failed
from perdure.backends.jsonl_index import Row
from perdure.backends.jsonl_lines import FORMAT, KnownLine, RemoveLine
from perdure.backends.jsonl_places import ABOUT, SESSIONS, key_of
from perdure.backends.jsonl_session import JsonlSession
from perdure.backends.sqlite_check import Checked, Damage, Tell
from perdure.backends.sqlite_check_records import Session, check_session
from perdure.backends.sqlite_check_strays import strays
from perdure.backends.sqlite_rows import COMMIT, STATEMENT, place
from perdure.backends.sqlite_schema import migrations
from perdure.errors import NotFound, StorageCorrupt, UsageError
from perdure.records import Seq
from perdure.storage import Remove, RemoveEntries


def check(path: str, tell: Tell = lambda what, done, total: None, *, quick: bool = False) -> Checked:
    """Check a store. `quick`: only that its files are whole. Raises what opening it raises."""
    name = find(path)
    found: list[Damage] = []
    records: dict[str, int] = {}
    directories = list(sessions_of(name))
    for done, directory in enumerate(directories):
        tell("the files", done, len(directories))
        key = key_of(directory)
        if key is None:
            found.append(Damage(session=None, what=f"{directory} is not named as a session is"))
            continue
        found += [Damage(session=key, what=what) for what in _session(key, directory, records, quick=quick)]
    return Checked(
        path=str(name), bytes=_bytes(name), schema=FORMAT, sessions=len(directories), records=records, damage=found
    )


def find(path: str) -> Path:
    """The directory that a path names. Raises NotFound, UsageError or StorageCorrupt where it is no store."""
    name = Path(os.path.realpath(path))
    if not name.exists():
        raise NotFound(f"no store at {name}: check the path")
    if not name.is_dir():
        raise UsageError(f"{name} is a file: name the directory of a JSONL store")
    if not (name / ABOUT).exists():
        raise NotFound(f"no store at {name}: it has no {ABOUT}; check the path")
    check_about(name / ABOUT)
    return name


def sessions_of(name: Path) -> Iterator[Path]:
    if (name / SESSIONS).is_dir():
        yield from sorted((name / SESSIONS).iterdir())


def _bytes(name: Path) -> int:
    return sum(each.stat().st_size for each in name.rglob("*.jsonl"))


def _session(key: str, directory: Path, records: dict[str, int], *, quick: bool) -> Iterator[str]:
    session = JsonlSession(key, directory, writable=False, power=False)
    try:
        session.refresh()
        session.inbound.check()
        if not quick:
            yield from _records(session, records)
    except StorageCorrupt as damage:
        yield str(damage)
    except OSError as error:
        raise reading_failed(error, directory) from error
    finally:
        session.close()


def _records(session: JsonlSession, records: dict[str, int]) -> Iterator[str]:
    index = session.index.session
    connection = apsw.Connection("")
    try:
        for _, script in sorted(migrations().items()):
            connection.execute(script)
        owner = session.index.worker
        connection.execute("BEGIN")
        connection.execute(
            "INSERT INTO session (id, key, epoch, head, next_id, open, owner) VALUES (1, ?, ?, ?, ?, ?, NULL)",
            (session.key, index.epoch, index.head, index.next_id, owner is not None),
        )
        for row, at in session.index.everything():
            _insert(connection, session, row, at)
        for id, body, taken in index.inbound.all():
            if taken is None:
                connection.execute("INSERT INTO inbound (session, id, body) VALUES (1, ?, ?)", (id, session.body(body)))
        connection.execute("COMMIT")
        held = Session(1, session.key, index.epoch, index.head, index.next_id, int(owner is not None), None)
        yield from check_session(connection, held, records, lambda done: None)
        yield from (what for _, what in strays(connection))
    except apsw.Error as error:
        yield f"its records do not fit together ({error})"
    finally:
        connection.close()


def _insert(connection: apsw.Connection, session: JsonlSession, row: Row, at: Seq | None) -> None:
    if isinstance(row, KnownLine):
        connection.execute(COMMIT, (place(1) | row.seq, bytes.fromhex(row.commit)))
    elif not isinstance(row, RemoveLine | Remove | RemoveEntries):
        whole = msgspec.structs.replace(row, body=session.body(row.body))
        sql, values = STATEMENT[type(row)](place(1), at or 0, whole)
        connection.execute(sql, values)
