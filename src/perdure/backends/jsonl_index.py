"""What the batches of a session amount to: the tables of the reference storage, with references for bodies.

The index is built from the files at the first look, and then follows them. It is the same whoever builds it:
what an owner appends passes through `apply`, as what a reader finds does.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure.backends.jsonl_format import Batch, line_of, write_of
from perdure.backends.jsonl_lines import (
    AnyLine,
    BaseLine,
    ClaimMark,
    CommitMark,
    DeltaLine,
    EverythingMark,
    HandedInMark,
    ItemLine,
    KnownLine,
    ReleaseMark,
    RemoveLine,
    TakenLine,
)
from perdure.backends.memory_session import MemorySession
from perdure.records import DocumentId, Seq
from perdure.storage import Batch as Commit
from perdure.storage import Opened, PutBase, PutDelta, TakeInbound, Worker, Write

#: A row of everything that a session holds.
Row = Write | KnownLine | RemoveLine


class Disordered(Exception):
    """A batch that cannot follow those before it."""


class Index:
    """Changed by whole batches only."""

    def __init__(self, key: str) -> None:
        self.session = MemorySession()
        #: Who claimed it last and did not release it.
        self.worker: Worker | None = None
        #: What the last claim found.
        self.opened: Opened | None = None
        #: The number of the inbound item that comes next.
        self.next_item = 1
        self._key = key
        #: The numbers of inbound items by id, and up to which number items of an id are gone.
        self._numbers: dict[str, int] = {}
        self._gone: dict[str, int] = {}

    def apply(self, batch: Batch) -> None:
        """Take a batch in. Raises Disordered where it does not follow."""
        match batch.mark:
            case CommitMark() as mark:
                self._commit(batch, mark)
            case ClaimMark() as mark:
                if mark.epoch != self.session.epoch + 1:
                    raise Disordered(f"a claim for epoch {mark.epoch} stands behind epoch {self.session.epoch}")
                self.opened = self.session.claim(self._key, mark.worker.id)
                self.worker = mark.worker
            case ReleaseMark() as mark:
                if self.session.release(mark.epoch):
                    self.worker = None
            case EverythingMark() as mark:
                self._restore(batch, mark)
            case HandedInMark() as mark:
                for line, body in batch.lines:
                    if isinstance(line, ItemLine):
                        self._hand_in(line, body)
                self.next_item = mark.next

    def through(self, id: str) -> int:
        """Up to which number a removal of this inbound item reaches."""
        return self._numbers.get(id, self._gone.get(id, 0))

    def waiting(self) -> list[tuple[int, str, bytes]]:
        """(number, id, body) of the inbound items that nobody took, in their order."""
        items = ((id, body) for id, body, taken in self.session.inbound.all() if taken is None)
        return sorted((self._numbers[id], id, body) for id, body in items)

    def forget_gone(self) -> None:
        """Of removed items none is left in the inbound file."""
        self._gone.clear()

    def _commit(self, batch: Batch, mark: CommitMark) -> None:
        if mark.seq != self.session.head + 1:
            raise Disordered(f"commit {mark.seq} stands behind commit {self.session.head}")
        writes: list[Write] = []
        for line, body in batch.lines:
            write = write_of(line, body)
            if write is not None:
                writes.append(write)
            if isinstance(line, RemoveLine) and isinstance(line.id, str):
                self._forget(line.id, line.through)
        self.session.apply(Commit(bytes.fromhex(mark.id), Seq(mark.seq), mark.next_id, writes))

    def _hand_in(self, line: ItemLine, body: bytes) -> None:
        if line.n > self._gone.get(line.id, 0):
            self._numbers[line.id] = line.n
            self.session.inbound.hand_in(line.id, body)

    def _forget(self, id: str, through: int) -> None:
        self._gone[id] = through
        self._numbers.pop(id, None)

    # -- everything at once

    def everything(self) -> Iterator[tuple[Row, Seq | None]]:
        """All that commits have put and that is not gone, and as of which commit, where that matters."""
        session = self.session
        for rows in (session.conversations, session.entries, session.tasks, session.submissions, session.documents):
            for id in sorted(rows.rows):
                yield rows.rows[id], None
        for what, document, seq, body in session.versions.all():
            put = PutBase(DocumentId(document), False, body) if what == "base" else PutDelta(DocumentId(document), body)
            yield put, seq
        for id, body, taken in session.inbound.all():
            if taken is not None:
                yield TakeInbound(id, body), taken
        for id, through in self._gone.items():
            yield RemoveLine(table="inbound", id=id, through=through), None
        for ago, commit, seq in session.known_commits():
            yield KnownLine(commit=commit.hex(), seq=seq, ago=ago), None

    def line_of(self, row: Row, at: Seq | None) -> AnyLine:
        """The line of a row of `everything`, once its body is there."""
        return row if isinstance(row, KnownLine | RemoveLine) else line_of(row, self.through, at=at)

    def _restore(self, batch: Batch, mark: EverythingMark) -> None:
        session = self.session
        commits: list[dict[bytes, Seq]] = [{}, {}, {}]
        for line, body in batch.lines:
            match line:
                case KnownLine():
                    commits[line.ago][bytes.fromhex(line.commit)] = Seq(line.seq)
                case RemoveLine() if isinstance(line.id, str):
                    self._gone[line.id] = line.through
                case BaseLine() | DeltaLine() | TakenLine():
                    self._put(line, body, Seq(line.at or 0))
                case _:
                    self._put(line, body, Seq(0))
        worker = mark.worker
        session.restore(
            epoch=mark.epoch,
            head=Seq(mark.head),
            next_id=mark.next_id,
            clean=mark.clean,
            owner=None if worker is None else worker.id,
            commits=commits,
        )
        self.worker = worker

    def _put(self, line: AnyLine, body: bytes, seq: Seq) -> None:
        write = write_of(line, body)
        if write is not None:
            self.session.put(write, seq)
