"""Lives as processes that start in no time: a server that has everything imported forks one for each order.

They are processes like any others, killed by SIGKILL; whatever they leave behind becomes a child of the server.
`Kennel` is the parent's side, `python -m perdure.testing.scenario` the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import select
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import msgspec

from perdure.app.opening import store
from perdure.backends.jsonl import open_jsonl
from perdure.backends.sqlite import open_sqlite
from perdure.clock import Clock, SystemClock
from perdure.errors import PerdureError
from perdure.sandboxes.local import LocalSandbox
from perdure.storage import Storage
from perdure.telemetry import Telemetry
from perdure.testing.crash import VARIABLE, Counts, disk_from_environment, install_from_environment
from perdure.testing.processes import Child, Exit, descendants
from perdure.testing.scenario.cast import Numbers, Stage, model_of, registry_of
from perdure.testing.scenario.client import SESSION, live
from perdure.testing.scenario.lines import RawLines
from perdure.testing.scenario.notes import Notes
from perdure.testing.scenario.stored import RawStore, copied

#: What a life works on in its directory, and what it leaves there for the parent.
STORE = "store.db"
LINES = "store"
#: So small that the files are rewritten while a life goes on.
SLACK = 4000
NOTES = "notes"
DIGEST = "digest"
#: Whoever was told too early that something is durable has so long to pass it on, in seconds.
BREATH = 0.002
#: From <linux/prctl.h>: orphaned descendants become children of this process.
_SUBREAPER = 36
#: How long what a life leaves behind may take to end by itself, in seconds.
GRACE = 2.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Start one life on the store in a directory. `idle`: once it is over, open and close so often again."""

    directory: str
    variant: str
    life: int = 1
    point: str = ""  #: as in `crash.VARIABLE`
    durability: str = "power"
    backend: str = "sqlite"
    idle: int = 0
    take_over: bool = False
    timeout: float = 60.0


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a life ended, and the commands of what outlived it by more than the grace."""

    code: int | None
    signal: int | None
    stderr: str = ""
    left: tuple[str, ...] = ()


# -- the parent's side --------------------------------------------------------------------------


class Kennel:
    """A server of lives. Not to be shared by threads."""

    def __init__(self) -> None:
        self._server = Child([sys.executable, "-m", "perdure.testing.scenario"])
        self.lives = 0
        self.kills = 0

    def run(self, directory: Path, variant: str, **how: Any) -> Exit:
        """One life, to its end."""
        order = Order(directory=str(directory), variant=variant, **how)
        self._server.write_line(msgspec.json.encode(order).decode())
        ended = msgspec.json.decode(self._server.read_line(order.timeout + 30), type=Ended)
        self.lives += 1
        self.kills += ended.signal == signal.SIGKILL
        return Exit(code=ended.code, signal=ended.signal, stdout="", stderr=ended.stderr, left=ended.left)

    def count(self, directory: Path, variant: str, **how: Any) -> Counts:
        """The writes and syncs of an undisturbed run, in a new directory."""
        directory.mkdir()
        tally = directory / "tally"
        exit = self.run(directory, variant, point=f"count:{tally}", **how)
        if exit.code != 0:
            raise PerdureError(f"the run to count in ended with {exit}")
        writes, syncs = tally.read_bytes().split()[:2]
        shutil.rmtree(directory)
        return Counts(writes=int(writes), syncs=int(syncs))

    def __enter__(self) -> Kennel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.__exit__(kind, error, at)


# -- the server ---------------------------------------------------------------------------------


def serve() -> None:
    """Carry out orders from standard input, one a line, until it ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    gc.collect()
    gc.freeze()
    decoder = msgspec.json.Decoder(Order)
    while line := sys.stdin.buffer.readline():
        ended = _carry_out(decoder.decode(line))
        sys.stdout.buffer.write(msgspec.json.encode(ended) + b"\n")
        sys.stdout.buffer.flush()


