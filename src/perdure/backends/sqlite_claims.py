"""Claims, releases and inbound items: what is written besides batches. Functions of the writer's connection."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import os
import socket

import apsw

from perdure.backends.sqlite_locks import begin, holder_of_write_lock
from perdure.backends.sqlite_rows import fetch, place
from perdure.backends.workers import Workers, end, is_stopped, owned, state
from perdure.errors import SessionOwned, StorageRejected
from perdure.records import Seq
from perdure.storage import Claim, Opened, Worker

WORKER = "SELECT id, pid, started, host, since FROM worker WHERE id = ?"


def claim(
    connection: apsw.Connection, path: str, workers: Workers, worker: Worker, session: str, take_over: bool, kill: bool
) -> Opened:
    """Write a new owner and the next epoch. Raises SessionOwned."""
    _begin(connection, path, kill=kill)
    connection.execute("INSERT INTO session (key) VALUES (?) ON CONFLICT (key) DO NOTHING", (session,))
    number, epoch, head, next_id, is_open, owner, began, began_before = connection.execute(
        "SELECT id, epoch, head, next_id, open, owner, began, began_before FROM session WHERE key = ?", (session,)
    ).get
    if owner is not None and not take_over and workers.alive(owner):
        found = connection.execute(WORKER, (owner,)).get
        raise SessionOwned(owned(session, path, worker, worker_of(found)))
    connection.execute(
        "INSERT INTO worker (id, pid, started, host, since) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        (worker.id, worker.pid, worker.started, worker.host, worker.since),
    )
    connection.execute(
        "UPDATE session SET epoch = ?, open = 1, owner = ?, began = ?, began_before = ? WHERE id = ?",
        (epoch + 1, worker.id, head, began, number),
    )
    # The ids of the two epochs before this one stay, and those of this one (K47).
    at = place(number)
    connection.execute('DELETE FROM "commit" WHERE id > ? AND id <= ?', (at, at | began_before))
    gone = fetch(
        connection, "DELETE FROM worker WHERE NOT EXISTS (SELECT 1 FROM session WHERE owner = worker.id) RETURNING id"
    )
    connection.execute("COMMIT")
    for (id,) in gone:
        if not workers.alive(id):
            workers.forget(id)
    return Opened(claim=Claim(session, epoch + 1), head=Seq(head), next_id=next_id, clean=not is_open)


def _begin(connection: apsw.Connection, path: str, *, kill: bool) -> None:
    """Begin to write. With `kill`, a worker's process that stands in the way is ended: soon if it is stopped."""

    def end_stopped() -> None:
        holder = holder_of_write_lock(path)
        if kill and holder is not None and is_stopped(holder):
            _end_worker(connection, path, holder)

    try:
        begin(connection, end_stopped)
    except apsw.BusyError:
        holder = holder_of_write_lock(path)
        if not kill or holder is None:
            raise
        _end_worker(connection, path, holder)
        begin(connection)


def _end_worker(connection: apsw.Connection, path: str, pid: int) -> None:
    here = (pid, socket.gethostname())
    found = connection.execute(
        "SELECT started FROM worker WHERE pid = ? AND host = ? ORDER BY since DESC", here
    ).fetchone()
    if found is None or pid == os.getpid():
        raise StorageRejected(
            f"{path} is locked by process {pid} ({state(pid)}), which is no worker of this store: end it by hand"
        )
    end(pid, found[0])


def blocked_by(path: str) -> str:
    """Who holds the write lock, as the end of a sentence."""
    pid = holder_of_write_lock(path)
    if pid is None:
        return ""
    remedy = ": continue it, or take over with kill=True" if is_stopped(pid) else ""
    return f" by process {pid}, {state(pid)}{remedy}"


def worker_of(row: tuple[str, int, int, str, float]) -> Worker:
    id, pid, started, host, since = row
    return Worker(id=id, pid=pid, started=started, host=host, since=since)


def release(connection: apsw.Connection, claim: Claim) -> None:
    """Leave the clean-close mark, unless the claim is stale."""
    connection.execute(
        "UPDATE session SET open = 0, owner = NULL WHERE key = ? AND epoch = ? AND open = 1",
        (claim.session, claim.epoch),
    )


def hand_in(connection: apsw.Connection, session: str, id: str, body: bytes) -> bytes:
    """Keep an item unless its id is known. The body of the first one."""
    connection.execute("INSERT INTO session (key) VALUES (?) ON CONFLICT (key) DO NOTHING", (session,))
    (number,) = connection.execute("SELECT id FROM session WHERE key = ?", (session,)).fetchone() or (0,)
    connection.execute(
        "INSERT INTO inbound (session, id, body) VALUES (?, ?, ?) ON CONFLICT (session, id) DO NOTHING",
        (number, id, body),
    )
    return connection.execute("SELECT body FROM inbound WHERE session = ? AND id = ?", (number, id)).get
