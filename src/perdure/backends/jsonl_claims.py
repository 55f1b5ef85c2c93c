"""Claims: the next epoch of a session, written by the new owner alone.

Under the session's lock, which no owner needs to append. Where the owner before gave the session back, the claim is the
next batch of its file. Where it did not, a claim begins a new file: from the moment that this exists, no write of the
old owner is acknowledged before it has read how much of its file counts. So what a stopped owner does later has no
effect, and whether it lives only decides who has to say `take_over`, never what is kept.
"""

from __future__ import annotations

import os

from perdure.backends.jsonl_disk import Disk, append_all, failed, full, is_full
from perdure.backends.jsonl_format import Batch, Draft
from perdure.backends.jsonl_lines import FORMAT, ClaimMark, File, Place
from perdure.backends.jsonl_locks import locked
from perdure.backends.jsonl_places import LOCK, PART
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
            if session.number and owner is None:
                _go_on(session, worker, disk)
            else:
                _begin_file(session, worker, disk, mend=not lives)
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


def _begin_file(session: JsonlSession, worker: Worker, disk: Disk, *, mend: bool) -> None:
    """Claim in a new file. What the old one holds when the new one exists counts, and nothing later.

    `mend`: nobody writes the old one any more, so what a crash tore at its end is cut off.
    """
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
            if mend:
                _cut_off(session, disk)
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
    """Claim in the file of an owner that gave the session back; at its end may be what is left of another claim."""
    descriptor, path = session.descriptor, session.path(session.number)
    _cut_off(session, disk)
    disk.sync(descriptor)
    draft = Draft(session.number, session.end)
    try:
        batch = _append_claim(session, worker, disk, draft, descriptor)
    except OSError as error:
        disk.truncate(descriptor, draft.start)
        disk.sync(descriptor)
        raise (full(path, error) if is_full(error) else error) from error
    _keep(session, draft, batch)


def _cut_off(session: JsonlSession, disk: Disk) -> None:
    """What stands behind the last whole batch; `follow` has seen that it is no damage."""
    if os.fstat(session.descriptor).st_size > session.end:
        disk.truncate(session.descriptor, session.end)


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
