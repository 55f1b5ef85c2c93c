"""The sandbox of this machine: files below a directory, and commands that end with everything they started.

It is no wall. File operations stay below `root` so that a model does not read or write elsewhere by mistake,
but commands run as the user whom this process runs as, and may do what that user may do.

How commands are kept together is found out by trying (`probing`), and forced with PERDURE_BASH_ISOLATION.
No strategy reaches work that others do on a command's behalf: a `tmux` or `docker` server that was running,
`systemd-run`, `at`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from perdure.clock import Clock, SystemClock
from perdure.errors import SandboxError, UsageError
from perdure.sandbox import Background, Exit, FileInfo, Spill
from perdure.sandboxes import files, threads
from perdure.sandboxes.background import Running
from perdure.sandboxes.command import LIMIT, Command, abandon, settle, supervise, within
from perdure.sandboxes.environment import command_environment
from perdure.sandboxes.grouped import Grouped
from perdure.sandboxes.guard import Guard
from perdure.sandboxes.isolation import fate_of_owner, present, proved, read_isolation
from perdure.sandboxes.probing import VARIABLE, Finding, check_name, chosen
from perdure.sandboxes.pump import Pump, Sink
from perdure.sandboxes.spool import Scratch, Spool
from perdure.sandboxes.strategies import argv, named
from perdure.sandboxes.table import MARK_NAME, Brood, end_orphans
from perdure.sandboxes.wrapped import Wrapped

T = TypeVar("T")

#: Seconds that a cancelled write waits for the disk.
WRITE_GRACE = 2.5
#: Seconds that what a dead process left has to end by itself: a helper, or a guard, may be at it.
PATIENCE = 1.0
#: What Linux takes as one argument, with the zero at its end.
MOST_COMMAND = 128 * 1024 - 1


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A command that runs: its first process, as seen from here, and the mark that all of it carry."""

    pid: int
    mark: str


