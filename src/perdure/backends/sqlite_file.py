"""One store file in this process: however often it is opened, one thread writes it and one reads it."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path

from perdure.backends.outcomes import again
from perdure.backends.sqlite_claims import blocked_by
from perdure.backends.sqlite_reader import Reader
from perdure.backends.sqlite_schema import Durability, connect_reader, connect_writer, sync_directory
from perdure.backends.sqlite_writer import Writer
from perdure.backends.workers import Workers
from perdure.errors import NotFound, StorageFailed, UsageError
from perdure.telemetry import Telemetry

FileId = tuple[int, int]

#: Files that are open in this process and not in doubt, by device and inode: two names of one file are one file.
#: A second writer would be fenced off correctly, but would break the promise that commits are grouped and in order.
_open: dict[FileId, SqliteFile] = {}
_guard = threading.Lock()
#: Files of the parent: their connections must not even be closed in a forked child.
_parents: list[SqliteFile] = []


class SqliteFile:
    """The threads of a file, and how many storages use them."""

    def __init__(self, path: str, id: FileId, durability: Durability, vfs: str | None, telemetry: Telemetry) -> None:
        self.path = path
        self.id = id
        self.durability: Durability = durability
        self.vfs = vfs
        self.workers = Workers(path)
        self.users = 0
        self._telemetry = telemetry
        #: Set in a forked child: the threads stayed in the parent, and its connections are not the child's to use.
        self._forked = False
        self._writer: Writer | None = None
        self._reader: Reader | None = None

    @property
    def writer(self) -> Writer:
        """Started when somebody writes."""
        self._check_process()
        if self._writer is None:
            self._writer = Writer(
                self.path,
                connect=lambda: connect_writer(
                    self.path, durability=self.durability, vfs=self.vfs, workers=self.workers
                ),
                blocked=lambda: blocked_by(self.path),
                on_failure=self.forget,
                telemetry=self._telemetry,
            )
        return self._writer

    @property
    def reader(self) -> Reader:
        """Started when somebody reads. Raises what the writer failed with: a read may show what is not on the disk."""
        self._check_process()
        if self._writer is not None and self._writer.failure is not None:
            raise again(self._writer.failure)
        if self._reader is None:
            self._reader = Reader(self.path, lambda: connect_reader(self.path, vfs=self.vfs))
        return self._reader

    @property
    def is_written(self) -> bool:
        """Whether the writer was started."""
        return self._writer is not None

    def leave(self) -> list[asyncio.Future[None]]:
        """One user less; what to wait for when it was the last."""
        with _guard:
            self.users -= 1
            if self.users or self._forked:
                return []
            self._forget()
        # The writer closes last: the last connection empties the log into the database.
        return [thread.stop() for thread in (self._reader, self._writer) if thread is not None]

    def forget(self) -> None:
        """Whoever opens the file from now on gets new threads. Those who have it open keep the failed ones."""
        with _guard:
            self._forget()

    def _forget(self) -> None:
        if _open.get(self.id) is self:
            del _open[self.id]

    def forked(self) -> None:
        self._forked = True

    def _check_process(self) -> None:
        if self._forked:
            raise StorageFailed(f"{self.path} was opened before this process was forked: open it again in the child")


def share(
    path: str | os.PathLike[str], *, durability: Durability, vfs: str | None, telemetry: Telemetry, create: bool
) -> SqliteFile:
    """The file for one more user, who has to `leave` it. Without `create`, a missing one is NotFound.

    Raises UsageError for a path where no file can be.
    """
    name = Path(os.path.realpath(path))
    _check_place(name)
    with _guard:
        if create:
            make(name)
        try:
            found = os.stat(name)
        except FileNotFoundError:
            raise NotFound(f"no store at {name}: check the path, or open it to write, that makes one") from None
        id = found.st_dev, found.st_ino
        file = _open.get(id)
        if file is None:
            file = _open[id] = SqliteFile(str(name), id, durability, vfs, telemetry)
        elif (file.durability, file.vfs) != (durability, vfs):
            raise UsageError(
                f"{name} is open in this process with durability={file.durability!r}, vfs={file.vfs!r}: "
                "open it with the same, or close it first"
            )
        file.users += 1
        return file


def _check_place(name: Path) -> None:
    if os.path.isdir(name):
        raise UsageError(f"{name} is a directory: name a file in it")
    if os.path.exists(name) and not os.path.isfile(name):
        raise UsageError(f"{name} is a pipe or a device, and a store is a file: name a file, or memory: for nowhere")
    above = next((each for each in name.parents if os.path.lexists(each)), None)
    if above is not None and not os.path.isdir(above):
        raise UsageError(f"there can be no store at {name}: {above} is a file, not a directory; check the path")


def make(name: Path) -> None:
    """An empty file for its owner only, in a directory for its owner only, unless they are there."""
    missing = [directory for directory in name.parents if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
        sync_directory(directory.parent)
    # Only a file that was not there is opened and closed by hand: closing another would drop SQLite's locks on it.
    with suppress(FileExistsError):
        os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _forked() -> None:
    global _guard  # noqa: PLW0603 - another thread of the parent may have held it
    _guard = threading.Lock()
    for file in _open.values():
        file.forked()
        _parents.append(file)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
