"""What the outside world saw of a run: effects, acknowledgements, what was shown. No crash of the run takes it back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec


class Effect(msgspec.Struct, frozen=True, kw_only=True, tag="effect", tag_field="note"):
    """An effect happened: of the task that the key names, by this tool."""

    key: str
    tool: str
    safe: bool
    life: int

    @property
    def task(self) -> int:
        return int(self.key.rpartition("/")[2])


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag="shown", tag_field="note"):
    """A commit was published: its entries and submissions as they were shown, encoded, by id."""

    seq: int
    entries: dict[int, str]
    submissions: dict[int, str]
    life: int


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted", tag_field="note"):
    """A caller was told that what it handed in under this name is durable, under this id."""

    name: str
    id: int
    what: Literal["submission", "task", "step", "item"] = "submission"
    life: int


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="settled", tag_field="note"):
    """A caller was told how its submission was settled: `done`, or the reason why it was not answered."""

    id: int
    how: str
    answer: int | None
    life: int


class Said(msgspec.Struct, frozen=True, kw_only=True, tag="said", tag_field="note"):
    """Anything else worth remembering, such as that an abort was asked for, or was acknowledged."""

    what: str
    life: int


Note = Effect | Shown | Accepted | Settled | Said
_decoder = msgspec.json.Decoder(Note)


class Notes:
    """Notes of all lives of one run, oldest first; in memory, or in a file that is synced at each note."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._kept: list[Note] = []
        self.path = None if path is None else Path(path)
        self._file: int | None = None

    def add(self, note: Note) -> None:
        """Durable on return."""
        if self.path is None:
            self._kept.append(note)
            return
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(self._file, msgspec.json.encode(note) + b"\n")
        os.fsync(self._file)

    def __iter__(self) -> Iterator[Note]:
        if self.path is None:
            yield from list(self._kept)
        elif self.path.exists():
            for line in self.path.read_bytes().splitlines():
                yield _decoder.decode(line)

    def said(self, what: str) -> bool:
        return any(isinstance(note, Said) and note.what == what for note in self)

    def lives(self) -> int:
        """How many lives have noted something."""
        return max((note.life for note in self), default=0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def of(notes: Iterable[Note], kind: type[Any]) -> list[Any]:
    """The notes of one kind."""
    return [note for note in notes if isinstance(note, kind)]
