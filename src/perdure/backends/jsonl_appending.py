"""What the owner of a session appends: commits and the release, as many as wait with one write and one flush (K8).

Nothing is acknowledged before it is on the disk and it is certain that nobody had taken over by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.backends.jsonl_disk import Disk, append_all, failed, full, is_full
from perdure.backends.jsonl_format import Batch, Draft, encode_line, line_of
from perdure.backends.jsonl_lines import AnyLine, CommitMark, ReleaseMark
from perdure.backends.jsonl_session import JsonlSession
from perdure.backends.memory_session import Tip
from perdure.backends.outcomes import Outcome, again
from perdure.errors import Fenced, PerdureError, StorageError, StorageRejected, StorageUncertain
from perdure.records import Seq
from perdure.storage import Batch as Commit
from perdure.storage import Claim, RemoveEntries

Done = asyncio.Future[Any]


class _Staged(msgspec.Struct):
    """A commit, or a release (None), that is part of the draft."""

    done: Done
    commit: Commit | None
    batch: Batch


class Appending:
    """What waits to be appended to one session. `ends`: it has to be flushed before more is staged."""

    def __init__(self, session: JsonlSession, path: str, disk: Disk, *, power: bool) -> None:
        self.session = session
        self.ends = False
        self._path = path
        self._disk = disk
        self._power = power
        with session.lock:
            self._mine = session.mine
            index = session.index.session
            self._head = index.head
            self._tip = Tip(index)
            self._draft = Draft(session.number, session.end)
        self._staged: list[_Staged] = []
        #: The mark of the batch whose lines were added last, which is written once it is known whether more follows.
        self._unsealed: tuple[Done, Commit | None] | None = None
        self._released = False

    # -- staging

    def commit(self, done: Done, claim: Claim, commit: Commit) -> StorageError | None:
        """Stage a commit, or say why not."""
        refusal = self._fenced(claim)
        if refusal is not None:
            return refusal
        what = f"commit {commit.seq} of session {claim.session!r}"
        if commit.seq != self._head + 1:
            return StorageRejected(f"{what} does not follow its head {self._head}")
        try:
            lines = [line_of(write, self.session.index.through) for write in commit.writes]
            texts = [encode_line(line) for line in lines]
        except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, ValueError) as error:
            return StorageRejected(f"{what} was refused: {type(error).__name__}: {error}")
        conflict = self._tip.admit(commit.writes)
        if conflict is not None:
            return StorageRejected(f"{what} was refused: {conflict}")
        self._stage(done, commit, lines, texts)
        self._head = commit.seq
        self.ends = any(isinstance(write, RemoveEntries) for write in commit.writes)
        return None

    def release(self, done: Done, claim: Claim) -> bool:
        """Stage the release, unless the claim is stale."""
        if self._fenced(claim) is not None:
            return False
        self._stage(done, None, [], [])
        self._released = True
        return True

    def _stage(self, done: Done, commit: Commit | None, lines: list[AnyLine], texts: list[bytes]) -> None:
        self._seal(more=True)
        for line, text in zip(lines, texts, strict=True):
            self._draft.add(line, text)
        self._unsealed = done, commit

    def _seal(self, *, more: bool) -> None:
        if self._unsealed is None:
            return
        (done, commit), synced = self._unsealed, self.session.synced
        if commit is None:
            assert self._mine is not None
            batch = self._draft.seal(ReleaseMark, epoch=self._mine.epoch, synced=synced, more=more)
        else:
            batch = self._draft.seal(
                CommitMark,
                seq=commit.seq,
                id=commit.commit_id.hex(),
                next_id=commit.next_id,
                synced=synced,
                more=more,
            )
        self._staged.append(_Staged(done, commit, batch))
        self._unsealed = None

    def _fenced(self, claim: Claim) -> Fenced | None:
        """Why this claim may not write; None where it may."""
        if claim == self._mine:
            if not self._released:
                return None
            return self._refusal(claim, released=True)
        with self.session.lock:
            self.session.refresh()
            epoch, worker = self.session.index.session.epoch, self.session.index.worker
        if epoch == claim.epoch:
            return self._refusal(claim, released=worker is None)
        return Fenced(
            f"session {claim.session!r} of {self._path} is at epoch {epoch}, this claim has {claim.epoch}: "
            "somebody else took it; open the session again"
        )

    def _refusal(self, claim: Claim, *, released: bool) -> Fenced:
        how = "was released by this claim" if released else "is held through another storage"
        return Fenced(f"session {claim.session!r} of {self._path} {how} (epoch {claim.epoch}): open it again")

    # -- flushing

    def refuse(self, failure: PerdureError) -> tuple[list[Done], list[Outcome]]:
        """Append nothing: what to tell whom."""
        self._seal(more=False)
        return [each.done for each in self._staged], self._all(failure)

    def flush(self, tell: Callable[[list[Done], list[Outcome]], None]) -> PerdureError | None:
        """Make what is staged durable and tell whoever waits. What failed, where the file is in doubt."""
        self._seal(more=False)
        if not self._staged:
            return None
        outcomes, failure = self._append()
        tell([each.done for each in self._staged], outcomes)
        return failure

    def _append(self) -> tuple[list[Outcome], PerdureError | None]:
        session, draft = self.session, self._draft
        with session.lock:
            try:
                lost = session.is_lost() or session.mine != self._mine
            except PerdureError as error:
                return self._all(error), None  # nothing was written
            if lost:
                return self._taken_over(), None
            descriptor, path = session.descriptor, session.path(session.number)
        try:
            append_all(self._disk, descriptor, bytes(draft.data))
        except OSError as error:
            return self._undo(descriptor, error)
        try:
            if self._power:
                self._disk.sync(descriptor)
        except OSError as error:
            return self._all(failed(path, error)), failed(path, error)
        with session.lock:
            try:
                lost = session.is_lost() or session.mine != self._mine
            except PerdureError as error:
                return self._all(self._unknown(error)), None
            if lost:
                return self._taken_over(), None
            for each in self._staged:
                session.index.apply(each.batch)
            session.end = draft.end
            if self._power:
                session.synced = draft.end
            if self._released:
                session.mine = None
        return [None if each.commit is None else each.commit.seq for each in self._staged], None

    def _undo(self, descriptor: int, error: OSError) -> tuple[list[Outcome], PerdureError | None]:
        """Take back what was written of the draft: its last mark is missing, so nothing of it was there for anyone."""
        path = self.session.path(self._draft.file)
        if not is_full(error):
            return self._all(failed(path, error)), failed(path, error)
        try:
            self._disk.truncate(descriptor, self._draft.start)
            if self._power:
                self._disk.sync(descriptor)
        except OSError as worse:
            return self._all(failed(path, worse)), failed(path, worse)
        return self._all(full(path, error)), None

    def _taken_over(self) -> list[Outcome]:
        """What became of the draft: whoever took over has read all of it, or nothing of it counts."""
        session, claim = self.session, self._mine
        assert claim is not None
        try:
            with session.lock:
                session.refresh()
                index = session.index.session
                kept = [each.commit is None or index.find_commit(each.commit.commit_id) for each in self._staged]
        except PerdureError as error:
            return self._all(self._unknown(error))
        outcomes: list[Outcome] = []
        for each, seq in zip(self._staged, kept, strict=True):
            if each.commit is None:
                outcomes.append(None)
            elif seq is None:
                outcomes.append(self._fenced(claim) or self._refusal(claim, released=False))
            else:
                outcomes.append(Seq(seq))
        return outcomes

    def _unknown(self, error: PerdureError) -> StorageUncertain:
        """The bytes are there, and whether they count is up to a claim that does not get on."""
        self.session.mine = None
        return StorageUncertain(f"session {self.session.key!r} is being taken over, and how far is not known: {error}")

    def _all(self, error: PerdureError) -> list[Outcome]:
        return [again(error) for _ in self._staged]
