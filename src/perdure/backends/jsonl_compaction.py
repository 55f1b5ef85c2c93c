"""Rewriting the files of a session without what is gone: replaced rows, pruned values, items that were taken.

Done by the owner between two groups, under the session's lock, in steps each of which leaves a whole session behind:
inbound items that nobody took yet replace the inbound file by a rename; then everything else is written to a part,
synced, and becomes the next file by a rename; then the files before it are removed, which nobody needs any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from perdure.backends.jsonl_disk import Disk, append_all, failed
from perdure.backends.jsonl_format import Batch, Draft, dereferenced
from perdure.backends.jsonl_inbound import opened, replace
from perdure.backends.jsonl_index import Index, Row
from perdure.backends.jsonl_lines import FORMAT, AnyLine, EverythingMark, File, KnownLine, RemoveLine
from perdure.backends.jsonl_locks import locked
from perdure.backends.jsonl_places import LOCK, PART, numbers
from perdure.backends.jsonl_session import JsonlSession
from perdure.storage import Remove, RemoveEntries

#: Files are rewritten when they hold more than twice what is needed, and so many bytes more.
SLACK = 4 << 20
#: Or when there are more than so many, one for each take-over.
MOST_FILES = 16
#: About what a line has besides its body.
COLUMNS = 80
#: Written at a time.
PIECE = 1 << 20


def tidy(session: JsonlSession, disk: Disk, slack: int) -> None:
    """Rewrite the files if that is worth it. Raises StorageFailed where it is not certain which of them are there.

    Where there is no space, or a claim goes on, everything stays as it is.
    """
    with session.lock:
        if session.is_lost() or session.end < session.tidy_at:
            return
        size = _size(session)
        needed = sum(COLUMNS + _length(row) for row, _ in session.index.everything())
        session.tidy_at = max(2 * needed + slack, session.end + slack)
        if size <= 2 * needed + slack and session.files <= MOST_FILES:
            return
    with suppress(OSError):
        rewrite(session, disk)


def _size(session: JsonlSession) -> int:
    """Of all the files."""
    found = 0
    for path in session.directory.iterdir():
        with suppress(OSError):
            found += path.stat().st_size
    return found


def _length(row: Row) -> int:
    if isinstance(row, KnownLine | RemoveLine | Remove | RemoveEntries):
        return 0
    return dereferenced(row.body)[2]


def rewrite(session: JsonlSession, disk: Disk) -> None:
    """See the module. Only for the owner's writer. Raises OSError where nothing changed, else StorageFailed."""
    part = session.directory / PART
    with locked(session.directory / LOCK):
        with session.lock:
            if session.is_lost(alone=True):
                return
        disk.sync(session.descriptor)  # what the inbound file will not have must stand here for good
        with opened(session.inbound.path, disk), session.lock:
            replace(session.inbound, session.index, session.key, session.bodies, part, disk)
        number = session.number + 1
        disk.remove(part)
        descriptor = disk.create(part)
        try:
            end, batch = _write_everything(session, number, descriptor, disk)
            disk.sync(descriptor)
        except BaseException:
            os.close(descriptor)
            disk.remove(part)
            raise
        try:
            disk.rename(part, session.path(number))
            disk.sync_directory(session.directory)
        except OSError as error:
            raise failed(session.path(number), error) from error
        _go_over(session, number, descriptor, end, batch)
        for old in numbers(session.directory):  # the lowest first: whoever holds it must not miss the next one
            if old < number:
                disk.remove(session.path(old))


def _write_everything(session: JsonlSession, number: int, descriptor: int, disk: Disk) -> tuple[int, Batch]:
    """Where the file ends, and its one batch."""
    index, draft = session.index, Draft(number, 0)
    draft.add(File(format=FORMAT, session=session.key, number=number))
    for line in _lines(session):
        draft.add(line)
        if len(draft.data) > PIECE:
            append_all(disk, descriptor, draft.drain())
    batch = draft.seal(
        EverythingMark,
        epoch=index.session.epoch,
        head=index.session.head,
        next_id=index.session.next_id,
        clean=index.session.clean,
        worker=index.worker,
        synced=0,
    )
    append_all(disk, descriptor, draft.drain())
    return draft.end, batch


def _lines(session: JsonlSession) -> Iterator[AnyLine]:
    for row, at in list(session.index.everything()):
        yield session.index.line_of(_with_body(session, row), at)


def _with_body(session: JsonlSession, row: Row) -> Row:
    if isinstance(row, KnownLine | RemoveLine | Remove | RemoveEntries):
        return row
    return msgspec.structs.replace(row, body=session.body(row.body))


def _go_over(session: JsonlSession, number: int, descriptor: int, end: int, batch: Batch) -> None:
    """Be at the end of the new file, and forget the old ones."""
    fresh = Index(session.key)
    fresh.apply(batch)
    with session.lock:
        mine = session.mine
        session.reset()
        session.index, session.mine = fresh, mine
        session.use(number, descriptor)
        session.end = session.synced = end
        session.inbound.refresh(fresh)
