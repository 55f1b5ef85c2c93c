"""Claims: the next epoch of a session, written by the new owner alone.

Under the session's lock, which no owner needs to append. Where the owner before is gone, the claim is the next batch of
its file, whose torn end is cut off first. Where that owner lives and is taken over, even if it is stopped in the middle
of a write, the claim begins a new file: from the moment that it exists, no write of the old owner is acknowledged
before the old owner has read how much of its file counts.
"""

from __future__ import annotations

import os

from perdure.backends.jsonl_disk import Disk, append_all, failed, full, is_full
from perdure.backends.jsonl_format import Batch, Draft
from perdure.backends.jsonl_lines import FORMAT, ClaimMark, File, Place
from perdure.backends.jsonl_locks import locked
from perdure.backends.jsonl_places import LOCK, PART
from perdure.backends.jsonl_reading import check_tail
from perdure.backends.jsonl_session import JsonlSession
from perdure.backends.workers import Workers, owned
from perdure.errors import SessionOwned
from perdure.storage import Opened, Worker


def claim(
    session: JsonlSession,
    path: str,
    workers: Workers,
    worker: Worker,
    disk: Disk,
    *,
    take_over: bool,
    kill: bool,
) -> Opened:
    """Write a new owner and the next epoch, durable on return. Raises SessionOwned, StorageFull or StorageFailed."""
    disk.make_directory(session.directory.parent)
    disk.make_directory(session.directory)
    with locked(session.directory / LOCK, killing=workers if kill else None), session.lock:
        session.follow(alone=True)
        owner = session.index.worker
        lives = owner is not None and workers.alive(owner.id)
        if owner is not None and lives and not take_over:
            raise SessionOwned(owned(session.key, path, worker, owner))
        try:
            _remove_undecided(session, disk)
            if lives or not session.number:
                _begin_file(session, worker, disk)
            else:
                _go_on(session, worker, disk)
        except OSError as error:
            session.reset()
            raise failed(session.directory, error) from error
        session.inbound.refresh(session.index)
        opened = session.index.opened
        assert opened is not None
        session.mine = opened.claim
        return opened


def _remove_undecided(session: JsonlSession, disk: Disk) -> None:
    """A file that somebody began and did not live to write its first batch in means nothing."""
    disk.remove(session.directory / PART)
    left = session.path(session.number + 1)
    if session.number and not session.end:
        left = session.path(session.number)
        session.reset()
    if os.path.lexists(left):
        disk.remove(left)
        disk.sync_directory(session.directory)


def _begin_file(session: JsonlSession, worker: Worker, disk: Disk) -> None:
    """Take over in a new file. What the old one holds when the new one exists counts, and nothing later."""
    number = session.number + 1
    path, draft = session.path(number), Draft(number, 0)
    try:
        descriptor = disk.create(path)
    except OSError as error:
        raise (full(path, error) if is_full(error) else error) from error
    try:
        after = None
        if session.number:
            session.follow(alone=True)
            disk.sync(session.descriptor)
            after = Place(session.number, session.end)
        draft.add(File(format=FORMAT, session=session.key, number=number, after=after))
        batch = _append_claim(session, worker, disk, draft, descriptor)
        disk.sync_directory(session.directory)
        if after is None:  # whoever made the directories may not have lived to see to it
            disk.sync_directory(session.directory.parent)
            disk.sync_directory(session.directory.parent.parent)
    except BaseException as error:
        os.close(descriptor)
        disk.remove(path)
        disk.sync_directory(session.directory)
        raise (full(path, error) if is_full(error) else error) from error
    session.use(number, descriptor)
    _keep(session, draft, batch)


def _go_on(session: JsonlSession, worker: Worker, disk: Disk) -> None:
    """Claim in the file of an owner that is gone, or gave the session back."""
    descriptor, path = session.descriptor, session.path(session.number)
    size = os.fstat(descriptor).st_size
    if size > session.end:
        check_tail(descriptor, path, session.end, size)
        disk.truncate(descriptor, session.end)
    disk.sync(descriptor)
    draft = Draft(session.number, session.end)
    try:
        batch = _append_claim(session, worker, disk, draft, descriptor)
    except OSError as error:
        disk.truncate(descriptor, draft.start)
        disk.sync(descriptor)
        raise (full(path, error) if is_full(error) else error) from error
    _keep(session, draft, batch)


def _append_claim(session: JsonlSession, worker: Worker, disk: Disk, draft: Draft, descriptor: int) -> Batch:
    """Durable on return."""
    epoch = session.index.session.epoch + 1
    batch = draft.seal(ClaimMark, epoch=epoch, worker=worker, synced=draft.start)
    append_all(disk, descriptor, bytes(draft.data))
    disk.sync(descriptor)
    return batch


def _keep(session: JsonlSession, draft: Draft, batch: Batch) -> None:
    session.index.apply(batch)
    session.end = session.synced = draft.end
