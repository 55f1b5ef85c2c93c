"""Output in a file: all of one command's, within a bound, and without making the loop wait for the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Generator

from perdure.clock import Clock
from perdure.sandbox import Spill
from perdure.sandboxes.table import owner, owner_lives
from perdure.sandboxes.threads import Worker

#: Bytes that may wait for the disk. Beyond, the command waits: its output is not read.
BACKLOG = 4 * 1024 * 1024
PREFIX = "perdure-"
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Spool:
    """The output of one command. `newest` keeps the end of it when there is too much, else the beginning is kept.

    Invariant: the file is touched on the worker alone, so whatever is asked of it sees all that was fed before.
    """

    def __init__(self, worker: Worker, path: str, most: int, *, newest: bool, after: Spill | None = None) -> None:
        self.path = path
        self._worker = worker
        self._most = most
        self._newest = newest
        #: What is needed for a file to be made; None when it is made at once.
        self._after = after
        #: Fed before there was a file.
        self._early = bytearray()
        self._lines = 0
        self._made = False
        self._backlog = 0
        self._room: Callable[[], None] | None = None
        # On the worker: the file, its size, the position of its first byte in all the output, and why it got no more.
        self._handle = -1
        self._size = 0
        self._begin = 0
        self._failed = False
        if after is None:
            self._make()

    # -- on the loop ----------------------------------------------------------------------------

    @property
    def used(self) -> bool:
        """Whether there is a file."""
        return self._made

    @property
    def full(self) -> bool:
        """The disk is behind: nothing more should be fed now."""
        return self._backlog > BACKLOG

    def when_room(self, tell: Callable[[], None]) -> None:
        """Call this on the loop once the disk has caught up."""
        self._room = tell

    def feed(self, piece: bytes) -> None:
        if not self._made:
            self._early += piece
            self._lines += piece.count(b"\n")
            after = self._after
            if after is not None and (len(self._early) > after.bytes or self._lines > after.lines):
                piece, self._early = bytes(self._early), bytearray()
                self._make()
            else:
                return
        self._backlog += len(piece)
        self._worker.submit(lambda: self._write(piece), lambda: self._written(len(piece)))

    def _make(self) -> None:
        self._made = True
        self._worker.submit(self._open)

    def _written(self, size: int) -> None:
        self._backlog -= size
        if self._room is not None and not self.full:
            tell, self._room = self._room, None
            tell()

    async def kept(self) -> int:
        """How many bytes of the output the file has, all that were fed being written. It gets no more."""
        if not self._made:
            return 0
        return await self._worker.call(self._finish)

    async def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """The output from a position on, or from so far before its end; where that really begins."""
        return await self._worker.call(lambda: self._read(offset, limit))

    # -- on the worker --------------------------------------------------------------------------

    def _open(self) -> None:
        with self._watched():
            self._handle = os.open(self.path, FLAGS, 0o600)

    def _write(self, piece: bytes) -> None:
        if self._handle < 0 or self._failed:
            return
        with self._watched():
            if not self._newest:
                piece = piece[: self._most - self._size]
            rest = memoryview(piece)
            while rest:
                written = os.write(self._handle, rest)
                self._size += written
                rest = rest[written:]
            if self._size > self._most:
                self._drop_older()

    def _drop_older(self) -> None:
        """Keep the newer half: another file takes the place of this one."""
        kept = self._most // 2
        beside = f"{self.path}.new"
        with open(self.path, "rb") as old, open(os.open(beside, FLAGS | os.O_TRUNC, 0o600), "wb") as new:
            old.seek(self._size - kept)
            shutil.copyfileobj(old, new, 1024 * 1024)
        os.rename(beside, self.path)
        os.close(self._handle)
        self._handle = os.open(self.path, FLAGS, 0o600)
        self._begin += self._size - kept
        self._size = kept

    def _finish(self) -> int:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        return self._size

    def _read(self, offset: int, limit: int) -> tuple[int, bytes]:
        end = self._begin + self._size
        begin = min(max(end + offset if offset < 0 else offset, self._begin), end)
        try:
            with open(self.path, "rb") as file:
                file.seek(begin - self._begin)
                return begin, file.read(min(limit, end - begin))
        except OSError:
            return begin, b""

    @contextlib.contextmanager
    def _watched(self) -> Generator[None]:
        """A disk that refuses ends the keeping, not the command."""
        try:
            yield
        except OSError:
            self._failed = True


class Scratch:
    """A directory for the output of one sandbox's commands: only this user's, and gone with the sandbox.

    It is named after its process, so that what a killed one left is known, and removed by the next.
    """

    def __init__(self, parent: str, clock: Clock) -> None:
        self.path = os.path.join(parent, f"{PREFIX}{owner()}-{clock.token().hex()[:16]}")
        self._parent = parent
        self._made = False

    def make(self) -> None:
        """Blocks. Once is enough."""
        if not self._made:
            os.mkdir(self.path, 0o700)
            self._made = True
            remove_left(self._parent)

    def remove(self) -> None:
        """Blocks. It can be made again."""
        if self._made:
            self._made = False
            shutil.rmtree(self.path, ignore_errors=True)


def remove_left(parent: str) -> None:
    """Remove the directories of processes that are gone. Of other users and other containers nothing is touched."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            name, _, token = entry.name.removeprefix(PREFIX).rpartition("-")
            if (
                not entry.name.startswith(PREFIX)
                or not token
                or [part.isdigit() for part in name.split(".")] != [True] * 3
            ):
                continue
            if entry.stat(follow_symlinks=False).st_uid == os.geteuid() and owner_lives(name) is False:
                shutil.rmtree(entry.path, ignore_errors=True)
