"""What a store holds, as records: read from the raw database, or through the storage port."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

from perdure.records import (
    Conversation,
    Entry,
    Inbound,
    Submission,
    Task,
    decode_conversation,
    decode_entry,
    decode_inbound,
    decode_json,
    decode_submission,
    decode_task,
)
from perdure.storage import Storage

#: What a life changes even when it finds nothing to do: who owns the session, since when, under which epoch.
TABLES = ("conversation", "entry", "task", "submission", "document", "base", "delta", "inbound")
_TIMES = ("at", "ended")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one session by id. `bodies` are the entries as stored."""

    conversations: dict[int, Conversation]
    entries: dict[int, Entry]
    bodies: dict[int, bytes]
    tasks: dict[int, Task]
    submissions: dict[int, Submission]
    inbound: dict[str, Inbound]

    def visible(self, conversation: int) -> list[Entry]:
        """What a conversation sees, oldest first."""
        found: list[Entry] = []
        at: Conversation | None = self.conversations[conversation]
        bound: int | None = None
        while at is not None:
            found += [
                entry
                for entry in self.entries.values()
                if entry.conversation == at.id and (bound is None or entry.id <= bound)
            ]
            if at.parent is not None:
                bound = at.parent.entry if bound is None else min(bound, at.parent.entry)
            at = None if at.parent is None else self.conversations.get(at.parent.conversation)
        return sorted(found, key=lambda entry: entry.id)


NOTHING = Stored(conversations={}, entries={}, bodies={}, tasks={}, submissions={}, inbound={})


def copied(path: Path, aside: Path) -> Path:
    """A copy of a database that nobody has open, with its logs: looking at it changes nothing of the original."""
    aside.mkdir(exist_ok=True)
    for suffix in ("", "-wal", "-journal"):
        target = aside / f"{path.name}{suffix}"
        target.unlink(missing_ok=True)
        if Path(f"{path}{suffix}").exists():
            shutil.copyfile(f"{path}{suffix}", target)
    (aside / f"{path.name}-shm").unlink(missing_ok=True)
    return aside / path.name


class RawStore:
    """A database with one session, read with SQL alone. Raises AssertionError where SQLite finds it damaged."""

    def __init__(self, path: Path) -> None:
        self._rows: Callable[[str], list[Any]] = lambda sql: []
        self._connection: apsw.Connection | None = None
        if not path.exists():
            return
        self._connection = apsw.Connection(str(path))
        assert self._connection.pragma("integrity_check") == "ok", self._connection.pragma("integrity_check")
        if self._connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'session'").fetchall():
            self._rows = lambda sql: list(self._connection.execute(sql)) if self._connection else []

    def __enter__(self) -> RawStore:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def records(self) -> Stored:
        return stored_of(
            **{table: self._bodies(table) for table in TABLES if table not in ("document", "base", "delta")}
        )

    def digest(self) -> str:
        """Of everything that another opening must not change."""
        state = hashlib.blake2b(digest_size=16)
        for table in TABLES:
            rows = [repr(row) for row in self._rows(f"SELECT * FROM {table}")]
            state.update(f"{table} {sorted(rows)}\n".encode())
        state.update(repr(self._rows("SELECT key, head, next_id FROM session")).encode())
        return state.hexdigest()

    def without_times(self) -> dict[str, list[Any]]:
        """All rows, without the times in them: what two runs of the same commits have in common."""
        found: dict[str, list[Any]] = {
            table: sorted(map(timeless, self._rows(f"SELECT * FROM {table}")), key=repr) for table in TABLES
        }
        return {**found, "session": self._rows("SELECT key, head, next_id FROM session")}

    def _bodies(self, table: str) -> list[bytes]:
        return [body for (body,) in self._rows(f"SELECT body FROM {table}")]


def timeless(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row without the times in it."""
    return tuple(
        _dropped(decode_json(each)) if isinstance(each, bytes) else each for each in row if not isinstance(each, float)
    )


def _dropped(body: Any) -> Any:
    if isinstance(body, dict):
        return {name: value for name, value in cast("dict[str, Any]", body).items() if name not in _TIMES}
    return body


def stored_of(
    *,
    conversation: list[bytes],
    entry: list[bytes],
    task: list[bytes],
    submission: list[bytes],
    inbound: list[bytes],
) -> Stored:
    entries = {each.id: (each, body) for body in entry for each in [decode_entry(body)]}
    return Stored(
        conversations={each.id: each for each in map(decode_conversation, conversation)},
        entries={id: each for id, (each, _) in entries.items()},
        bodies={id: body for id, (_, body) in entries.items()},
        tasks={each.id: each for each in map(decode_task, task)},
        submissions={each.id: each for each in map(decode_submission, submission)},
        inbound={each.id: each for each in map(decode_inbound, inbound)},
    )


async def read_stored(storage: Storage, session: str) -> Stored:
    """Through the port: everything at once, so for small stores only."""
    conversations = await storage.scan_conversations(session, limit=10_000)
    entries: list[bytes] = []
    for body in conversations:
        entries += await storage.scan_entries(session, decode_conversation(body).id, limit=100_000)
    both = (True, False)
    return stored_of(
        conversation=conversations,
        entry=entries,
        task=[body for live in both for body in await storage.scan_tasks(session, live=live, limit=100_000)],
        submission=[
            body for live in both for body in await storage.scan_submissions(session, live=live, limit=100_000)
        ],
        inbound=[body for taken in both for body in await storage.scan_inbound(session, taken=taken, limit=10_000)],
    )
