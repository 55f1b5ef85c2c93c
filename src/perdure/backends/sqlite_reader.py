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

from perdure.backends.sqlite_errors import again, opening_failed, translated
from perdure.backends.sqlite_rows import place
from perdure.errors import PerdureError, StorageFailed

T = TypeVar("T")

Done = asyncio.Future[Any]
Asked = tuple[asyncio.AbstractEventLoop, Done, Callable[[apsw.Connection], Any] | None]


class Reader:
    """Asked from any thread; the thread of its own has the connection."""

    def __init__(self, path: str, connect: Callable[[], apsw.Connection]) -> None:
        #: Why the store could not be opened, where it could not. Belongs to the thread, as all below.
        self._failure: PerdureError = StorageFailed(f"{path} is not open")
        self._path = path
        self._connect = connect
        self._queue: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        #: Where the rows of a session begin, by its key.
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
        connection: apsw.Connection | None = None
        try:
            connection = self._connect()
        except Exception as error:
            self._failure = opening_failed(error, self._path)
        while True:
            loop, done, function = self._queue.get()
            result, error = None, None
            if function is None:
                if connection is not None:
                    connection.close()
            elif connection is None:
                error = again(self._failure)
            else:
                try:
                    result = function(connection)
                except Exception as raised:
                    error = translated(raised, self._path, doing="while reading", errno_of=connection.system_errno)
            with suppress(RuntimeError):  # that loop is closed: nobody is left to hear of it
                loop.call_soon_threadsafe(settle, done, result, error)
            if function is None:
                return


def settle(done: Done, result: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
