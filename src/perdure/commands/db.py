"""`perdure db check` and `perdure db backup`: the health of a store file, and copies of it."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import click

from perdure.app.adapters import adapter
from perdure.commands.options import as_json_option, named, stored
from perdure.commands.progress import Progress
from perdure.commands.text import as_json
from perdure.commands.visible import visible
from perdure.errors import UsageError

HEALTHY, DAMAGED = 0, 1

#: What to do about a store that is not as it must be.
REMEDY = (
    "keep a copy of the file and its -wal as they are, then restore a backup (perdure db backup makes them); "
    "sessions that are not named here can be worked on"
)
FILE_REMEDY = (
    "work in it no more, keep a copy of the file and its -wal, then restore a backup, "
    "or recover what can be read with: sqlite3 FILE .recover"
)
JSONL_REMEDY = (
    "keep a copy of the directory as it is, then restore a backup of the sessions that are named here "
    "(perdure db backup makes them); each line of their files can be read by itself; the others can be worked on"
)


@click.group()
def db() -> None:
    """Check a store, or back it up. Both work beside the owners of its sessions."""


@db.command()
@stored
@as_json_option
def check(store: str, json: bool) -> int:
    """Check the whole store: the file, every record, and what records say of each other.

    Exit codes: 0 healthy, 1 damaged. Each line says what is wrong and where; the last one, what to do.
    """
    with Progress("checking") as progress:
        backend, path = _place(store)
        checked = adapter(f"storage-check:{backend}")(path, _teller(progress))
    for line in [as_json(checked)] if json else _lines(checked, backend):
        print(visible(line))
    return HEALTHY if checked.healthy else DAMAGED


@db.command()
@click.argument("file", callback=named)
@stored
@as_json_option
def backup(file: str, store: str, json: bool) -> int:
    """Copy the store to FILE, which is new: as it is at one moment, and checked. (Of a JSONL store: a directory.)

    FILE is a store of its own. Beside the original it would do the work that is unfinished in both once more.
    """
    with _ending_in_order(), Progress("copying") as progress:
        backend, path = _place(store)
        made = adapter(f"storage-backup:{backend}")(path, file, _teller(progress))
    checked = made.checked
    if json:
        print(as_json({"path": made.path, "checked": checked}))
    else:
        print(f"{made.path}: {_size(checked.bytes)}, {_counted(checked)}, checked")
    return HEALTHY


@contextmanager
def _ending_in_order() -> Generator[None]:
    """Who tells the process to end lets it remove what it began: the part of a copy is as large as the store."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    told = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in told:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in told:
            signal.signal(number, before[number])


def _place(store: str) -> tuple[str, str]:
    """The backend of a store, and its path."""
    scheme, _, rest = store.partition(":")
    if store == "memory:" or scheme in ("postgresql", "postgres"):
        raise UsageError(f"store {store!r} is no file: name the file of a store")
    return (scheme, rest.removeprefix("//")) if scheme in ("sqlite", "jsonl") else ("sqlite", store)


def _teller(progress: Progress) -> Any:
    def tell(what: str, done: int, total: int) -> None:
        progress.total = total
        progress.to(done, what if what == "copying" else f"checking {what}")

    return tell


def _lines(checked: Any, backend: str) -> Iterator[str]:
    yield f"{checked.path}: {_size(checked.bytes)}, schema {checked.schema}, {_counted(checked)}"
    for each in checked.damage:
        yield f"damaged: {each.what}" if each.session is None else f"damaged: session {each.session!r}: {each.what}"
    if checked.healthy:
        yield "healthy"
    else:
        in_file = any(each.session is None for each in checked.damage)
        remedy = JSONL_REMEDY if backend == "jsonl" else FILE_REMEDY if in_file else REMEDY
        yield f"what to do: {remedy}"


def _counted(checked: Any) -> str:
    records = sum(checked.records.values())
    sessions = "session" if checked.sessions == 1 else "sessions"
    return f"{checked.sessions} {sessions}, {records} records"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
