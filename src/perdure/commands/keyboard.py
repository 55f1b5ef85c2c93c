"""Lines of standard input, read by a thread: from a pipe, or from a person with editing and a history.

The history is a file for its owner only. A line with a word in it that looks like a key is not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.commands.settings import looks_like_key
from perdure.values import clean_text

try:
    import readline
except ImportError:  # a Python without it: lines are read as the terminal gives them
    readline = None
try:
    import termios
except ImportError:
    termios = None

#: Lines of the history that are kept.
KEPT = 1000


class Keyboard:
    """`next()` is the next line, without its end; None when there is none any more. One line is read ahead at most."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        stdin = sys.stdin
        self.for_person = stdin is not None and stdin.isatty() and sys.stdout.isatty()
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._wanted = threading.Semaphore(0)
        self._history = history_file(environment)
        self._buffer = bytearray()  #: of the thread
        self._terminal: list[Any] | None = None
        self._ended = False

    def __enter__(self) -> Keyboard:
        if self.for_person:
            if termios is not None:
                self._terminal = termios.tcgetattr(sys.stdin.fileno())
            self._recall()
        threading.Thread(target=self._read, name="perdure keyboard", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Leave the terminal as it was: the thread may be inside of editing a line."""
        if self._terminal is not None and termios is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._terminal)

    async def next(self) -> str | None:
        """The next line. May be cancelled: the line is given to the next call."""
        if self._ended:
            return None
        if self._lines.empty():
            self._wanted.release()
        line = await self._lines.get()
        self._ended = line is None
        return line

    def _read(self) -> None:
        read = self._read_typed if self.for_person else self._read_piped
        while True:
            self._wanted.acquire()
            line = read()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear of it
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            if line is None:
                return

    def _read_typed(self) -> str | None:
        try:
            line = clean_text(input())
        except (EOFError, OSError, KeyboardInterrupt):
            return None
        self._remember(line)
        return line

    def _read_piped(self) -> str | None:
        """Not through `sys.stdin`: a thread that waits inside of it would break the end of the process."""
        if sys.stdin is None:
            return None
        try:
            while (end := self._buffer.find(b"\n")) < 0:
                piece = os.read(sys.stdin.fileno(), 65536)
                if not piece:
                    end = len(self._buffer)
                    break
                self._buffer += piece
        except (OSError, ValueError):
            return None
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line.decode("utf-8", errors="replace").rstrip("\r\n").removeprefix("\ufeff") if line else None

    # -- history ----------------------------------------------------------------------------

    def _recall(self) -> None:
        if readline is None:
            return
        readline.set_auto_history(False)
        readline.set_history_length(KEPT)
        with contextlib.suppress(OSError):
            readline.read_history_file(self._history)

    def _remember(self, line: str) -> None:
        if readline is None or not line.strip() or any(map(looks_like_key, line.split())):
            return
        readline.add_history(line)
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._history, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.chmod(self._history, 0o600)
            readline.write_history_file(self._history)


class Redirected(io.TextIOBase):
    """Standard output for `input`, which edits lines only where it finds the terminal behind it; what is printed goes
    to standard error."""

    encoding = "utf-8"
    errors = "replace"

    def fileno(self) -> int:
        return 1

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def history_file(environment: Mapping[str, str]) -> Path:
    """Where lines that were typed are kept."""
    above = environment.get("XDG_STATE_HOME", "")
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    return (Path(above) if os.path.isabs(above) else home / ".local" / "state") / "perdure" / "history"