class LocalSandbox:
    """Files below `root`, and commands that end with what they started. See the module for what that covers.

    `isolation` forces a strategy (`strategies.NAMES`); by default PERDURE_BASH_ISOLATION does, or the first that works
    is taken. `environment` is what commands see, without what looks like a secret (`environment.is_secret`); that of
    this process by default. `on_start` is told of each command once it runs. `grace` is what SIGTERM gives, in seconds.
    Sandboxes may share a `guard`. `scratch` is where the directory for output is made, by default the system's.
    """

    id = "local"

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        confined: bool = True,
        isolation: str | None = None,
        environment: Mapping[str, str] | None = None,
        on_start: Callable[[Started], None] | None = None,
        grace: float = 2.0,
        guard: Guard | None = None,
        scratch: str | None = None,
    ) -> None:
        self.root = os.path.realpath(root)
        if not os.path.isdir(self.root):
            raise UsageError(f"{self.root} is no directory: make it first, or name another root")
        self._clock = clock or SystemClock()
        self._confined = confined
        self._forced = isolation or os.environ.get(VARIABLE) or None
        if self._forced is not None:
            check_name(self._forced)
        self._environment = environment
        self._on_start = on_start
        self._grace = grace
        self._guard = guard or Guard()
        self._scratch = Scratch(os.path.realpath(scratch or tempfile.gettempdir()), self._clock)
        self._worker = threads.Worker("output")
        weakref.finalize(self, _forget, self._scratch, self._worker)
        self._numbers = itertools.count(1)
        #: Of this process's strategy: what it is, once it is known.
        self._finding: Finding | None = None
        #: Commands that run, by the future that stops each.
        self._running: dict[asyncio.Future[None], asyncio.Future[Exit]] = {}
        self._background: dict[str, Running] = {}

    @property
    def scratch(self) -> str:
        return self._scratch.path

    @property
    def background(self) -> Mapping[str, Background]:
        return MappingProxyType(self._background)

    # -- files ----------------------------------------------------------------------------------

    async def info(self, path: str) -> FileInfo | None:
        return await self._blocking(lambda: files.info(self._resolve(path, looking=True)), "info")

    async def names(self, path: str, *, limit: int = 1000) -> tuple[str, ...]:
        return await self._blocking(lambda: files.names(self._resolve(path, looking=True), limit), "names")

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """At most 64 MiB at once: a larger file is refused without a `limit`. Raises SandboxError."""
        if offset < 0 or (limit is not None and limit < 0):
            raise SandboxError(f"offset and limit count bytes from 0, not {offset} and {limit}")
        return await self._blocking(lambda: files.read(self._resolve(path, looking=True), offset, limit), "read")

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
        return f"{os.getpid()}-{next(self._numbers)}-{self._clock.token().hex()}"

    def _resolve(self, path: str, *, looking: bool = False) -> str:
        """Only to look at, files of `scratch` can be reached too."""
        if looking and self._confined and path.startswith(self.scratch + "/"):
            return files.resolve(self.scratch, path, confined=True)
        return files.resolve(self.root, path, confined=self._confined)

    async def _blocking(self, function: Callable[[], T], name: str) -> T:
        return await threads.start(function, name)

    # -- isolation ------------------------------------------------------------------------------

    async def isolation(self) -> str:
        return present((await self._found()).strategy.name).recorded()

    async def _found(self) -> Finding:
        """The strategy of this process. Where it is not the kernel's, what dead processes left is ended first."""
        if self._finding is None:
            finding = await self._blocking(lambda: chosen(self._forced), "probe")
            if finding.strategy.kind != "namespace":
                await self._blocking(lambda: end_orphans(patience=PATIENCE, limit=PATIENCE + LIMIT), "sweep")
            self._finding = finding
        return self._finding

    async def interrupted(self, isolation: str) -> str:
        recorded = read_isolation(isolation)
        if recorded is None:
            return proved(None, "elsewhere")

        def look() -> str:
            fate = fate_of_owner(recorded)
            strategy = named(recorded.strategy)
            found: dict[int, str] = {}
            if fate == "gone" and strategy is not None and strategy.kind != "namespace":
                Brood(None, f"/{recorded.owner}.", 0).kill(found, patience=PATIENCE, limit=PATIENCE + LIMIT)
            return proved(recorded, fate, list(found.values()))

        return await self._blocking(look, "sweep")

    # -- commands -------------------------------------------------------------------------------

    async def run(
        self,
        command: str,
        *,
        timeout: float,
        output: Sink,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        spill: Spill | None = None,
        most: int | None = None,
    ) -> Exit:
        """Run `bash -c command` (`sh` where there is no bash). Returns at most 0.5 s after the shell ended, or somewhat
        later when the kernel needs time to end what it left.

        Time-out, cancellation, too much output and an `output` that raises end it alike: SIGTERM, `grace` seconds,
        SIGKILL, and what the kernel needs. What outlived the shell has 0.1 s to end by itself and is killed then.
        """
        spool = None
        if spill is not None:
            spool = Spool(self._worker, await self._place(), spill.most, newest=False, after=spill)
        pump = Pump(output, most=most, spool=spool)
        stop, seeing = await self._launch(command, pump, timeout, env, cwd)
        try:
            return await asyncio.shield(seeing)
        except asyncio.CancelledError:
            settle(stop)
            await threads.joined(seeing)
            raise

    async def start(
        self,
        command: str,
        *,
        timeout: float | None = None,
        keep: int = 64 * 1024 * 1024,
        output: Sink | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Running:
        """As `run` does, but returns once it runs. It ends with this process, and with this thread."""
        spool = Spool(self._worker, await self._place(), keep, newest=True)
        pump = Pump(output, spool=spool)
        stop, seeing = await self._launch(command, pump, timeout, env, cwd)
        running = Running(str(next(self._numbers)), command, pump, spool, stop, seeing)
        self._background[running.id] = running
        seeing.add_done_callback(lambda _: self._background.pop(running.id, None))
        return running

    async def _place(self) -> str:
        """A new path for output."""
        await self._blocking(self._scratch.make, "scratch")
        return os.path.join(self.scratch, f"{next(self._numbers)}.txt")

    async def _launch(
        self, command: str, pump: Pump, timeout: float | None, env: Mapping[str, str] | None, cwd: str | None
    ) -> tuple[asyncio.Future[None], asyncio.Future[Exit]]:
        """The command runs on return: what stops it, and its end."""
        try:
            directory = await self._blocking(lambda: self._directory(cwd), "resolve")
            finding = await self._found()
            mark = self._guard.next_mark()
            running = self._made(command, finding, pump, mark, env, directory)
        except BaseException:
            pump.close()
            raise
        try:
            await threads.whole(running.begin())  # what has half begun could not be ended for certain
            if self._on_start is not None:
                self._on_start(Started(pid=running.brood.group or running.child.pid, mark=mark))
        except BaseException:
            await threads.joined(asyncio.ensure_future(abandon(running)))
            raise
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seeing = asyncio.ensure_future(
            supervise(
                running,
                timeout=timeout,
                grace=self._grace,
                stopped=stop,
                clock=self._clock,
                strategy=finding.strategy.name,
            )
        )
        self._running[stop] = seeing

        def over(_: asyncio.Future[Exit]) -> None:
            self._running.pop(stop, None)
            running.release()  # also when it was cancelled before it began

        seeing.add_done_callback(over)
        return stop, seeing

    def _made(
        self, command: str, finding: Finding, pump: Pump, mark: str, env: Mapping[str, str] | None, cwd: str
    ) -> Command:
        seen = command_environment(os.environ if self._environment is None else self._environment, env)
        seen[MARK_NAME] = seen.get(MARK_NAME, "") + mark
        line, kind = argv(finding.wrapper, command), finding.strategy.kind
        try:
            if len(os.fsencode(command)) > MOST_COMMAND:
                raise SandboxError(
                    f"the command is longer than {MOST_COMMAND:,} bytes: write it into a file and run that"
                )
            if kind == "group":
                return Grouped(line, guard=self._guard, mark=mark, pump=pump, env=seen, cwd=cwd, clock=self._clock)
            return Wrapped(line, kind=kind, mark=mark, pump=pump, env=seen, cwd=cwd, clock=self._clock)
        except (OSError, ValueError) as error:
            raise SandboxError(f"the command cannot be started: {error}") from error

    def _directory(self, cwd: str | None) -> str:
        path = self.root if cwd is None else self._resolve(cwd)
        if not os.path.isdir(path):
            raise SandboxError(f"{path} is no directory: a command cannot run there")
        return path

    async def close(self) -> None:
        """As a time limit would, end what still runs; then let the guard go. The sandbox can be used again."""
        loop = asyncio.get_running_loop()
        ours = [(stop, seeing) for stop, seeing in self._running.items() if seeing.get_loop() is loop]
        for stop, _ in ours:
            settle(stop)
        await threads.joined(*(seeing for _, seeing in ours))
        self._guard.close()
        await self._blocking(self._scratch.remove, "scratch")
        self._worker.stop()


def _forget(scratch: Scratch, worker: threads.Worker) -> None:
    """Of a sandbox that nobody closed."""
    worker.stop()
    scratch.remove()
