"""File operations of the local sandbox. They block: each is run in a daemon thread."""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
import threading
from collections.abc import Generator

from perdure.errors import SandboxError
from perdure.sandbox import FileInfo

#: The most that one read returns.
MOST_BYTES = 64 * 1024 * 1024
#: Begins the names of files that are being written. A killed process may leave one.
TEMPORARY = ".perdure-"


def resolve(root: str, path: str, *, confined: bool) -> str:
    """The absolute path without symbolic links. Raises SandboxError for one outside of `root` when `confined`."""
    if not path or "\0" in path:
        raise SandboxError(f"{path!r} is no path")
    try:
        found = os.path.realpath(os.path.join(root, path))
        os.fsencode(found)
    except (OSError, ValueError) as error:
        raise SandboxError(f"{path!r} is no path: {error}") from error
    if confined and found != root and not found.startswith(root.rstrip("/") + "/"):
        raise SandboxError(f"{path} is outside of {root}: only files below that directory can be reached")
    return found


def info(path: str) -> FileInfo | None:
    with _named(path):
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        kind = "file" if stat.S_ISREG(found.st_mode) else "directory" if stat.S_ISDIR(found.st_mode) else "other"
        return FileInfo(path=path, kind=kind, size=found.st_size)


def names(path: str, limit: int) -> tuple[str, ...]:
    with _named(path), os.scandir(path) as entries:
        shown = (entry.name + "/" if entry.is_dir() else entry.name for entry in entries)
        return tuple(heapq.nsmallest(limit, shown))


def read(path: str, offset: int, limit: int | None) -> bytes:
    with _named(path):
        # Without O_NONBLOCK, opening a pipe that nobody writes would wait for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise SandboxError(f"{path} is {_what(found.st_mode)}, not a file")
            wanted = MOST_BYTES + 1 if limit is None else min(limit, MOST_BYTES)
            content = _read_all(handle, offset, wanted)
        finally:
            os.close(handle)
        if len(content) > MOST_BYTES:
            raise SandboxError(
                f"{path} has {found.st_size:,} bytes, more than the {MOST_BYTES:,} of one read: give offset and limit"
            )
        return content


def _read_all(handle: int, offset: int, wanted: int) -> bytes:
    """Until the end or enough: sizes cannot be trusted, files of /proc say 0."""
    pieces: list[bytes] = []
    while wanted > 0 and (piece := os.pread(handle, min(wanted, 1024 * 1024), offset)):
        pieces.append(piece)
        offset += len(piece)
        wanted -= len(piece)
    return b"".join(pieces)


class Write:
    """One atomic write: into a file beside the target, synced, then renamed over it.

    Other hard links of the target keep the old content.
    """

    def __init__(self, path: str, content: bytes, temporary: str) -> None:
        self._path = path
        self._content = content
        self._temporary = os.path.join(os.path.dirname(path), TEMPORARY + temporary)
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """Whoever wanted it is gone: unless it is being renamed at this moment, it does not happen any more."""
        self._abandoned.set()

    def run(self) -> None:
        with _named(self._path):
            old = self._old()
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            handle = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                try:
                    self._fill(handle, old)
                finally:
                    os.close(handle)
                if self._abandoned.is_set():
                    raise SandboxError(f"writing {self._path} was stopped; it is as it was")
                os.rename(self._temporary, self._path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(self._temporary)
                raise
            _sync_directory(os.path.dirname(self._path))

    def _old(self) -> os.stat_result | None:
        """What is replaced. A rename needs no right to write the file itself, so that is asked for here."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise SandboxError(f"{self._path} is {_what(found.st_mode)}, not a file")
        if not os.access(self._path, os.W_OK):
            raise SandboxError(f"{self._path} is read-only: permission denied")
        return found

    def _fill(self, handle: int, old: os.stat_result | None) -> None:
        if old is not None:
            with contextlib.suppress(OSError):  # only root may give files away
                os.fchown(handle, old.st_uid, old.st_gid)
            os.fchmod(handle, stat.S_IMODE(old.st_mode))
        rest = memoryview(self._content)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _what(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "a device")


@contextlib.contextmanager
def _named(path: str) -> Generator[None]:
    """Errors of the system as SandboxError that names the path."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SandboxError(f"{path}: {reason.lower()}") from error
