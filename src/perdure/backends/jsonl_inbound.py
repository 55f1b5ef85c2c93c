"""What others hand in to a session: a file of its own, to which any process appends under the file's lock.

The owner reads it and never writes it for a commit: that an item was taken, its answer and its removal stand in the
owner's own file. Items are numbered, so that a removal says which of several items of one id it means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from perdure.backends.jsonl_disk import Disk, append_all, failed, full, is_full, open_to_append, open_to_read
from perdure.backends.jsonl_format import Draft, raw
from perdure.backends.jsonl_index import Index
from perdure.backends.jsonl_lines import FORMAT, File, HandedInMark, ItemLine
from perdure.backends.jsonl_locks import lock, unlock
from perdure.backends.jsonl_reading import Reading, check_tail

#: Files of inbound items have numbers from here on, one for each that this process has seen.
FIRST = 1 << 31


class InboundFile:
    """The items of one session as far as they were read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Open files by number: what was read from one that was replaced stays readable there.
        self.files: dict[int, int] = {}
        self._inode = 0
        self._number = FIRST
        #: Where the last whole batch ends.
        self.end = 0
        #: How much of the file this storage saw to be on the disk.
        self._synced = 0

    def refresh(self, index: Index) -> None:
        """Take in what was handed in."""
        try:
            info = os.stat(self.path)
        except FileNotFoundError:
            return
        if info.st_ino != self._inode:
            self._open()
        elif info.st_size <= self.end:
            return
        descriptor = self.files[self._number]
        self._read(index, descriptor, os.fstat(descriptor).st_size)

    def check(self) -> None:
        """Raise StorageCorrupt where something is damaged in front of items that were kept."""
        if self._inode:
            descriptor = self.files[self._number]
            check_tail(descriptor, self.path, self.end, os.fstat(descriptor).st_size)

    def _read(self, index: Index, descriptor: int, stop: int) -> bool:
        """Whether something stands behind the last whole batch."""
        reading = Reading(descriptor, self.path, self._number, self.end, stop)
        for batch in reading.batches():
            index.apply(batch)
        self.end = reading.end
        return reading.torn

    def _open(self) -> None:
        self._number += 1
        self.files[self._number] = open_to_read(self.path)
        self._inode = os.fstat(self.files[self._number]).st_ino
        self.end = self._synced = 0

    def close(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()
        self._inode = self.end = self._synced = 0

    # -- handing in

    def hand_in(self, index: Index, key: str, items: Sequence[tuple[str, bytes]], disk: Disk, *, power: bool) -> None:
        """Append those items whose ids are not known, durable on return. The file's lock is held (`opened`).

        Raises StorageFull, or StorageFailed where it is not certain what the file holds.
        """
        self.refresh(index)
        new: dict[str, bytes] = {}
        for id, body in items:
            if index.session.inbound.body(id) is None:
                new.setdefault(id, body)
        if not new:
            return
        descriptor = open_to_append(self.path)
        try:
            self._mend(descriptor, disk)
            draft = Draft(self._number, self.end)
            if not self.end:
                draft.add(File(format=FORMAT, session=key, number=0))
            for n, (id, body) in enumerate(new.items(), index.next_item):
                b64, text = raw(body)
                draft.add(ItemLine(n=n, id=id, b64=b64, body=text))
            batch = draft.seal(HandedInMark, next=index.next_item + len(new), synced=self._synced)
            self._append(descriptor, bytes(draft.data), disk, power=power)
            index.apply(batch)
            self.end = draft.end
            self._synced = draft.end if power else self._synced
        finally:
            os.close(descriptor)

    def _mend(self, descriptor: int, disk: Disk) -> None:
        """Cut off the rest of a last write that was torn, and know that the rest is on the disk."""
        try:
            size = os.fstat(descriptor).st_size
            if size > self.end:
                check_tail(descriptor, self.path, self.end, size)
                disk.truncate(descriptor, self.end)
            if not self._synced:
                disk.sync(descriptor)
                for directory in (self.path.parent, self.path.parent.parent, self.path.parent.parent.parent):
                    disk.sync_directory(directory)
                self._synced = self.end
        except OSError as error:
            raise failed(self.path, error) from error

    def _append(self, descriptor: int, data: bytes, disk: Disk, *, power: bool) -> None:
        try:
            append_all(disk, descriptor, data)
        except OSError as error:
            try:
                disk.truncate(descriptor, self.end)
                if power:
                    disk.sync(descriptor)
            except OSError as worse:
                raise failed(self.path, worse) from worse
            raise (full if is_full(error) else failed)(self.path, error) from error
        if power:
            try:
                disk.sync(descriptor)
            except OSError as error:
                raise failed(self.path, error) from error


def replace(
    inbound: InboundFile,
    index: Index,
    key: str,
    bodies: Callable[[Iterable[bytes]], list[bytes]],
    part: Path,
    disk: Disk,
) -> None:
    """Make a new file of the items that nobody took. The file's lock is held. Raises OSError."""
    inbound.refresh(index)
    waiting = index.waiting()
    draft = Draft(0, 0)
    draft.add(File(format=FORMAT, session=key, number=0))
    for n, id, found in waiting:
        b64, text = raw(bodies([found])[0])
        draft.add(ItemLine(n=n, id=id, b64=b64, body=text))
    draft.seal(HandedInMark, next=index.next_item, synced=0)
    disk.remove(part)
    descriptor = disk.create(part)
    try:
        append_all(disk, descriptor, bytes(draft.data))
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
    disk.rename(part, inbound.path)
    disk.sync_directory(part.parent)
    index.forget_gone()


@contextmanager
def opened(path: Path, disk: Disk) -> Generator[None]:
    """Hold the lock of the inbound file, which is made if need be."""
    while True:
        try:
            descriptor = open_to_read(path)
        except FileNotFoundError:
            try:
                descriptor = disk.create(path)
            except FileExistsError:
                continue
            disk.sync_directory(path.parent)
        try:
            lock(descriptor, path)
            if _is_still(path, descriptor):
                yield
                return
        finally:
            unlock(descriptor)
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the file that is locked was not replaced meanwhile."""
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
