"""The output of one command, from its pipe to whoever takes it.

It is read in bounded pieces, one for each turn of the loop, so that a flood neither fills the memory nor starves the
loop (I75). The pipe is our own: its end is not what a command's end is waited for by, since others may hold it (I72).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable

from perdure.sandboxes.spool import Spool

#: Bytes read in one turn of the loop, and what we ask the kernel to buffer meanwhile.
PIECE = 64 * 1024
PIPE_SIZE = 1024 * 1024

Sink = Callable[[bytes], None]


class Pump:
    """Invariant: `writer` is open until `started`, the reader until `close`; the loop watches it unless paused."""

    def __init__(self, sink: Sink | None, *, most: int | None = None, spool: Spool | None = None) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._most = most
        self.spool = spool
        self.total = 0
        #: The disk is behind, so the command waits.
        self.paused = False
        #: Done when the last writer closed the output, when the sink raised, when there was too much.
        self.drained: asyncio.Future[None] = loop.create_future()
        self.broken: asyncio.Future[Exception] = loop.create_future()
        self.capped: asyncio.Future[None] = loop.create_future()
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        with contextlib.suppress(
            OSError, AttributeError
        ):  # there is a limit for each user; other systems have no such call
            fcntl.fcntl(self._reader, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        loop.add_reader(self._reader, self._read)

    def started(self) -> None:
        """The command has the writing end now: ours would keep it open."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def divert(self, sink: Sink | None) -> Sink | None:
        """Let another take what comes from now on; who did until now."""
        before, self._sink = self._sink, sink
        return before

    def _read(self) -> None:
        try:
            piece = os.read(self._reader, PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self._take(piece)
            return
        self._loop.remove_reader(self._reader)
        if not self.drained.done():
            self.drained.set_result(None)

    def _take(self, piece: bytes) -> None:
        if self._most is not None and self.total + len(piece) > self._most:
            piece = piece[: self._most - self.total]
            if not self.capped.done():
                self.capped.set_result(None)
        self.total += len(piece)
        if not piece or self.broken.done():
            return
        try:
            if self._sink is not None:
                self._sink(piece)
        except Exception as error:
            self.broken.set_result(error)
            return
        if self.spool is not None:
            self.spool.feed(piece)
            if self.spool.full:
                self.paused = True
                self._loop.remove_reader(self._reader)
                self.spool.when_room(self._resume)

    def _resume(self) -> None:
        self.paused = False
        if self._reader >= 0 and not self.drained.done():
            self._loop.add_reader(self._reader, self._read)

    def close(self) -> None:
        """Once is enough. What comes later is not seen, and its writers are told that nobody reads."""
        self.started()
        if self._reader >= 0:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1
