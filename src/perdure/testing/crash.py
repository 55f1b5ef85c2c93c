"""Kill a real child process at every point there is: each write and sync of SQLite, each telemetry event.

The parent names one point per run in an environment variable; the child calls `install_from_environment` before it
opens its store, and passes the name that it gets as the store's `vfs`:

    vfs = install_from_environment(telemetry)
    storage = open_sqlite(path, vfs=vfs, ...)

The parent runs it once for each point and looks at what is left:

    def start(point):
        return run_child([sys.executable, "child.py", str(tmp_path / point.slug)], point.environment())

    for point, exit in for_each_point(start, "write", "before"):
        ...
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, get_args

import msgspec

from perdure.errors import PerdureError, UsageError
from perdure.telemetry import Telemetry
from perdure.testing.disks import CrashingDisk, PowerLossDisk
from perdure.testing.processes import Exit, run_child
from perdure.testing.vfs import Action, CrashingVFS, Keep, On, PowerLossVFS, kill_self

#: The variable that tells a child where to die: `write:17:before`, `sync:3:any:42`, `EVENT:2:before`; or `count:PATH`.
VARIABLE = "PERDURE_CRASH"
#: What the VFS of a child is called.
VFS_NAME = "perdure-crash"

_KEEPS = get_args(Keep)
_ACTIONS = (*get_args(Action), *_KEEPS)

#: VFS objects that were installed: SQLite forgets one that nobody holds.
_installed: list[CrashingVFS] = []


class ChildFailed(PerdureError):
    """A child ended by itself, and not well, where it should have been killed or have finished."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many points an undisturbed run has."""

    writes: int
    syncs: int


class Point(msgspec.Struct, frozen=True):
    """Where a run ends, and how.

    `on`: "write" or "sync" (of SQLite, over all its files), or the name of a telemetry event. `at` counts them from 1.
    `action`: the process dies "before" or "after" it, or with a write half done ("torn"); the call fails with an
    "error" or is "full" and the process goes on; or the machine loses power before it, and of all that was not synced
    nothing stays ("drop"), or the first part ("prefix"), or "any", drawn from `seed`.
    """

    on: str
    at: int
    action: Action | Keep = "before"
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.on}:{self.at}:{self.action}:{self.seed}"

    @property
    def slug(self) -> str:
        """For the name of a file or directory."""
        return re.sub(r"[^\w.]+", "-", str(self))

    @property
    def keep(self) -> Keep | None:
        """What a power loss leaves; None where the action is another."""
        return self.action if self.action in ("drop", "prefix", "any") else None

    @property
    def io(self) -> On | None:
        """The kind of call; None where `on` is an event."""
        return self.on if self.on in ("write", "sync") else None

    def environment(self) -> dict[str, str]:
        """What tells a child."""
        return {VARIABLE: str(self)}


def parse_point(text: str) -> Point:
    """Read `ON:AT:ACTION[:SEED]`. Raises UsageError."""
    on, *rest = text.split(":")
    try:
        at, action, seed = int(rest[0]), rest[1], int(rest[2]) if len(rest) > 2 else 0
    except (IndexError, ValueError):
        raise UsageError(f"{text!r} is no point to crash at; write ON:AT:ACTION or ON:AT:ACTION:SEED") from None
    if action not in _ACTIONS or at < 1:
        raise UsageError(f"{text!r} is no point to crash at; AT counts from 1, ACTION is one of {', '.join(_ACTIONS)}")
    if on not in ("write", "sync") and action not in ("before", *_KEEPS):
        raise UsageError(f"{text!r}: at an event the action is one of before, {', '.join(_KEEPS)}")
    return msgspec.convert({"on": on, "at": at, "action": action, "seed": seed}, Point)


# -- in the child -------------------------------------------------------------------------------


def install_from_environment(
    telemetry: Telemetry | None = None, environment: Mapping[str, str] | None = None, *, breath: float = 0.0
) -> str | None:
    """Arm what the parent asked for. The name of the VFS to open the store with, None for the usual one.

    A point at an event needs the `telemetry` that the event will be emitted on.
    At a write or sync, the other threads of the child go on for a `breath` before its end, in seconds.
    """
    asked = _asked(telemetry, environment)
    if asked is None:
        return None
    if isinstance(asked, str):
        return _installed_as(CrashingVFS(VFS_NAME, tally=asked))
    at = None if asked.io is None else asked.at
    if asked.keep is None:
        vfs = CrashingVFS(VFS_NAME, at=at, on=asked.io or "write", action=_plain(asked), breath=breath)
    else:
        vfs = PowerLossVFS(VFS_NAME, at=at, on=asked.io or "write", keep=asked.keep, seed=asked.seed, breath=breath)
    if asked.io is None and telemetry is not None:
        kill_at(telemetry, asked.on, asked.at, vfs.lose_power if isinstance(vfs, PowerLossVFS) else kill_self)
    return _installed_as(vfs)


