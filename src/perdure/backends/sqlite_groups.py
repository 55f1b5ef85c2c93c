"""Groups of works as transactions, on the one connection of a process that writes.

Each batch first moves its session's head, from the one it follows and under the epoch it claims:
where that moves nothing, nothing else of the batch is written, and the group goes on.
"""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

import apsw

from perdure.backends.sqlite_errors import again, is_final, translated
from perdure.backends.sqlite_rows import COMMIT, PUTS, REMOVALS, STATEMENT, Row, place
from perdure.backends.sqlite_schema import BUSY_MS
from perdure.errors import Fenced, PerdureError, StorageError, StorageRejected
from perdure.records import Seq
from perdure.storage import Batch, Claim

FENCE = "UPDATE session SET head = ?, next_id = ? WHERE id = ? AND epoch = ? AND head = ? AND open = 1"

#: Pages of the log (4 kB each) from which on they are copied into the database,
#: and from which on the writer waits a little for readers that hold the log.
LOG_PAGES = 1000
LOG_PAGES_CROWDED = 4 * LOG_PAGES
READERS_PATIENCE_MS = 100

#: Where a work runs: in the transaction of a group, between two groups, or at the very end.
Place = Literal["group", "alone", "end"]
#: What a work came to: its result, or the exception to raise.
Outcome = Any
Rows = defaultdict[str, list[Row]]


class Work:
    """A batch under a claim, or a function of the connection. `counted` works may have written."""

    __slots__ = ("batch", "claim", "counted", "function", "place")

    def __init__(
        self,
        place: Place,
        function: Callable[[apsw.Connection], Any] | None,
        *,
        claim: Claim | None,
        batch: Batch | None,
        counted: bool,
    ) -> None:
        self.place: Place = place
        self.function = function
        self.claim = claim
        self.batch = batch
        self.counted = counted


class Groups:
    """Carries out works. `failure` is set once the file is in doubt; then nothing works any more."""

    def __init__(self, connection: apsw.Connection, path: str, blocked: Callable[[], str]) -> None:
        self.failure: StorageError | None = None
        self._connection = connection
        self._cursor = connection.cursor()
        self._path = path
        self._blocked = blocked
        #: Sessions by key. A session's number never changes.
        self._sessions: dict[str, int] = {}
        self._log_pages = 0
        #: The number of log pages from which on the next checkpoint is due.
        self._due = LOG_PAGES
        connection.set_wal_hook(self._logged)

    def close(self) -> None:
        self._connection.close()

    def carry_out(self, works: Sequence[Work]) -> list[Outcome]:
        """Works of one group in one transaction, or one that stands alone."""
        return [self._alone(works[0])] if works[0].place == "alone" else self._group(works)

    def _alone(self, work: Work) -> Outcome:
        assert work.function is not None
        try:
            return work.function(self._connection)
        except Exception as error:
            return self._undo(error)

    # -- a group

    def _group(self, works: Sequence[Work]) -> list[Outcome]:
        if self.failure is not None:
            return [again(self.failure) for _ in works]
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
            rows: Rows = defaultdict(list)
            outcomes = [self._stage(work, rows) for work in works]
            self._put(rows)
            self._cursor.execute("COMMIT")
        except Exception as error:
            return self._broken(works, error)
        return outcomes

    def _broken(self, works: Sequence[Work], error: Exception) -> list[Outcome]:
        """The transaction is undone. Where one work is to blame, find it: the others are done again without it."""
        verdict = self._undo(error)
        whole = is_final(verdict) or isinstance(error, apsw.FullError | apsw.BusyError | apsw.NoMemError)
        if whole or len(works) == 1:
            return [again(verdict) for _ in works]
        half = len(works) // 2
        return self._group(works[:half]) + self._group(works[half:])

    def _stage(self, work: Work, rows: Rows) -> Outcome:
        """Pass the fence and write the batch, its puts into `rows` for later. The outcome, should the group commit."""
        claim, batch = work.claim, work.batch
        if claim is None or batch is None:
            assert work.function is not None
            self._put(rows)
            return work.function(self._connection)
        session = self._sessions.get(claim.session) or self._number_of(claim.session)
        seq = batch.seq
        self._cursor.execute(FENCE, (seq, batch.next_id, session, claim.epoch, seq - 1))
        if self._connection.changes() != 1:
            return self._refusal(claim, seq, session)
        at = place(session)
        rows[COMMIT].append((at | seq, batch.commit_id))
        for write in batch.writes:
            kind = type(write)
            sql, row = STATEMENT[kind](at, seq, write)
            if kind in REMOVALS:
                self._put(rows)
                self._cursor.execute(sql, row)
            else:
                rows[sql].append(row)
        return seq

    def _put(self, rows: Rows) -> None:
        """Write the rows that wait."""
        for sql in PUTS:
            waiting = rows.get(sql)
            if waiting is None:
                continue
            if len(waiting) == 1:
                self._cursor.execute(sql, waiting[0])
            else:
                self._cursor.executemany(sql, waiting)
        rows.clear()

    def _number_of(self, key: str) -> int:
        """The number of a session, 0 where there is none."""
        found = self._cursor.execute("SELECT id FROM session WHERE key = ?", (key,)).fetchone()
        if found is None:
            return 0
        return self._sessions.setdefault(key, found[0])

    def _refusal(self, claim: Claim, seq: Seq, session: int) -> StorageError:
        """Why the fence let nothing pass."""
        sql = "SELECT epoch, head, open FROM session WHERE id = ?"
        epoch, head, is_open = self._cursor.execute(sql, (session,)).fetchone() or (0, 0, 0)
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
        self._cursor = self._connection.cursor()  # the old one may stand in the middle of its rows
        if isinstance(error, apsw.BusyError):
            return StorageRejected(
                f"{self._path} was locked for {BUSY_MS // 1000} s{self._blocked()}. Nothing was kept; try again"
            )
        verdict = translated(error, self._path, doing="while writing", errno_of=errno_of)
        if isinstance(verdict, StorageError) and is_final(verdict):
            self.failure = verdict
        return verdict

    # -- the log

    def _logged(self, connection: apsw.Connection, database: str, pages: int) -> int:
        if pages < self._log_pages:  # it began anew
            self._due = LOG_PAGES
        self._log_pages = pages
        return apsw.SQLITE_OK

    def tidy(self) -> None:
        """Copy the log into the database if it has grown. Commits were acknowledged before: nobody waits for it.

        Readers that hold the log are left alone at first, and then waited for a little, so that it stays short (I51).
        """
        if self._log_pages < self._due:
            return
        crowded = self._log_pages >= LOG_PAGES_CROWDED
        pages, copied = self._log_pages, 0
        try:
            if crowded:
                self._connection.set_busy_timeout(READERS_PATIENCE_MS)
            pages, copied = self._connection.wal_checkpoint(
                mode=apsw.SQLITE_CHECKPOINT_RESTART if crowded else apsw.SQLITE_CHECKPOINT_PASSIVE
            )
        except (apsw.BusyError, apsw.FullError):
            pass  # next time: what is in the log is durable there
        except apsw.Error as error:
            self._undo(error)
        finally:
            self._connection.set_busy_timeout(BUSY_MS)
        self._due = LOG_PAGES if copied >= pages else self._log_pages + LOG_PAGES
