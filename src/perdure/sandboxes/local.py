"""The sandbox of this machine: files below a directory, and commands that end with everything they started.

It is no wall. File operations stay below `root` so that a model does not read or write elsewhere by mistake,
but commands run as the user whom this process runs as, and may do what that user may do.

What ends with a command: its process group, its session, their descendants, and what carries its mark in the
environment; when this process is killed, the guard ends the group and the marked ones.
What is not found, and so is left: what left the session, dropped the environment and lost its parent before anybody
looked (`env -i setsid -f …`); and work that others do on its behalf (a `tmux` or `docker` server that was running,
`systemd-run`, `at`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from perdure.clock import Clock, SystemClock
from perdure.errors import SandboxError, UsageError
from perdure.sandbox import Exit, FileInfo
from perdure.sandboxes import files, threads
from perdure.sandboxes.command import LIMIT, Command, supervise, within
from perdure.sandboxes.environment import command_environment
from perdure.sandboxes.guard import Guard
from perdure.sandboxes.table import Brood, boot_id, process

T = TypeVar("T")

#: Seconds that a cancelled write waits for the disk.
WRITE_GRACE = 2.5
#: What Linux takes as one argument, with the zero at its end.
MOST_COMMAND = 128 * 1024 - 1


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What to remember of a running command so that a later process can end what is left of it: `LocalSandbox.reap`."""

    pid: int
    started: int  #: in clock ticks since the machine started: pids are used again
    boot: str
    mark: str
    owner: int  #: the process that ran it
    owner_started: int


class LocalSandbox:
    """Files below `root`, and commands that are ended by process group. See the module for what that covers.

    `environment` is what commands see, without what looks like a secret (`environment.is_secret`); that of this process
    by default. `on_start` is told of each command before `run` waits for it. `grace` is what SIGTERM gives, in seconds.
    Sandboxes may share a `guard`.
    """

    id = "local:process-group"

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        confined: bool = True,
        environment: Mapping[str, str] | None = None,
        on_start: Callable[[Started], None] | None = None,
        grace: float = 2.0,
        guard: Guard | None = None,
    ) -> None:
        self.root = os.path.realpath(root)
        if not os.path.isdir(self.root):
            raise UsageError(f"{self.root} is no directory: make it first, or name another root")
        self._clock = clock or SystemClock()
        self._confined = confined
        self._environment = environment
        self._on_start = on_start
        self._grace = grace
        self._guard = guard or Guard()
        self._writes = itertools.count(1)

    # -- files ----------------------------------------------------------------------------------

    async def info(self, path: str) -> FileInfo | None:
        return await self._blocking(lambda: files.info(self._resolve(path)), "info")

    async def names(self, path: str, *, limit: int = 1000) -> tuple[str, ...]:
        return await self._blocking(lambda: files.names(self._resolve(path), limit), "names")

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """At most 64 MiB at once: a larger file is refused without a `limit`. Raises SandboxError."""
        if offset < 0 or (limit is not None and limit < 0):
            raise SandboxError(f"offset and limit count bytes from 0, not {offset} and {limit}")
        return await self._blocking(lambda: files.read(self._resolve(path), offset, limit), "read")

    async def write(self, path: str, content: bytes, *, expected: str | None = None) -> None:
        """Durable on return. Keeps mode, owner and attributes of a file that was there, writes through symbolic links.

        When cancelled, it waits up to 2.5 s for the disk, and from then on the write happens no more.
        """
        target = await self._blocking(lambda: self._resolve(path), "resolve")
        write = files.Write(target, content, self._temporary(), expected=expected)
        writing = threads.start(write.run, "write")
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            write.abandon()
            await threads.joined(asyncio.ensure_future(within(self._clock, WRITE_GRACE, writing)))
            raise

    def _temporary(self) -> str:
        return f"{os.getpid()}-{next(self._writes)}-{self._clock.token().hex()}"

    def _resolve(self, path: str) -> str:
        return files.resolve(self.root, path, confined=self._confined)

    async def _blocking(self, function: Callable[[], T], name: str) -> T:
        return await threads.start(function, name)

    # -- commands -------------------------------------------------------------------------------

    async def run(
        self,
        command: str,
        *,
        timeout: float,
        output: Callable[[bytes], None],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Exit:
        """Run `bash -c command` (`sh` where there is no bash). Returns at most 0.5 s after the shell ended.

        Time-out, cancellation and an `output` that raises end it alike: SIGTERM, `grace` seconds, SIGKILL, and at most
        0.5 s more.
        What outlived the shell has 0.1 s to end by itself and is killed then.
        """
        running = await self._start(command, output, env, cwd)
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seeing = asyncio.ensure_future(
            supervise(running, timeout=timeout, grace=self._grace, stopped=stopped, clock=self._clock)
        )
        seeing.add_done_callback(lambda _: running.release())  # also when it was cancelled before it began
        try:
            return await asyncio.shield(seeing)
        except asyncio.CancelledError:
            if not stopped.done():
                stopped.set_result(None)
            await threads.joined(seeing)
            raise

    async def _start(
        self, command: str, output: Callable[[bytes], None], env: Mapping[str, str] | None, cwd: str | None
    ) -> Command:
        directory = await self._blocking(lambda: self._directory(cwd), "resolve")
        own = os.environ if self._environment is None else self._environment
        try:
            if len(os.fsencode(command)) > MOST_COMMAND:
                raise SandboxError(
                    f"the command is longer than {MOST_COMMAND:,} bytes: write it into a file and run that"
                )
            seen = command_environment(own, env)
            running = Command(command, guard=self._guard, env=seen, cwd=directory, sink=output)
        except (OSError, ValueError) as error:
            raise SandboxError(f"the command cannot be started: {error}") from error
        if self._on_start is not None:
            try:
                self._on_start(_remember(running))
            except BaseException:
                running.release()
                raise
        return running

    def _directory(self, cwd: str | None) -> str:
        path = self.root if cwd is None else self._resolve(cwd)
        if not os.path.isdir(path):
            raise SandboxError(f"{path} is no directory: a command cannot run there")
        return path

    # -- what an earlier process left ------------------------------------------------------------

    async def reap(self, records: Iterable[Started]) -> tuple[int, ...]:
        """Kill what is left of commands whose process died without its guard; their pids.

        Only what can be told for certain is touched: nothing after a reboot, nothing while the process that ran the
        command lives, a group only when its first process is still there. Where there is no /proc, nothing is.
        """
        killed: set[int] = set()
        for record in records:
            await self._blocking(lambda record=record: _reap(record, killed), "reap")
        return tuple(sorted(killed))

    def close(self) -> None:
        """End what still runs, and the guard with it. The sandbox can be used again."""
        self._guard.close()


def _remember(command: Command) -> Started:
    own = process(os.getpid())
    return Started(
        pid=command.pid,
        started=command.brood.since,
        boot=boot_id(),
        mark=command.brood.mark,
        owner=os.getpid(),
        owner_started=own.started if own else 0,
    )


def _reap(record: Started, killed: set[int]) -> None:
    owner, leader = process(record.owner), process(record.pid)
    owner_lives = owner is not None and owner.alive and owner.started == record.owner_started
    if not record.boot or record.boot != boot_id() or owner_lives:
        return
    is_same = leader is not None and leader.started == record.started
    Brood(record.pid if is_same else None, record.mark, record.started).kill(killed, patience=0, limit=LIMIT)