def disk_from_environment(
    telemetry: Telemetry | None = None, environment: Mapping[str, str] | None = None, *, breath: float = 0.0
) -> CrashingDisk | None:
    """The same for a JSONL store: the disk to open it with, None for the usual one."""
    asked = _asked(telemetry, environment)
    if asked is None or isinstance(asked, str):
        return None if asked is None else CrashingDisk(tally=asked)
    at = None if asked.io is None else asked.at
    if asked.keep is None:
        disk = CrashingDisk(at=at, on=asked.io or "write", action=_plain(asked), breath=breath)
    else:
        disk = PowerLossDisk(at=at, on=asked.io or "write", keep=asked.keep, seed=asked.seed, breath=breath)
    if asked.io is None and telemetry is not None:
        kill_at(telemetry, asked.on, asked.at, disk.lose_power if isinstance(disk, PowerLossDisk) else kill_self)
    return disk


def _asked(telemetry: Telemetry | None, environment: Mapping[str, str] | None) -> Point | str | None:
    """Where to end; or the path for the counts; or nothing."""
    text = (os.environ if environment is None else environment).get(VARIABLE)
    if not text:
        return None
    if text.startswith("count:"):
        return text.removeprefix("count:")
    point = parse_point(text)
    if point.io is None and telemetry is None:
        raise UsageError(f"{VARIABLE}={text}: an event was asked for, but no telemetry was given to wait for it on")
    return point


def kill_at(telemetry: Telemetry, event: str, n: int = 1, action: Callable[[], object] = kill_self) -> None:
    """At the n-th emission of an event from now (counted from 1), do `action`: SIGKILL to this process."""
    seen = 0

    def count_down(_event: str, _measurements: Mapping[str, float], _metadata: Mapping[str, Any]) -> None:
        nonlocal seen
        seen += 1
        if seen == n:
            action()

    telemetry.attach(f"kill at {event} {n}", [event], count_down)


def _plain(point: Point) -> Action:
    return msgspec.convert(point.action, Action)


def _installed_as(vfs: CrashingVFS) -> str:
    _installed.append(vfs)
    return vfs.name


# -- in the parent ------------------------------------------------------------------------------


def count_points(argv: Sequence[str], env: Mapping[str, str] | None = None, *, timeout: float = 60.0) -> Counts:
    """Run a child undisturbed and count its writes and syncs. Raises ChildFailed when it does not exit with 0."""
    with tempfile.NamedTemporaryFile() as tally:
        exit = run_child(argv, {**(env or {}), VARIABLE: f"count:{tally.name}"}, timeout=timeout)
        if exit.code != 0:
            raise ChildFailed(f"the run to count in ended with {_how(exit)}; its standard error:\n{exit.stderr}")
        writes, syncs = (tally.read().split() or [b"0", b"0"])[:2]
        return Counts(writes=int(writes), syncs=int(syncs))


def for_each_point(
    start: Callable[[Point], Exit],
    on: On | str,
    action: Action | Keep = "before",
    *,
    first: int = 1,
    step: int = 1,
    last: int | None = None,
    seed: int = 0,
) -> Iterator[tuple[Point, Exit]]:
    """Run a child for point after point, and yield each with how the child ended.

    Ends after `last`, or else with the first run that finishes undisturbed, which is yielded too.
    `first` and `step` take a sample, or a share of the work; `seed` draws other power losses.
    Raises ChildFailed when a run fails by itself.
    """
    if last is None and action in ("error", "full"):
        raise UsageError(f"a child survives {action!r}, so that no run shows the end: give last, from count_points()")
    for at in count(first, step):
        if last is not None and at > last:
            return
        point = Point(on, at, action, seed=seed + at)
        exit = start(point)
        if not exit.killed and exit.code != 0 and action not in ("error", "full"):
            raise ChildFailed(f"with {point} the child ended with {_how(exit)}; its standard error:\n{exit.stderr}")
        yield point, exit
        if last is None and not exit.killed:
            return


def _how(exit: Exit) -> str:
    return f"signal {exit.signal}" if exit.code is None else f"exit code {exit.code}"


__all__ = [
    "VARIABLE",
    "VFS_NAME",
    "ChildFailed",
    "Counts",
    "Point",
    "count_points",
    "disk_from_environment",
    "for_each_point",
    "install_from_environment",
    "kill_at",
    "parse_point",
]
