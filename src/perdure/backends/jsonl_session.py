"""The files of one session as one storage sees them: followed by those who look, appended to by the one that owns it.

A file with a higher number takes over. It says how much of the file before it counts (`File.after`); what a taken-over
owner still appends there stands behind that point and is nothing to anybody. An owner finds out by looking whether the
next file exists after its bytes are on the disk: if it does not, whoever makes it later reads those bytes first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path

from perdure.backends.jsonl_disk import corrupt, open_to_append, open_to_read, reading_failed
from perdure.backends.jsonl_format import dereferenced, unraw
from perdure.backends.jsonl_inbound import InboundFile
from perdure.backends.jsonl_index import Disordered, Index
from perdure.backends.jsonl_lines import File
from perdure.backends.jsonl_locks import locked
from perdure.backends.jsonl_places import INBOUND, LOCK, file_name, numbers
from perdure.backends.jsonl_reading import Reading, begins, check_tail
from perdure.storage import Claim

#: Files of a session that may come and go while one reader follows them.
TURNS = 10_000


class JsonlSession:
    """Whoever uses it holds its `lock`, except for appending to the open file, which only the owner's writer does."""

    def __init__(self, key: str, directory: Path, *, writable: bool, power: bool) -> None:
        self.key = key
        self.directory = directory
        self.lock = threading.RLock()
        self.index = Index(key)
        self.inbound = InboundFile(directory / INBOUND)
        #: The claim of this storage, until it is released or found to be taken over.
        self.mine: Claim | None = None
        #: The newest file, 0 where there is none; where its last whole batch ends; and how much of it is on the disk.
        self.number = 0
        self.end = 0
        self.synced = 0
        #: The size from which on it is worth looking whether the file is worth rewriting.
        self.tidy_at = 0
        self._writable = writable
        self._power = power
        self._files: dict[int, int] = {}

    # -- following

    def refresh(self) -> None:
        """Take in what others wrote."""
        if self.mine is None or self.is_lost():
            self.follow()
        self.inbound.refresh(self.index)

    def is_lost(self, *, alone: bool = False) -> bool:
        """Whether somebody took over from this storage, which then knows that it owns nothing.

        A file that a claim began and did not live to finish is removed. `alone`: as for `follow`.
        """
        if self.mine is None:
            return True
        path = self.path(self.number + 1)
        if not os.path.lexists(path):
            if not self._is_replaced():
                return False
        elif self._decided(path) is None:
            with nullcontext() if alone else locked(self.directory / LOCK):
                if self._decided(path) is None:
                    path.unlink(missing_ok=True)
                    return False
        self.mine = None
        return True

    def follow(self, *, alone: bool = False) -> None:
        """Read on to the end. `alone`: the caller holds the lock of the directory."""
        try:
            for _ in range(TURNS):
                if self._advance(alone) if self.number else not self._start():
                    return
        except BaseException:
            self.reset()
            raise
        raise corrupt(self.directory, "its files come and go without end")

    def _start(self) -> bool:
        """Begin with the newest file that needs none before it. False where there is no file."""
        found = numbers(self.directory)
        following = 0
        for number in reversed(found):
            begun = begins(self.path(number))
            if begun is not None and begun.after is None:
                self._switch(number)
                return True
            following = number if begun is not None else following
        if not following and len(found) < 2:
            return False
        if numbers(self.directory) == found:
            raise corrupt(self.directory, f"{file_name(following or found[0])} does not begin a session, and none does")
        return True

    def _advance(self, alone: bool) -> bool:
        """Read on in the present file, or go to the next one. True at the end."""
        info = os.fstat(self.descriptor)
        # The size comes first: what was there before a next file was not counts for whoever makes that.
        next_path = self.path(self.number + 1)
        if os.path.lexists(next_path):
            after = self._decided(next_path)
            if after is None and not alone:
                with locked(self.directory / LOCK, shared=True):
                    after = self._decided(next_path)
                    if after is None and not os.path.lexists(next_path):
                        return False
            if after is not None:
                return self._go_on(after)
            # Left by somebody who died before it meant anything.
        elif self._is_replaced():
            self.reset()
            return False
        self._apply(info.st_size)
        return True

    def _is_replaced(self) -> bool:
        """Whether the present file is gone, as all are when the session was rewritten, the lowest first.

        To be asked after it was seen that there is no next one: that one might have come and gone.
        """
        try:
            return os.stat(self.path(self.number)).st_ino != os.fstat(self.descriptor).st_ino
        except FileNotFoundError:
            return True

    def _go_on(self, after: File) -> bool:
        if after.after is None:
            self.reset()
            return False
        self._apply(after.after.bytes)
        if self.end != after.after.bytes or after.after.file != self.number:
            raise corrupt(self.path(self.number), f"it ends at {self.end}, the next file follows {after.after.bytes}")
        self._switch(self.number + 1)
        return False

    def _decided(self, path: Path) -> File | None:
        """How a file begins, once its first batch is whole."""
        begun = begins(path)
        if begun is None or begun.after is None:
            return begun  # one that begins with everything gets its name when it is whole
        try:
            descriptor = open_to_read(path)
        except FileNotFoundError:
            return None
        try:
            reading = Reading(descriptor, path, self.number + 1, 0, os.fstat(descriptor).st_size)
            return begun if next(reading.batches(), None) is not None else None
        finally:
            os.close(descriptor)

    def _apply(self, stop: int) -> None:
        if stop <= self.end:
            return
        if self._power:
            os.fsync(self.descriptor)  # nothing is shown that a power loss could take back
        path = self.path(self.number)
        reading = Reading(self.descriptor, path, self.number, self.end, stop)
        try:
            for batch in reading.batches():
                self.index.apply(batch)
        except Disordered as error:
            raise corrupt(path, str(error)) from error
        self.end = reading.end
        if reading.torn:
            check_tail(self.descriptor, path, self.end, stop)

    # -- files

    @property
    def descriptor(self) -> int:
        """The newest file's."""
        return self._files[self.number]

    @property
    def files(self) -> int:
        """How many hold what the index refers to."""
        return len(self._files)

    def extent(self) -> list[tuple[Path, int]]:
        """Its files, and how much of each there is to copy."""
        found = [(self.path(each), os.fstat(descriptor).st_size) for each, descriptor in self._files.items()]
        whole = [(path, size if path != self.path(self.number) else self.end) for path, size in found]
        return [*whole, *([(self.inbound.path, self.inbound.end)] if self.inbound.end else [])]

    def path(self, number: int) -> Path:
        return self.directory / file_name(number)

    def _switch(self, number: int) -> None:
        """Go on with a file from its beginning; where it is gone, begin anew."""
        try:
            opened = (open_to_append if self._writable else open_to_read)(self.path(number))
        except FileNotFoundError:
            self.reset()
        else:
            self.use(number, opened)

    def use(self, number: int, descriptor: int) -> None:
        self._files[number] = descriptor
        self.number, self.end, self.synced = number, 0, 0

    def reset(self) -> None:
        """Know nothing."""
        self.mine = None
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self.inbound.close()
        self.index = Index(self.key)
        self.number = self.end = self.synced = self.tidy_at = 0

    # -- bodies

    def bodies(self, references: Iterable[bytes]) -> list[bytes]:
        return [self.body(each) for each in references]

    def body(self, found: bytes) -> bytes:
        """What a reference of the index stands for."""
        file, offset, length, b64 = dereferenced(found)
        path = self.directory / (INBOUND if file in self.inbound.files else file_name(file))
        try:
            data = os.pread(
                self.inbound.files[file] if file in self.inbound.files else self._files[file], length, offset
            )
            if len(data) == length:
                return unraw(data, b64)
        except (OSError, ValueError) as error:
            raise reading_failed(error, path) from error
        raise corrupt(path, f"it is shorter than it was: {length} bytes at {offset} are gone")

    def close(self) -> None:
        with self.lock, suppress(OSError):
            self.reset()
