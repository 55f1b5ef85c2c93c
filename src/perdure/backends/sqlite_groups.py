"""Groups of works as transactions, on the one connection of a process that writes.

Each batch first moves its session's head, from the one it follows and under the epoch it claims:
where that moves nothing, nothing else of the batch is written, and the group goes on.
"""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import apsw
import msgspec

from perdure.backends.outcomes import Outcome, again
from perdure.backends.sqlite_errors import is_final, translated
from perdure.backends.sqlite_locks import BUSY_MS, FIRST_MS, begin, wait_for_locks
from perdure.backends.sqlite_rows import COMMIT, FENCE, STATEMENT, Rows, place
from perdure.errors import Fenced, PerdureError, StorageError, StorageRejected
from perdure.records import Seq
from perdure.storage import Batch, Claim

#: Pages of the log (4 kB each) from which on they are copied into the database,
#: and from which on the writer waits a little for readers that hold the log.
LOG_PAGES = 1000
LOG_PAGES_CROWDED = 4 * LOG_PAGES

#: Where a work runs: in the transaction of a group, between two groups, or at the very end.
Place = Literal["group", "alone", "end"]


def readers_patience(pages: int) -> int:
    """For how many milliseconds to wait for readers that keep a log of this length from beginning anew.

    The longer it is, the slower are the readers that did it: 0.1 s at 16 MB, 1.6 s at 64 MB, 5 s at most.
    """
    return min(100 * (pages // LOG_PAGES_CROWDED) ** 2, BUSY_MS)


class Work(msgspec.Struct):
    """What was admitted, and who waits for it: a batch under a claim, or a function of the connection."""

    done: asyncio.Future[Any]
    place: Place
    claim: Claim | None = None
    batch: Batch | None = None
    function: Callable[[apsw.Connection], Any] | None = None
    counted: bool = True  #: it may have written
    flushed: bool = True  #: it is durable when it returns; else with the next group


def _stretches(works: Sequence[Work]) -> Iterator[Sequence[Work]]:
    """Batches under one claim that follow one another pass its fence together; everything else stands alone."""
    stretch: list[Work] = []
    for work in works:
        if stretch and not _follows(stretch[-1], work):
            yield stretch
            stretch = []
        stretch.append(work)
    if stretch:
        yield stretch


def _follows(before: Work, work: Work) -> bool:
    if before.batch is None or work.batch is None:
        return False
    return work.claim == before.claim and work.batch.seq == before.batch.seq + 1


class Groups:
    """Carries out works. `failure` is set once the file is in doubt; then nothing works any more."""

    def __init__(self, connection: apsw.Connection, path: str, blocked: Callable[[], str]) -> None:
        self.failure: StorageError | None = None
        self._connection = connection
        self._use(connection.cursor())
        self._path = path
        self._blocked = blocked
        #: Sessions by key. A session's number never changes.
        self._sessions: dict[str, int] = {}
        #: What `_written` has to reach for the next checkpoint.
        self._due = LOG_PAGES

    def close(self) -> None:
        """What was acknowledged is in the log: when the last copying of it fails, nothing is lost."""
        with suppress(apsw.Error):
            self._connection.close()

    def alone(self, work: Work) -> Outcome:
        """Run a function that begins and ends its own transactions."""
        assert work.function is not None
        durability = self._connection.pragma("synchronous")
        if not work.flushed:
            self._connection.pragma("synchronous", "normal")
        try:
            return work.function(self._connection)
        except Exception as error:
            return self._undo(error)
        finally:  # outside a transaction, where it takes effect
            if not work.flushed and self.failure is None:
                self._connection.pragma("synchronous", durability)

    def together(self, works: Sequence[Work]) -> list[Outcome]:
        """Carry out works in one transaction, or in a few where one of them breaks it."""
        if self.failure is not None:
            return [again(self.failure) for _ in works]
        try:
            begin(self._connection)
            outcomes = [outcome for stretch in _stretches(works) for outcome in self._write(stretch)]
            self._rows.write()
            self._execute("COMMIT")
        except Exception as error:
            return self._broken(works, error)
        return outcomes

    def _write(self, works: Sequence[Work]) -> list[Outcome]:
        """Pass the fence and gather the rows of batches that follow one another, or run one function.
        The outcomes, should the transaction commit.
        """
        first, last = works[0], works[-1]
        claim = first.claim
        if claim is None or first.batch is None or last.batch is None:
            assert first.function is not None
            self._rows.write()
            return [first.function(self._connection)]
        session = self._sessions.get(claim.session) or self._number_of(claim.session)
        before, seq = first.batch.seq - 1, last.batch.seq
        self._execute(FENCE, (seq, last.batch.next_id, session, claim.epoch, before))
        if self._connection.changes() != 1:
            if len(works) == 1:
                return [self._refusal(claim, seq, session)]
            return [outcome for work in works for outcome in self._write([work])]
        return [self._gather(place(session), work.batch) for work in works if work.batch is not None]

    def _gather(self, at: int, batch: Batch) -> Seq:
        add, seq = self._rows.add, batch.seq
        add(COMMIT, (at | seq, batch.commit_id))
        for write in batch.writes:
            sql, row = STATEMENT[type(write)](at, seq, write)
            add(sql, row)
        return seq

    def _use(self, cursor: apsw.Cursor) -> None:
        self._execute: Callable[..., apsw.Cursor] = cursor.execute
        self._rows = Rows(self._execute)

    def _broken(self, works: Sequence[Work], error: Exception) -> list[Outcome]:
        """The transaction is undone. Where one work is to blame, find it: the others are done again without it."""
        verdict = self._undo(error)
        whole = is_final(verdict) or isinstance(error, apsw.FullError | apsw.BusyError | apsw.NoMemError)
        if whole or len(works) == 1:
            return [again(verdict) for _ in works]
        half = len(works) // 2
        return self.together(works[:half]) + self.together(works[half:])

    def _number_of(self, key: str) -> int:
        """The number of a session, 0 where there is none."""
        found = self._execute("SELECT id FROM session WHERE key = ?", (key,)).fetchone()
        if found is None:
            return 0
        return self._sessions.setdefault(key, found[0])

    def _refusal(self, claim: Claim, seq: Seq, session: int) -> StorageError:
        """Why the fence let nothing pass."""
        sql = "SELECT epoch, head, open FROM session WHERE id = ?"
        epoch, head, is_open = self._execute(sql, (session,)).fetchone() or (0, 0, 0)
        if epoch != claim.epoch:
            return Fenced(
                f"session {claim.session!r} of {self._path} is at epoch {epoch}, this claim has {claim.epoch}: "
                "somebody else took it; open the session again"
            )
        if not is_open:
            return Fenced(f"session {claim.session!r} of {self._path} was released by this claim: open it again")
        return StorageRejected(f"commit {seq} of session {claim.session!r} does not follow its head {head}")

    # -- failures

    def _undo(self, error: Exception) -> PerdureError:
        """Leave the transaction, and say what the error means."""
        errno_of = self._connection.system_errno
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as worse:
            error = worse
        self._use(self._connection.cursor())  # the old one may stand in the middle of its rows
        self._sessions.clear()  # one that the transaction made is not there any more
        if isinstance(error, apsw.BusyError):
            return StorageRejected(
                f"{self._path} was locked for {BUSY_MS // 1000} s{self._blocked()}. Nothing was kept; try again"
            )
        verdict = translated(error, self._path, doing="while writing", errno_of=errno_of)
        if isinstance(verdict, StorageError) and is_final(verdict):
            self.failure = verdict
        return verdict

    # -- the log

    def tidy(self) -> int | None:
        """Copy the log into the database if it has grown; how many pages it had. Nobody waits for it: commits were
        acknowledged before.

        Readers that hold the log are left alone at first, then waited for, the longer the more the log has grown (I51).
        """
        if self._written() < self._due:
            return None
        self._due = self._written() + LOG_PAGES
        pages = None
        try:
            pages, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if pages >= LOG_PAGES_CROWDED:
                wait_for_locks(self._connection, readers_patience(pages))
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except (apsw.BusyError, apsw.FullError):
            pass  # next time: what is in the log is durable there
        except apsw.Error as error:
            self._undo(error)
        finally:
            wait_for_locks(self._connection, FIRST_MS)
        return pages

    def _written(self) -> int:
        """Pages that this connection has written into the log. A count that costs nothing, unlike a hook."""
        return self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]
