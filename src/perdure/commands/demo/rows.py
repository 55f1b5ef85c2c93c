"""What the verifier reads: raw rows and raw lines, decoded as plain JSON."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, cast

import apsw
import msgspec

from perdure.commands.demo.orders import DISPATCHED
from perdure.commands.demo.places import Places

Json = dict[str, Any]

#: A row's number is its session's times 2^40 plus its own.
_OWN = (1 << 40) - 1


class Unreadable(Exception):
    """There is nothing to judge by. The message says what, and why."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The store and the files of a demo as they lie there. `wrong`: what is not even well formed."""

    entries: list[Json]
    tasks: dict[int, Json]
    #: By request id.
    submissions: dict[str, Json]
    #: Keys of conversations by id.
    conversations: dict[int, str | None]
    sessions: dict[str, Json]
    promises: list[Json]
    payments: list[Json]
    dispatched: list[str]
    files: dict[str, str]
    wrong: list[str]


def read_rows(files: Places) -> Rows:
    """Read everything. Raises Unreadable."""
    wrong: list[str] = []
    if not os.path.isfile(files.store):
        raise Unreadable(f"there is no store in {files.store}")
    try:
        connection = apsw.Connection(files.store, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            wrong += [
                f"the database is damaged: {row[0]}"
                for row in connection.execute("PRAGMA integrity_check")
                if row[0] != "ok"
            ]
            entries = list(_bodies(connection, "entry", wrong))
            tasks = {int(body["id"]): body for body in _bodies(connection, "task", wrong)}
            submissions = {str(body.get("request_id")): body for body in _bodies(connection, "submission", wrong)}
            conversations = {int(body["id"]): body.get("key") for body in _bodies(connection, "conversation", wrong)}
            sessions = {
                str(key): {"epoch": epoch, "open": opened, "owner": owner}
                for key, epoch, opened, owner in connection.execute("SELECT key, epoch, open, owner FROM session")
            }
        finally:
            connection.close()
    except apsw.Error as error:
        raise Unreadable(f"{files.store} cannot be read: {error}") from error
    return Rows(
        entries=entries,
        tasks=tasks,
        submissions=submissions,
        conversations=conversations,
        sessions=sessions,
        promises=list(_objects(files.promises, wrong)),
        payments=list(_objects(files.ledger, wrong)),
        dispatched=list(_lines(os.path.join(files.work, DISPATCHED), wrong)),
        files=dict(_contents(files.work)),
        wrong=wrong,
    )


def _bodies(connection: apsw.Connection, table: str, wrong: list[str]) -> Iterator[Json]:
    """The bodies of a table, by id."""
    for number, raw in connection.execute(f"SELECT id, body FROM {table} ORDER BY id"):
        body = _object(raw)
        if body is None or body.get("id") != number & _OWN:
            wrong.append(f"row {number & _OWN} of table {table} has a body that is not its own: {raw!r:.80}")
        else:
            yield body


def _objects(path: str, wrong: list[str]) -> Iterator[Json]:
    for line in _lines(path, wrong):
        found = _object(line)
        if found is None:
            wrong.append(f"a line of {path} is no JSON object: {line!r:.80}")
        else:
            yield found


def _object(raw: Any) -> Json | None:
    try:
        found = json.loads(raw)
    except (ValueError, TypeError):
        return None
    return cast("Json", found) if isinstance(found, dict) else None


def _lines(path: str, wrong: list[str]) -> Iterator[str]:
    """The lines of a file that may not be there."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return
    if text and not text.endswith("\n"):
        wrong.append(f"the last line of {path} was not written whole")
    yield from text.splitlines()


def _contents(directory: str) -> Iterator[tuple[str, str]]:
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
            yield name, file.read()
