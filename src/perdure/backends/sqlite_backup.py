"""A copy of a store as it is at one moment, beside a live owner: checked before it gets its name.

SQLite copies page by page inside one read transaction, so that commits of others neither show nor start it anew.
The copy is one file of its own. Whoever opens it finds its sessions as after a crash at that moment.
"""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import apsw
import msgspec

from perdure.backends.sqlite_check import Checked, Tell, check, find, reading
from perdure.backends.sqlite_errors import opening_failed, translated
from perdure.backends.sqlite_schema import sync_directory
from perdure.errors import StorageCorrupt, UsageError

#: Pages that are copied between two words about progress.
PAGES = 1024


class BackedUp(msgspec.Struct, frozen=True, kw_only=True):
    """A copy that was made and checked."""

    path: str
    checked: Checked


def backup(path: str, target: str, tell: Tell = lambda what, done, total: None) -> BackedUp:
    """Copy a store to a new file for its owner only. Raises UsageError where the file is there.

    Raises StorageCorrupt where the copy is not healthy, which says what is wrong with the store; nothing is kept then.
    """
    source, name = find(path), Path(os.path.abspath(target))
    if os.path.lexists(name):
        raise UsageError(f"{name} is there already: a backup replaces nothing; name a new file")
    _remove_parts_of_the_dead(name)
    part = name.with_name(f".{name.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise opening_failed(error, str(part)) from error
    try:
        _copy(source, str(part), tell)
        checked = check(str(part), tell)
        if not checked.healthy:
            first = checked.damage[0]
            where = "" if first.session is None else f"in session {first.session!r} "
            raise StorageCorrupt(
                f"the copy of {source} is not healthy, {where}{first.what}; nothing was kept. See perdure db check"
            )
        _publish(part, name)
    finally:
        _remove(part)
    return BackedUp(path=str(name), checked=msgspec.structs.replace(checked, path=str(name)))


def _remove(part: Path) -> None:
    for left in (part, *(Path(f"{part}{ending}") for ending in ("-wal", "-shm", "-journal"))):
        with suppress(OSError):
            os.unlink(left)


def _remove_parts_of_the_dead(name: Path) -> None:
    """What killed backups to this name left is as large as the store, and hidden."""
    form = re.compile(rf"\.{re.escape(name.name)}\.([0-9]{{1,10}})\.part")
    try:
        found = [form.fullmatch(each) for each in os.listdir(name.parent)]
    except OSError:
        return  # whoever makes the new part says why
    for each in found:
        if each is not None and not _runs(int(each[1])):
            _remove(name.with_name(each[0]))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of somebody else
        return True
    return pid != os.getpid()  # the number of a dead one, used again


def _copy(source: str, part: str, tell: Tell) -> None:
    copy = apsw.Connection(part, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with reading(source, tell) as connection, copy.backup("main", connection, "main") as copying:
            while not copying.done:
                try:
                    copying.step(PAGES)
                except apsw.FullError as error:  # which is not said of what is read
                    raise translated(error, part, doing="while writing") from error
                tell("copying", copying.page_count - copying.remaining, copying.page_count)
        copy.pragma("journal_mode", "delete")  # one file: whoever opens it to write keeps a log again
    except apsw.Error as error:
        raise translated(error, part, doing="while writing") from error
    finally:
        copy.close()


def _publish(part: Path, name: Path) -> None:
    """Give the copy its name, durably, unless somebody took that meanwhile."""
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(part, name)
    except FileExistsError:
        raise UsageError(f"{name} is there by now: a backup replaces nothing; name a new file") from None
    except OSError:  # a file system without links
        if os.path.lexists(name):
            raise UsageError(f"{name} is there by now: a backup replaces nothing; name a new file") from None
        os.rename(part, name)
    sync_directory(name.parent)