def _carry_out(order: Order) -> Ended:
    stderr = Path(order.directory, f"stderr.{order.life}")
    pid = os.fork()
    if pid == 0:
        _live(order, stderr)
    handle = os.pidfd_open(pid)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    timed_out = not waiting.poll(order.timeout * 1000)
    if timed_out:
        os.kill(pid, signal.SIGKILL)
    os.close(handle)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = _left_behind()
    said = stderr.read_text(errors="replace")
    if timed_out:
        return Ended(code=-1, signal=None, stderr=f"killed after {order.timeout} s\n{said}", left=left)
    return Ended(code=code if code >= 0 else None, signal=-code if code < 0 else None, stderr=said, left=left)


def _left_behind() -> tuple[str, ...]:
    """Collect whatever came to this process as an orphan; what does not end by itself is told, and killed."""
    deadline = time.monotonic() + GRACE
    told: tuple[str, ...] = ()
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline and not told:
                    told = tuple(row.read_command() for row in descendants(os.getpid()))
                if told:
                    for row in descendants(os.getpid()):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(row.pid, signal.SIGKILL)
                select.select([], [], [], 0.002)
    return told


def _live(order: Order, stderr: Path) -> None:
    """The life itself, in the forked child; does not return."""
    code = 1
    try:
        os.setsid()
        gc.disable()  # it will not live long
        os.environ[VARIABLE] = order.point
        for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, stderr, os.O_WRONLY | os.O_CREAT)):
            os.dup2(os.open(path, flags, 0o600), number)
        os.dup2(1, 2)
        asyncio.run(_work(order))
        if order.idle:
            with raw_store(Path(order.directory), order.backend) as raw:
                Path(order.directory, DIGEST).write_text(raw.digest())
            asyncio.run(_idle(order))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


async def _work(order: Order) -> None:
    directory, clock, telemetry = Path(order.directory), SystemClock(), Telemetry()
    storage = await _open(order, clock, telemetry)
    try:
        await live(
            storage,
            order.variant,
            Notes(directory / NOTES),
            life=order.life,
            clock=clock,
            telemetry=telemetry,
            sandbox=LocalSandbox(directory) if order.variant == "shell" else None,
            take_over=order.take_over,
        )
    finally:
        await storage.close()


async def _open(order: Order, clock: Clock, telemetry: Telemetry | None) -> Storage:
    """The store of a life. With `telemetry` it is disturbed where the environment says."""
    place, durability = Path(order.directory), cast(Any, order.durability)
    if order.backend == "jsonl":
        disk = None if telemetry is None else disk_from_environment(telemetry, breath=BREATH)
        return await open_jsonl(place / LINES, clock=clock, durability=durability, disk=disk, slack=SLACK)
    vfs = None if telemetry is None else install_from_environment(telemetry, breath=BREATH)
    return await open_sqlite(place / STORE, clock=clock, durability=durability, vfs=vfs, telemetry=telemetry)


def raw_store(directory: Path, backend: str, aside: Path | None = None) -> RawStore | RawLines:
    """What the store in a directory holds, beside the product; of a copy in `aside`, where that is given."""
    if backend == "jsonl":
        return RawLines(directory / LINES)
    return RawStore(directory / STORE if aside is None else copied(directory / STORE, aside))


async def _idle(order: Order) -> None:
    """Open and close: whatever a recovery had to do was done by the one before."""
    directory, clock, telemetry = Path(order.directory), SystemClock(), Telemetry()
    stage = Stage(
        notes=Notes(directory / NOTES),
        telemetry=telemetry,
        clock=clock,
        life=order.life,
        ready=asyncio.Event(),
        lingering=asyncio.Event(),
    )
    for _ in range(order.idle):
        storage = await _open(order, clock, None)
        async with store(storage, clock=clock, telemetry=telemetry) as opened:
            options: dict[str, Any] = {"registry": registry_of(stage), "model": model_of(stage), "schema": Numbers()}
            async with opened.session(SESSION, **options) as session:
                await session.resume()
                await session.wait_idle()
        await storage.close()
