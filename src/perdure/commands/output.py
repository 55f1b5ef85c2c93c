"""Output while work goes on: written by a thread, so that a reader who pauses does not hold up the work."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from perdure.errors import PerdureError


class Output:
    """Standard output and error in the order in which they are used.

    While it is open, `print` in a tool goes to standard error: standard output carries the answer, or JSON lines.
    """

    def __init__(self) -> None:
        self._stdout: TextIO = sys.stdout
        self._queue: queue.SimpleQueue[tuple[TextIO, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="perdure output", daemon=True)
        self._on_closed: Callable[[], None] | None = None
        #: Standard output takes nothing any more: nobody reads it, or there is no space. Set by the thread.
        self.closed = False
        self._lost: OSError | None = None
        self.for_person = self._stdout.isatty()

    def say(self, text: str) -> None:
        """To standard output."""
        self._queue.put((self._stdout, text))

    def tell(self, text: str) -> None:
        """To standard error."""
        self._queue.put((sys.stderr, text))

    def on_closed(self, function: Callable[[], None]) -> None:
        """Call `function` on this loop once nobody reads standard output any more."""
        loop = asyncio.get_running_loop()
        self._on_closed = lambda: _call(loop, function)

    def __enter__(self) -> Output:
        sys.stdout = sys.stderr
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._queue.put(None)
        try:
            self._thread.join()
        finally:
            sys.stdout = self._stdout
        if self._lost is not None and error is None:
            raise _told(self._lost)  # nobody may take what was lost for what was answered

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            stream, text = item
            if self.closed and stream is self._stdout:
                continue
            try:
                stream.write(text)
                stream.flush()
            except (OSError, ValueError) as error:
                if stream is self._stdout:
                    self.closed = True
                    self._lost = error if isinstance(error, OSError) else None
                    if self._on_closed is not None:
                        self._on_closed()


def _told(error: OSError) -> Exception:
    """A reader who left is no failure, and has an exit code of its own."""
    if isinstance(error, BrokenPipeError):
        return error
    return PerdureError(
        f"standard output cannot be written ({error.strerror}): what was answered until then is in the store, "
        "perdure show has it"
    )


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the work is over
        loop.call_soon_threadsafe(function)
