"""The floor: the statements and bytes of a commit, written by hand through one writer thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from pathlib import Path

import apsw

from perdure.backends.sqlite_groups import FENCE
from perdure.backends.sqlite_rows import BASE, COMMIT, DELTA, ENTRY, place

#: The product's own schema, so that the tables and indexes are the same.
SCHEMA = Path(__file__).parent.parent / "src/perdure/backends/sql/sqlite/001_first.sql"

Row = tuple[object, ...]
Statements = list[tuple[str, Row]]


class Floor:
    """A connection in a thread of its own; what waits in its queue is one transaction."""

    def __init__(self, path: Path, synchronous: str, sessions: int = 1) -> None:
        self._queue: queue.SimpleQueue[tuple[Statements, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._path = path
        self._synchronous = synchronous
        self._sessions = sessions
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()

    def commit(self, statements: Statements) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((statements, done))
        return done

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        connection = apsw.Connection(str(self._path))
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute(SCHEMA.read_text())
        for session in range(1, self._sessions + 1):
            connection.execute(
                "INSERT INTO session (id, key, epoch, open) VALUES (?, ?, 1, 1)", (session, f"s{session}")
            )
        execute = connection.cursor().execute
        self._ready.set()
        while True:
            group = [self._queue.get()]
            while True:
                try:
                    group.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            execute("BEGIN IMMEDIATE")
            for item in group:
                if item is not None:
                    for sql, row in item[0]:
                        execute(sql, row)
            execute("COMMIT")
            futures = [item[1] for item in group if item is not None]
            self._loop.call_soon_threadsafe(_resolve, futures)
            if None in group:
                connection.close()
                return


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def commit_statements(
    session: int, seq: int, entry: bytes, delta: bytes, base: bytes, *, document: int = 1
) -> Statements:
    """The statements of one commit with an entry and a document delta; every 65th stores a base, as the product
    does."""
    at = place(session)
    change = (BASE, (at | document, seq, 1, base)) if seq % 65 == 1 else (DELTA, (at | document, seq, delta))
    return [
        (FENCE, (seq, seq + 100, session, 1, seq - 1)),
        (COMMIT, (at | seq, b"0123456789abcdef")),
        (ENTRY, (at | (seq + 100), at | 1, None, entry)),
        change,
    ]
