"""The one thread of a process that writes a store: what waits is committed with one flush (K8).

Work is admitted by putting it into a queue, so the order of the calls is the order of the commits.
A group of works is one transaction. Each batch in it first moves its session's head, from the one it follows and under
the epoch it claims: where that moves nothing, nothing else of the batch is written, and the group goes on.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from perdure.backends.sqlite_errors import again, is_final, opening_failed, translated
from perdure.backends.sqlite_rows import COMMIT, PUT, PUTS, Row, place, pruned, removal
from perdure.errors import Fenced, StorageError, StorageRejected
from perdure.records import Seq
from perdure.storage import Batch, Claim, PutBase
from perdure.telemetry import Telemetry

T = TypeVar("T")

FENCE = "UPDATE session SET head = ?, next_id = ? WHERE id = ? AND epoch = ? AND head = ? AND open = 1"

#: Works of one transaction at most, so that the first is not acknowledged much later than it could be.
GROUP = 1000
#: Pages of the log (4 kB each) from which on they are copied into the database,
#: and from which on writers wait a little for readers that hold the log.
LOG_PAGES = 1000
LOG_PAGES_CROWDED = 4 * LOG_PAGES
READERS_PATIENCE_MS = 100
#: How long a transaction waits for another process's (I49).
BUSY_MS = 5000

Connected = Callable[[], apsw.Connection]
#: What a work came to: its result, or the exception to raise.
Outcome = Any


class Work:
    """Something admitted: a batch under a claim, or a function of the connection.

    A function that is `alone` runs outside of any transaction; others run in the group's.
    `counted` works may have written: `Writer.finished` counts them.
    """

    __slots__ = ("alone", "batch", "claim", "counted", "done", "function", "loop")

    def __init__(
        self,
        *,
        claim: Claim | None = None,
        batch: Batch | None = None,
        function: Callable[[apsw.Connection], Any] | None = None,
        alone: bool = False,
        counted: bool = True,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self.loop.create_future()
        self.claim = claim
        self.batch = batch
        self.function = function
        self.alone = alone
        self.counted = counted


class Writer:
    """Owns the writing connection, in its own thread. Everything with a leading underscore belongs to that thread."""

    def __init__(
        self, path: str, connect: Connected, blocked: Callable[[], str], telemetry: Telemetry | None = None
    ) -> None:
        self.path = path
        #: Set once, when the file is in doubt or could not be opened: whatever comes then raises it.
        self.failure: StorageError | None = None
        #: Counted works that were carried out, of all who share this writer.
        self.finished = 0
        self._connect = connect
        self._blocked = blocked
        self._telemetry = telemetry or Telemetry()
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._running = True
        self._log_pages = 0
        #: The number of log pages at which the next checkpoint is due.
        self._due = LOG_PAGES
        #: Sessions by key. A session's number never changes.
        self._sessions: dict[str, int] = {}
        threading.Thread(target=self._run, name=f"perdure-writer {path}", daemon=True).start()

    # -- any thread

    def commit(self, claim: Claim, batch: Batch) -> asyncio.Future[Seq]:
        return self._admit(Work(claim=claim, batch=batch))

    def together(self, function: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Run in the next group's transaction. An exception undoes what it wrote."""
        return self._admit(Work(function=function))

    def alone(self, function: Callable[[apsw.Connection], T], *, counted: bool = True) -> asyncio.Future[T]:
        """Run between two groups, in transactions of its own."""
        return self._admit(Work(function=function, alone=True, counted=counted))

    def stop(self) -> asyncio.Future[None]:
        """Close the connection once all that was admitted is done. Nothing may be admitted after it."""
        work = Work(function=self._shut, alone=True, counted=False)
        self._queue.put(work)
        return work.done

    def _admit(self, work: Work) -> asyncio.Future[Any]:
        if self.failure is not None:
            work.done.set_exception(again(self.failure))
        else:
            self._queue.put(work)
        return work.done

    # -- the thread

    def _run(self) -> None:
        try:
            self._connection = self._connect()
            self._cursor = self._connection.cursor()
            self._connection.set_wal_hook(self._committed)
        except Exception as error:
            self.failure = opening_failed(error, self.path)
        while self._running:
            works = [self._queue.get()]
            works += [self._queue.get_nowait() for _ in range(min(self._queue.qsize(), GROUP - 1))]
            start = 0
            for position, work in enumerate(works):
                if work.alone:
                    self._carry_out(works[start:position])
                    self._carry_out([work])
                    start = position + 1
            self._carry_out(works[start:])

    def _carry_out(self, works: Sequence[Work]) -> None:
        if not works:
            return
        outcomes = [self._single(works[0])] if works[0].alone else self._group(works)
        self.finished += sum(work.counted for work in works)
        self._resolve(works, outcomes)
        if self._log_pages >= self._due and self.failure is None and self._running:
            self._checkpoint()

    def _resolve(self, works: Sequence[Work], outcomes: Sequence[Outcome]) -> None:
        """Tell each loop once."""
        settled: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = {}
        for work, outcome in zip(works, outcomes, strict=True):
            settled.setdefault(work.loop, []).append((work.done, outcome))
        for loop, mine in settled.items():
            try:
                loop.call_soon_threadsafe(settle, mine)
            except RuntimeError:
                pass  # that loop is closed: nobody is left to hear of it

    # -- groups

    def _group(self, works: Sequence[Work]) -> list[Outcome]:
        """Carry out works in one transaction, or in several where one of them breaks it."""
        if self.failure is not None:
            return [again(self.failure) for _ in works]
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
            rows: dict[str, list[Row]] = {}
            outcomes = [self._stage(work, rows) for work in works]
            self._put(rows)
            self._cursor.execute("COMMIT")
        except Exception as error:
            return self._broken(works, error)
        return outcomes

    def _broken(self, works: Sequence[Work], error: Exception) -> list[Outcome]:
        """The group's transaction is undone. If one work is to blame, find it: the others are done again without it."""
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
            self._put(rows)
            return work.function(self._connection)
        session = self._sessions.get(claim.session) or self._number_of(claim.session)
        self._cursor.execute(FENCE, (batch.seq, batch.next_id, session, claim.epoch, batch.seq - 1))
        if self._connection.changes() != 1:
            return self._refusal(claim, batch.seq, session)
        at, seq = place(session), batch.seq
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
            if not waiting:
                continue
            if len(waiting) == 1:
                self._cursor.execute(sql, waiting[0])
            else:
                self._cursor.executemany(sql, waiting)
        rows.clear()

    def _number_of(self, key: str) -> int:
        """The number of a session, 0 where there is none."""
        found = self._cursor.execute("SELECT id FROM session WHERE key = ?", (key,)).fetchone()
        if found is not None:
            self._sessions[key] = found[0]
        return found[0] if found else 0

    def _refusal(self, claim: Claim, seq: Seq, session: int) -> StorageError:
        """Why the fence let nothing pass."""
        sql = "SELECT epoch, head, open FROM session WHERE id = ?"
        epoch, head, is_open = self._cursor.execute(sql, (session,)).fetchone() or (0, 0, 0)
        if epoch != claim.epoch:
            return Fenced(
                f"session {claim.session!r} of {self.path} is at epoch {epoch}, this claim has {claim.epoch}: "
                "another owner took it; open the session again"
            )
        if not is_open:
            return Fenced(f"session {claim.session!r} of {self.path} was released by this claim: open it again")
        return StorageRejected(f"commit {seq} of session {claim.session!r} does not follow its head {head}")

    # -- functions and failures

    def _single(self, work: Work) -> Outcome:
        if self.failure is not None and work.function != self._shut:
            return again(self.failure)
        try:
            return work.function(self._connection)
        except Exception as error:
            return self._undo(error)

    def _undo(self, error: Exception) -> PerdureError:
        """Leave the transaction; what the error means. From an error that leaves the file in doubt on, nothing works."""
        code = self._connection.system_errno
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as worse:
            error = worse
        self._cursor = self._connection.cursor()  # the old one may be in the middle of its rows
        if isinstance(error, apsw.BusyError):
            return StorageRejected(f"{self.path} was locked for {BUSY_MS / 1000:.0f} s{self._blocked()}. Nothing was kept")
        verdict = translated(error, self.path, doing="while writing", errno_of=code)
        if is_final(verdict):
            self.failure = verdict
            self._on_failure()
        return verdict

    def _shut(self, connection: apsw.Connection | None) -> None:
        self._running = False
        if connection is not None:
            connection.close()

    # -- the log

    def _committed(self, connection: apsw.Connection, database: str, pages: int) -> int:
        if pages < self._log_pages:  # it began anew
            self._due = LOG_PAGES
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Copy the log into the database, after its commits were acknowledged. Readers that hold it are left alone at first (I51)."""
        crowded = self._log_pages >= LOG_PAGES_CROWDED
        try:
            if crowded:
                self._connection.set_busy_timeout(READERS_PATIENCE_MS)
            pages, copied = self._connection.wal_checkpoint(
                mode=apsw.SQLITE_CHECKPOINT_RESTART if crowded else apsw.SQLITE_CHECKPOINT_PASSIVE
            )
        except (apsw.BusyError, apsw.FullError):
            pages, copied = self._log_pages, 0
        except apsw.Error as error:
            self._undo(error)
            return
        finally:
            self._connection.set_busy_timeout(BUSY_MS)
        self._due = LOG_PAGES if copied >= pages else pages + LOG_PAGES
