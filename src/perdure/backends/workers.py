"""Who is alive, who holds a lock, and how a process is ended: what ownership rests on in files (K1).

A worker is alive as long as it holds the lock on a file of its own, `ID.lock` in the store's directory of workers:
never a guess by its pid. The kernel lets go of that lock when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from perdure.clock import Clock
from perdure.errors import StorageRejected, UsageError
from perdure.storage import Worker

#: How long an opening waits for another process that makes or migrates the store, and how often it looks.
SETUP_SECONDS = 30.0
SETUP_TICK = 0.01

#: Locks that this process holds, by their files. A forked child closes its copies, or they would outlive the parent.
_held: dict[Path, int] = {}


def _let_go_in_child() -> None:
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


class Workers:
    """The workers of one store, in `STORE.workers` unless a `directory` is given."""

    def __init__(self, store: str, directory: Path | None = None) -> None:
        self._store = store
        self._directory = directory or Path(f"{store}.workers")

    def enter(self, worker: Worker) -> None:
        """The worker is alive until it leaves or this process ends."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._path(worker.id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UsageError(
                f"worker {worker.id} has {self._store} open already: give each storage a clock with a seed of its own"
            ) from None
        _held[self._path(worker.id)] = descriptor
        os.pwrite(descriptor, msgspec.json.encode(worker) + b"\n", 0)

    def entered(self) -> list[Worker]:
        """Those whose files are there, alive or not."""
        found: list[Worker] = []
        for path in sorted(self._directory.glob("*.lock")):
            with suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.json.decode(path.read_bytes(), type=Worker))
        return found

    def leave(self, id: str) -> None:
        """Be gone. Leaving twice is leaving."""
        descriptor = _held.pop(self._path(id), None)
        if descriptor is not None:
            self.forget(id)
            os.close(descriptor)

    def alive(self, id: str) -> bool:
        """Whether the worker's lock is held."""
        try:
            descriptor = os.open(self._path(id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two who ask at once do not take each other for the worker.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def forget(self, id: str) -> None:
        """Remove the lock file of a worker that is gone."""
        with suppress(OSError):
            os.unlink(self._path(id))

    @contextmanager
    def setting_up(self) -> Generator[None]:
        """One process at a time creates or migrates a store (I49)."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._directory / "setup.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock_within(descriptor, SETUP_SECONDS, self._directory)
            yield
        finally:
            os.close(descriptor)

    def _path(self, id: str) -> Path:
        return self._directory / f"{id}.lock"


def _lock_within(descriptor: int, seconds: float, where: Path) -> None:
    """Take the lock, looking again and again: a process that stopped while it held it must not hang the others."""
    tick = threading.Event()
    for _ in range(int(seconds / SETUP_TICK)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tick.wait(SETUP_TICK)
        else:
            return
    raise StorageRejected(
        f"another process has been making or migrating the store for {seconds:.0f} s ({where}/setup.lock): "
        "wait for it, or continue or end it if it is stopped"
    )


def owned(session: str, path: str, worker: Worker, owner: Worker) -> str:
    """What to tell a worker that finds the session owned."""
    since = datetime.fromtimestamp(owner.since, UTC).isoformat(timespec="seconds")
    if owner.id == worker.id:
        whose = f"by this very storage (process {owner.pid}, since {since}): use the session that is open"
    elif (owner.pid, owner.started, owner.host) == (worker.pid, worker.started, worker.host):
        whose = f"by another storage of this process ({owner.pid}, since {since})"
    else:
        seen = state(owner.pid) if owner.host == worker.host else "seen from another host"
        whose = f"by process {owner.pid} on {owner.host} since {since}, {seen}"
    return (
        f"session {session!r} of {path} is owned {whose}. You can read it beside its owner, hand items in to it, "
        "or end its owner's right to write with take_over=True"
    )


# -- processes


def this_process(clock: Clock) -> Worker:
    """A new worker of this process."""
    pid = os.getpid()
    return Worker(id=clock.uuid7(), pid=pid, started=started(pid) or 0, host=socket.gethostname(), since=clock.now())


def started(pid: int) -> int | None:
    """The kernel's start time of a process in clock ticks, which with the pid names one process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def state(pid: int) -> str:
    """What a process does, for people."""
    fields = _stat(pid)
    if not fields:
        return "gone"
    letter = fields[0]
    meaning = {
        "T": "stopped",
        "t": "stopped by a debugger",
        "R": "running",
        "S": "sleeping",
        "Z": "ended",
        "X": "ended",
    }
    return f"{meaning.get(letter, 'waiting for the disk')} ({letter})"


def is_stopped(pid: int) -> bool:
    return _stat(pid)[:1] in (["T"], ["t"])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may itself hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def end(pid: int, started_at: int, *, patience_ms: int = 5000) -> None:
    """Kill a process and wait until it is gone; the start time is checked on what the kill will hit."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError) as error:
        raise StorageRejected(f"cannot end process {pid}: {error}. End it by hand, then take over again") from error
    try:
        if started(pid) != started_at:
            return  # that process is gone, and its number belongs to another one
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        if not waiting.poll(patience_ms):
            raise StorageRejected(
                f"process {pid} did not end within {patience_ms // 1000} s of being killed ({state(pid)})"
            )
    except PermissionError as error:
        raise StorageRejected(f"not allowed to end process {pid}. End it as its owner, then take over again") from error
    finally:
        os.close(descriptor)
