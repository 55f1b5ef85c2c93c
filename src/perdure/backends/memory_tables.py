"""The tables of one session in the memory storage. Rows are the writes that put them: frozen, so nothing is copied."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Generic, Literal, TypeVar

from perdure.records import Seq
from perdure.storage import DocumentValue, PutConversation, PutDocument, PutEntry, PutSubmission, PutTask

R = TypeVar("R", PutConversation, PutDocument)
W = TypeVar("W", PutTask, PutSubmission)


class Rows(Generic[R]):
    """Rows by id."""

    def __init__(self) -> None:
        self.rows: dict[int, R] = {}

    def body(self, id: int | None) -> bytes | None:
        row = None if id is None else self.rows.get(id)
        return None if row is None else row.body

    def by_id(self) -> list[R]:
        return [self.rows[id] for id in sorted(self.rows)]


class Work(Generic[W]):
    """Tasks or submissions: few of them live, and those are what is asked for."""

    def __init__(self) -> None:
        self.rows: dict[int, W] = {}
        #: Ids of the live rows.
        self._live: dict[int, None] = {}

    def put(self, row: W) -> None:
        self.rows[row.id] = row
        if row.live:
            self._live[row.id] = None
        else:
            self._live.pop(row.id, None)

    def remove(self, id: int) -> None:
        self.rows.pop(id, None)
        self._live.pop(id, None)

    def body(self, id: int | None) -> bytes | None:
        row = None if id is None else self.rows.get(id)
        return None if row is None else row.body

    def bodies(self, ids: Iterable[int]) -> list[bytes]:
        return [self.rows[id].body for id in sorted(dict.fromkeys(ids)) if id in self.rows]

    def scan(self, live: bool, after: int, ended_before: float | None) -> list[W]:
        """By id, without a limit."""
        rows = [self.rows[id] for id in sorted(self._live if live else self.rows) if id > after]
        if live:
            return rows if ended_before is None else []
        return [
            row
            for row in rows
            if not row.live and (ended_before is None or (row.ended is not None and row.ended < ended_before))
        ]


class Entries:
    """Entries by id, and by conversation in order of their ids."""

    def __init__(self) -> None:
        self.rows: dict[int, PutEntry] = {}
        self._of: dict[int, list[int]] = {}
        #: Those of `_of` that have a head.
        self._heads_of: dict[int, list[int]] = {}

    def put(self, row: PutEntry) -> None:
        self.rows[row.id] = row
        insort(self._of.setdefault(row.conversation, []), row.id)
        if row.head is not None:
            insort(self._heads_of.setdefault(row.conversation, []), row.id)

    def remove_after(self, conversation: int, after: int) -> None:
        ids = self._of.get(conversation, [])
        for id in ids[bisect_right(ids, after) :]:
            del self.rows[id]
        for kept in (ids, self._heads_of.get(conversation, [])):
            del kept[bisect_right(kept, after) :]

    def body(self, id: int) -> bytes | None:
        row = self.rows.get(id)
        return None if row is None else row.body

    def count(self, conversation: int) -> int:
        return len(self._of.get(conversation, ()))

    def newest(self, conversation: int, before: int | None, limit: int, *, heads: bool = False) -> list[bytes]:
        ids = (self._heads_of if heads else self._of).get(conversation, [])
        end = len(ids) if before is None else bisect_left(ids, before)
        return [self.rows[id].body for id in reversed(ids[max(end - limit, 0) : end])]


class Versions:
    """The bases and deltas of documents, each in order of their commits."""

    def __init__(self) -> None:
        self._bases: dict[int, list[tuple[Seq, bytes]]] = {}
        self._deltas: dict[int, list[tuple[Seq, bytes]]] = {}

    def put_base(self, document: int, seq: Seq, body: bytes, *, prune: bool) -> None:
        if prune:
            self.remove(document)
        self._bases.setdefault(document, []).append((seq, body))

    def put_delta(self, document: int, seq: Seq, body: bytes) -> None:
        self._deltas.setdefault(document, []).append((seq, body))

    def remove(self, document: int) -> None:
        self._bases.pop(document, None)
        self._deltas.pop(document, None)

    def all(self) -> Iterator[tuple[Literal["base", "delta"], int, Seq, bytes]]:
        """(what, document, commit, body), in order within each document."""
        for document, bases in self._bases.items():
            for seq, body in bases:
                yield "base", document, seq, body
        for document, deltas in self._deltas.items():
            for seq, body in deltas:
                yield "delta", document, seq, body

    def value(self, document: int, at: Seq | None) -> DocumentValue | None:
        bases = [base for base in self._bases.get(document, []) if at is None or base[0] <= at]
        if not bases:
            return None
        since, base = bases[-1]
        deltas = [body for seq, body in self._deltas.get(document, []) if seq > since and (at is None or seq <= at)]
        return DocumentValue(seq=since, base=base, deltas=deltas)


class Items:
    """Inbound items by id: the body, and the commit that took it."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[bytes, Seq | None]] = {}

    def hand_in(self, id: str, body: bytes) -> bytes:
        """Keep the item unless its id is known. The first one's body."""
        return self._rows.setdefault(id, (body, None))[0]

    def take(self, id: str, body: bytes, seq: Seq) -> None:
        self._rows[id] = body, seq

    def remove(self, id: str) -> None:
        self._rows.pop(id, None)

    def all(self) -> Iterator[tuple[str, bytes, Seq | None]]:
        """(id, body, the commit that took it)."""
        for id, (body, seq) in self._rows.items():
            yield id, body, seq

    def body(self, id: str) -> bytes | None:
        return self._rows[id][0] if id in self._rows else None

    def scan(self, taken: bool, after: str, limit: int) -> list[bytes]:
        found = [id for id in sorted(self._rows) if id > after and (self._rows[id][1] is not None) == taken]
        return [self._rows[id][0] for id in found[:limit]]
