"""A command behind a wrapper (see `strategies`): in a pid namespace, or below a helper that adopts its orphans."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence

from perdure.clock import Clock
from perdure.errors import SandboxError
from perdure.sandboxes import threads
from perdure.sandboxes.command import Child, hunt, settle, within
from perdure.sandboxes.pump import Pump
from perdure.sandboxes.strategies import Kind
from perdure.sandboxes.table import Brood, belonging, children, command_of, process, processes

#: Seconds that a wrapper may take to make its namespace, and that all of a command may take to die.
STARTING, ENDING = 10.0, 5.0
#: So much of what a failing wrapper says is told, in bytes.
MOST_TOLD = 1000


class Wrapped:
    """Invariant: the command runs only after `begin` said so, and then `_inner` is what was started inside."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        kind: Kind,
        mark: str,
        pump: Pump,
        env: Mapping[str, str],
        cwd: str,
        clock: Clock,
    ) -> None:
        self.pump = pump
        self.running: dict[int, str] = {}
        self.stuck: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._kind: Kind = kind
        self._mark = mark
        self._ready: asyncio.Future[None] = self._loop.create_future()
        #: Being ended: what outlives the shell gets the grace, and is not worth telling.
        self._ending = False
        self._said = bytearray()
        #: The first process inside: of the namespace, or of the command's session.
        self._inner = -1
        self._inner_handle = -1
        self._complaint = bytearray()
        self._sink = pump.divert(self._complain)
        self._talk, theirs = socket.socketpair()
        try:
            self.child = Child(argv, stdin=theirs.fileno(), pump=pump, env=env, cwd=cwd)
        except BaseException:
            self._talk.close()
            raise
        finally:
            theirs.close()
        pump.started()
        self._talk.setblocking(False)
        self._loop.add_reader(self._talk, self._hear)
        self.brood = Brood(self.child.pid, mark, self._since(self.child.pid))

    def _since(self, pid: int) -> int:
        row = process(pid)
        return row.started if row else 0

    def _complain(self, piece: bytes) -> None:
        self._complaint += piece[: MOST_TOLD - len(self._complaint)]

    # -- the talk with the wrapper --------------------------------------------------------------

    def _hear(self) -> None:
        try:
            piece = self._talk.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._loop.remove_reader(self._talk)
            return
        self._said += piece
        while b"\n" in self._said:
            line, _, rest = bytes(self._said).partition(b"\n")
            self._said = bytearray(rest)
            if line == b"ready":
                settle(self._ready)
            elif line == b"left":
                self._left()

    def _say(self, answer: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone
            self._talk.send(answer + b"\n")

    def _left(self) -> None:
        """The command has ended, something of it has not."""
        if self._ending:
            self._say(b"more")
            return
        listing = threads.start(self._list, "list")
        listing.add_done_callback(self._listed)

    def _list(self) -> dict[int, str]:
        above = self.child.pid if self._kind == "subreaper" else self._inner
        rows = belonging(processes(), None, [above])
        return {row.pid: command_of(row.pid) for row in rows if row.pid != above and row.alive}

    def _listed(self, listing: asyncio.Future[dict[int, str]]) -> None:
        if not listing.cancelled() and listing.exception() is None:
            self.running |= listing.result()
        self._say(b"end")

    # -- its life -------------------------------------------------------------------------------

    async def begin(self) -> None:
        await within(self._clock, STARTING, self._ready, self.child.exited)
        inside = children(self.child.pid) if self._ready.done() else []
        if not inside:
            await within(self._clock, 0.1, self.pump.drained)
            said = self._complaint.decode(errors="replace").strip()
            raise SandboxError(f"the command could not be started: {said or 'what keeps it together said nothing'}")
        self._inner = inside[0]
        with contextlib.suppress(OSError, AttributeError):
            self._inner_handle = os.pidfd_open(self._inner)
        with contextlib.suppress(OSError):
            spared = frozenset({self.child.pid} if self._kind == "subreaper" else {self.child.pid, self._inner})
            self.brood = Brood(os.getpgid(self._inner), self._mark, self.brood.since, spared)
        self.pump.divert(self._sink)
        self._say(b"go")

    async def terminate(self, grace: float) -> None:
        self._ending = True
        threads.start(self.brood.terminate, "terminate")
        await within(self._clock, grace, self.child.exited)

    async def end(self) -> None:
        exited = self.child.exited
        if not exited.done():
            self._kill()
            await within(self._clock, ENDING / 2, exited)
        if not exited.done():
            self.child.kill()
            await within(self._clock, ENDING / 2, exited)
        if self._kind == "namespace":
            await self._namespace_gone()
        if not exited.done() or self._lost():
            await self._hunt_all()

    def _kill(self) -> None:
        """With the first process of a namespace the kernel ends all of it; a helper does so itself when told."""
        self._ending = True
        if self._kind == "subreaper":
            with contextlib.suppress(OSError):
                self._talk.shutdown(socket.SHUT_RDWR)
            return
        self.child.kill()  # first: it would have something to say about an end of the other
        if self._inner_handle >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._inner_handle, signal.SIGKILL)

    async def _namespace_gone(self) -> None:
        """Its first process ends only after all others. A wrapper that was killed did not wait for that."""
        if self._inner_handle < 0:
            return
        if not ended(self._inner_handle):
            gone: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_reader(self._inner_handle, settle, gone)
            try:
                if not await within(self._clock, ENDING, gone):
                    self.stuck.add(self._inner)
            finally:
                self._loop.remove_reader(self._inner_handle)

    def _lost(self) -> bool:
        """Somebody killed the helper, the command perhaps: then it ended nothing."""
        status = self.child.peek() if self._kind == "subreaper" else 0
        return status is None or status < 0

    async def _hunt_all(self) -> None:
        self.brood = Brood(self.brood.group, self._mark, self.brood.since)
        await hunt(self, self._clock, patience=0)

    def release(self) -> None:
        if self._talk.fileno() < 0:
            return
        if not self.child.collected and not self.child.exited.done():
            self._kill()
        self._loop.remove_reader(self._talk)
        self._talk.close()
        self.child.release()
        if self._inner_handle >= 0:
            with contextlib.suppress(OSError):  # where we are the first process of a container it became ours
                os.waitid(os.P_PIDFD, self._inner_handle, os.WEXITED | os.WNOHANG)
            os.close(self._inner_handle)
            self._inner_handle = -1
        self.pump.close()


def ended(handle: int) -> bool:
    """Whether the process of a pidfd has."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))
