"""File operations of the local sandbox. They block: each is run in a daemon thread."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import heapq
import os
import stat
import threading
from collections.abc import Generator

from perdure.errors import FileChanged, SandboxError
from perdure.sandbox import FileInfo

#: The most that one read returns.
MOST_BYTES = 64 * 1024 * 1024
PIECE = 1024 * 1024
#: Begins the names of files that are being written, where the file system does not know files without a name.
TEMPORARY = ".perdure-"
#: How long such a file must not have been written to before another write takes it for one that was left, in seconds.
LEFT_AFTER = 60
#: How often another writer's turn in a directory is waited for, and how long each time, in seconds.
TURN_TRIES, TURN_PAUSE = 1000, 0.002

#: Directories that this process has looked through for files that were left.
_swept: set[tuple[int, int]] = set()
MOST_SWEPT = 10_000


def resolve(root: str, path: str, *, confined: bool) -> str:
    """The absolute path without symbolic links. Raises SandboxError for one outside of `root` when `confined`.

    A leading `~` is the home directory, as in a shell; `./~` is a file of that name.
    """
    if not path or "\0" in path:
        raise SandboxError(f"{path!r} is no path")
    try:
        expanded = os.path.expanduser(path) if path.startswith("~") else path
        found = os.path.realpath(os.path.join(root, expanded))
        os.fsencode(found)
    except (OSError, ValueError) as error:
        raise SandboxError(f"{path!r} is no path: {error}") from error
    if confined and found != root and not found.startswith(root.rstrip("/") + "/"):
        led = "" if os.path.normpath(os.path.join(root, expanded)) == found else f", it leads to {found}"
        raise SandboxError(f"{path} is outside of {root}{led}: only files below that directory can be reached")
    return found


def info(path: str) -> FileInfo | None:
    with _named(path):
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISREG(found.st_mode):
            return FileInfo(path=path, kind="file", size=found.st_size, version=version_of(found), links=found.st_nlink)
        return FileInfo(path=path, kind="directory" if stat.S_ISDIR(found.st_mode) else "other", size=found.st_size)


def version_of(found: os.stat_result) -> str:
    """Another one whenever the file was replaced or written to. A change of its mode is none of its content."""
    return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"


def names(path: str, limit: int) -> tuple[str, ...]:
    with _named(path), os.scandir(path) as entries:
        shown = (entry.name + "/" if entry.is_dir() else entry.name for entry in entries)
        return tuple(heapq.nsmallest(limit, shown))


def read(path: str, offset: int, limit: int | None) -> bytes:
    with _named(path):
        _check_file(path, os.stat(path))  # before it is opened: to open a device may be to use it
        # Without O_NONBLOCK, opening a pipe that nobody writes would wait for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            _check_file(path, found)
            wanted = MOST_BYTES + 1 if limit is None else min(limit, MOST_BYTES)
            content = _read_all(handle, offset, wanted, found.st_size)
        finally:
            os.close(handle)
        if len(content) > MOST_BYTES:
            raise SandboxError(
                f"{path} has {found.st_size:,} bytes, more than the {MOST_BYTES:,} of one read: give offset and limit"
            )
        return content


def _check_file(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise SandboxError(f"{path} is {_what(found.st_mode)}, not a file")


def _read_all(handle: int, offset: int, wanted: int, size: int) -> bytes:
    """Until the end or enough: sizes are only a hint, files of /proc say 0."""
    pieces: list[bytes] = []
    while wanted > 0 and (piece := os.pread(handle, min(wanted, max(PIECE, size - offset)), offset)):
        pieces.append(piece)
        offset += len(piece)
        wanted -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Write:
    """One atomic write: into a file beside the target that has no name yet, synced, then put in its place.

    Mode, owner and attributes of the target are kept. Its other names (hard links) keep the old content.
    """

    def __init__(self, path: str, content: bytes, temporary: str, *, expected: str | None = None) -> None:
        self._path = path
        self._content = content
        self._temporary = TEMPORARY + temporary
        self._expected = expected
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """Whoever wanted it is gone: unless it is being renamed at this moment, it does not happen any more."""
        self._abandoned.set()

    def run(self) -> None:
        beside = os.path.dirname(self._path)
        with _named(self._path, "it is as it was"):
            old = self._old()
            _make_directory(beside)
            directory = os.open(beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _named(self._path, "it is as it was"):
                try:
                    self._replace(directory, old, nameless=os.path.isdir("/proc/self/fd"))
                except _CannotBeNamed:
                    self._replace(directory, old, nameless=False)
            with _named(self._path, "it was written, but the disk may not keep it"):
                _sync_directory(directory)
        finally:
            os.close(directory)

    def _old(self) -> os.stat_result | None:
        """What is replaced. A rename needs no right to write the file itself, so that is asked for here."""
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        _check_file(self._path, found)
        if not os.access(self._path, os.W_OK):
            raise SandboxError(f"{self._path} is read-only: permission denied")
        return found

    def _replace(self, directory: int, old: os.stat_result | None, *, nameless: bool) -> None:
        handle, named = self._begin(directory, private=old is not None, nameless=nameless)
        try:
            self._fill(handle, old)
            _sweep(directory, os.fstat(handle).st_mtime)
            self._wait_turn(directory)
            self._check(old)
            name = os.path.basename(self._path)
            if named or old is not None or not _link(handle, name, directory):  # only a rename replaces what is there
                named = named or _link(handle, self._temporary, directory)
                os.rename(self._temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException as error:
            if named:
                with contextlib.suppress(OSError):
                    os.unlink(self._temporary, dir_fd=directory)
            if isinstance(error, OSError) and error.errno == errno.EBUSY:
                raise SandboxError(f"{self._path} is mounted by itself: write into it with a command instead") from None
            raise
        finally:
            os.close(handle)
            with contextlib.suppress(OSError):
                fcntl.flock(directory, fcntl.LOCK_UN)

    def _begin(self, directory: int, *, private: bool, nameless: bool) -> tuple[int, bool]:
        """A file to write into, and whether it has a name. One without ends with this process, whatever happens."""
        mode = 0o600 if private else 0o666
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            unnamed = getattr(os, "O_TMPFILE", 0)
            if nameless and unnamed:
                with contextlib.suppress(OSError):
                    return os.open(f"/proc/self/fd/{directory}", flags | unnamed, mode), False
            handle = os.open(self._temporary, flags | os.O_CREAT | os.O_EXCL, mode, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                beside, reason = os.path.dirname(self._path), os.strerror(error.errno).lower()
                raise SandboxError(f"{self._path} cannot be written: {reason} in {beside}") from error
            raise
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is not a left one while this process lives
        return handle, True

    def _fill(self, handle: int, old: os.stat_result | None) -> None:
        rest = memoryview(self._content)
        while rest:
            rest = rest[os.write(handle, rest) :]
        if old is not None:  # after the content: writing takes capabilities and set-id bits away
            _dress(handle, self._path, old)
        os.fsync(handle)

    def _wait_turn(self, directory: int) -> None:
        """Of all that write in this way into the directory, one at a time looks and renames. Those of one process too.

        Somebody who holds it for long stands still, and is not waited for any longer.
        """
        for _ in range(TURN_TRIES):
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._abandoned.wait(TURN_PAUSE)
            except OSError:  # not on this file system
                return

    def _check(self, old: os.stat_result | None) -> None:
        """The last look before it happens."""
        if self._abandoned.is_set():
            raise SandboxError(f"writing {self._path} was stopped; it is as it was")
        if self._expected is None:
            return
        try:
            now = None if old is None else version_of(os.stat(self._path))
        except FileNotFoundError:
            now = None
        if now != self._expected:
            raise FileChanged(f"{self._path} was changed meanwhile: nothing was written, read it again")


class _CannotBeNamed(Exception):
    """A file without a name cannot be given one here."""


def _link(handle: int, name: str, directory: int) -> bool:
    """Give a file without a name one; False where something has it."""
    try:
        os.link(f"/proc/self/fd/{handle}", name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        raise _CannotBeNamed from None
    return True


def _dress(handle: int, path: str, old: os.stat_result) -> None:
    """Give a file owner, mode and attributes of another, as far as this user may."""
    mode = stat.S_IMODE(old.st_mode)
    try:
        os.fchown(handle, old.st_uid, old.st_gid)
    except OSError:  # only root may give files away
        with contextlib.suppress(OSError):
            os.fchown(handle, -1, old.st_gid)
        if os.fstat(handle).st_uid != old.st_uid:
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(handle, mode)
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        kept = os.listxattr(path)
        for name in os.listxattr(handle):
            if name not in kept:  # a default of its directory that the old one did not have
                with contextlib.suppress(OSError):
                    os.removexattr(handle, name)
        for name in kept:
            with contextlib.suppress(OSError):
                os.setxattr(handle, name, os.getxattr(path, name))


def _make_directory(path: str) -> None:
    """With its parents, all of which are on the disk afterwards."""
    missing: list[str] = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        try:
            os.mkdir(each)
        except FileExistsError:
            if not os.path.isdir(each):
                raise SandboxError(f"{each} is a file, not a directory: nothing can be below it") from None
        parent = os.open(os.path.dirname(each), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync_directory(parent)
        finally:
            os.close(parent)


def _sync_directory(handle: int) -> None:
    """Where the file system has no such call, it keeps names in its own way."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _sweep(directory: int, now: float) -> None:
    """Remove what a killed process left in a directory while it wrote. Once for each directory is enough."""
    about = os.fstat(directory)
    key = (about.st_dev, about.st_ino)
    if key in _swept:
        return
    if len(_swept) >= MOST_SWEPT:
        _swept.clear()
    _swept.add(key)
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_left(entry.name, directory, now)


def _remove_left(name: str, directory: int, now: float) -> None:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        if now - os.fstat(handle).st_mtime > LEFT_AFTER:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its writer lives
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(handle)


def _what(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "a device")


@contextlib.contextmanager
def _named(path: str, note: str = "") -> Generator[None]:
    """Errors of the system as SandboxError that names the path."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SandboxError(f"{path}: {reason.lower()}{f'; {note}' if note else ''}") from error
