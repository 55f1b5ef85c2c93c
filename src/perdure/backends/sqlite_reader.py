"""The thread that reads a store: short statements on a connection of its own, so that no read waits for a flush."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import apsw

from perdure.backends.sqlite_errors import opening_failed, translated
from perdure.backends.sqlite_rows import place
from perdure.errors import PerdureError

T = TypeVar("T")

Done = asyncio.Future[Any]
Asked = tuple[asyncio.AbstractEventLoop, Done, Callable[[apsw.Connection], Any] | None]


class Reader:
    """Asked from any thread; the thread of its own has the connection."""

    def __init__(self, path: str, connect: Callable[[], apsw.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._queue: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        #: Both belong to the thread: its connection, and where the rows of a session begin, by its key.
        self._connection: apsw.Connection | None = None
        self._places: dict[str, int] = {}
        threading.Thread(target=self._run, name=f"perdure-reader {path}", daemon=True).start()

    def ask(self, function: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Run a function that leaves no statement unfinished."""
        return self._put(function)

    def stop(self) -> asyncio.Future[None]:
        """Close the connection once everything asked is answered. Nothing may be asked after it."""
        return self._put(None)

    def place_of(self, connection: apsw.Connection, session: str) -> int | None:
        """Where the rows of a session begin, None where there is none. For functions that are asked."""
        found = self._places.get(session)
        if found is None:
            row = connection.execute("SELECT id FROM session WHERE key = ?", (session,)).fetchone()
            if row is not None:
                found = self._places[session] = place(row[0])
        return found

    def _put(self, function: Callable[[apsw.Connection], Any] | None) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        done: Done = loop.create_future()
        self._queue.put((loop, done, function))
        return done

    def _run(self) -> None:
        while True:
            loop, done, function = self._queue.get()
            result, error = None, None
            if function is not None:
                try:
                    result = function(self._connected())
                except Exception as raised:
                    error = self._meaning(raised)
            elif self._connection is not None:
                with suppress(apsw.Error):  # as the last one it copies the log, and need not succeed
                    self._connection.close()
            with suppress(RuntimeError):  # that loop is closed: nobody is left to hear of it
                loop.call_soon_threadsafe(settle, done, result, error)
            if function is None:
                return

    def _connected(self) -> apsw.Connection:
        """The first question opens the file. Where that fails the next one tries again."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _meaning(self, error: Exception) -> PerdureError:
        if self._connection is None:
            return opening_failed(error, self._path)
        return translated(error, self._path, doing="while reading", errno_of=self._connection.system_errno)


def settle(done: Done, result: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
