"""The files of a demo."""

from __future__ import annotations

import os

import msgspec


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where a demo keeps things: all in one directory, but for the store, which may be elsewhere."""

    directory: str
    store: str

    @property
    def work(self) -> str:
        """Where the agent writes files and runs commands."""
        return os.path.join(self.directory, "work")

    @property
    def ledger(self) -> str:
        """The payments: a line each. What is written there cannot be taken back."""
        return os.path.join(self.directory, "payments.jsonl")

    @property
    def promises(self) -> str:
        """What the agent accepted, as its client saw it: a line each."""
        return os.path.join(self.directory, "accepted.jsonl")


def places(directory: str, store: str | None = None) -> Places:
    """The files of the demo in `directory`."""
    directory = os.path.realpath(directory)
    return Places(directory=directory, store=store or os.path.join(directory, "store.db"))


def append_line(path: str, line: bytes) -> None:
    """Append a line, durable on return: in one write, so that a kill leaves all of it or nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
