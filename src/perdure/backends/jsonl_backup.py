"""A copy of a JSONL store, beside live owners: each session as it is at one moment, checked before it gets its name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from perdure.backends.jsonl_check import check, find, sessions_of
from perdure.backends.jsonl_disk import Disk, append_all, opening_failed
from perdure.backends.jsonl_locks import locked
from perdure.backends.jsonl_places import ABOUT, LOCK, SESSIONS, WORKERS, key_of
from perdure.backends.jsonl_session import JsonlSession
from perdure.backends.sqlite_backup import BackedUp
from perdure.backends.sqlite_check import Tell
from perdure.errors import StorageCorrupt, UsageError

PIECE = 1 << 20


def backup(path: str, target: str, tell: Tell = lambda what, done, total: None) -> BackedUp:
    """Copy a store to a new directory for its owner only. Raises UsageError where something of that name is there.

    Raises StorageCorrupt where the store is not healthy; nothing is kept then.
    """
    source, name = find(path), Path(os.path.abspath(target))
    if os.path.lexists(name):
        raise UsageError(f"{name} is there already: a backup replaces nothing; name a new directory")
    part = name.with_name(f".{name.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    disk = Disk()
    try:
        for directory in (part, part / SESSIONS, part / WORKERS):
            directory.mkdir(mode=0o700)
        _copy(source / ABOUT, part / ABOUT, (source / ABOUT).stat().st_size, disk)
        directories = list(sessions_of(source))
        for done, directory in enumerate(directories):
            tell("copying", done, len(directories))
            _copy_session(directory, part / SESSIONS / directory.name, disk)
        checked = check(str(part), tell)
        if not checked.healthy:
            first = checked.damage[0]
            raise StorageCorrupt(f"the copy of {source} is not healthy: {first.what}; nothing was kept")
        for directory in (part / SESSIONS, part):
            disk.sync_directory(directory)
        os.rename(part, name)  # a directory takes no name that is in use, unless that is an empty directory
        disk.sync_directory(name.parent)
    except OSError as error:
        raise opening_failed(error, name) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return BackedUp(path=str(name), checked=msgspec.structs.replace(checked, path=str(name)))


def _copy_session(source: Path, target: Path, disk: Disk) -> None:
    """The whole batches of its files, while nobody may replace them."""
    key = key_of(source)
    if key is None:
        raise StorageCorrupt(f"{source} is not named as a session is: check what it is, and move it away")
    target.mkdir(mode=0o700)
    session = JsonlSession(key, source, writable=False, power=False)
    try:
        with locked(source / LOCK, shared=True):
            session.follow(alone=True)
            session.inbound.refresh(session.index)
            for path, size in session.extent():
                _copy(path, target / path.name, size, disk)
    finally:
        session.close()
    disk.sync_directory(target)


def _copy(source: Path, target: Path, size: int, disk: Disk) -> None:
    descriptor = disk.create(target)
    try:
        with source.open("rb") as file:
            while size > 0 and (piece := file.read(min(PIECE, size))):
                append_all(disk, descriptor, piece)
                size -= len(piece)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
