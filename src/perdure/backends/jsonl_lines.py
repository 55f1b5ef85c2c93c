"""Lines of a JSONL store: records, and the marks that make the records before them count.

A file is a sequence of batches; a batch is lines of records, then the line of a mark. Lines end with LF alone.
The mark carries the length of its lines and a checksum over them and itself: without it nothing of the batch counts.
A mark with `more` counts only together with the batch after it, so that commits flushed together are there together.
A body is kept as the JSON that it is, or in base64 where it is none (`b64`). It is always the last field of its line.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec
from msgspec import Raw

from perdure.storage import Worker

#: Of the lines. A file that says another one was written by a newer perdure.
FORMAT = 1


class Line(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="is", tag=lambda name: name
):
    """Any line; `is` says which."""


class Place(msgspec.Struct, frozen=True):
    """Where a file takes over from the one before it: what stands behind `bytes` there does not count."""

    file: int
    bytes: int


class File(Line, frozen=True, kw_only=True, tag="file"):
    """The first line of every file. `after` is None where the file needs none before it."""

    format: int
    session: str
    number: int
    after: Place | None = None


class Body(Line, frozen=True, kw_only=True):
    """A line with a body, which stands last."""


class ConversationLine(Body, frozen=True, kw_only=True, tag="conversation"):
    id: int
    key: str | None = None
    owner: int | None = None
    parent: int | None = None
    listed: bool = True
    b64: bool = False
    body: Raw


class EntryLine(Body, frozen=True, kw_only=True, tag="entry"):
    id: int
    conversation: int
    head: int | None = None
    b64: bool = False
    body: Raw


class TaskLine(Body, frozen=True, kw_only=True, tag="task"):
    id: int
    live: bool
    ended: float | None = None
    b64: bool = False
    body: Raw


class SubmissionLine(Body, frozen=True, kw_only=True, tag="submission"):
    id: int
    conversation: int
    request_id: str | None = None
    live: bool
    ended: float | None = None
    b64: bool = False
    body: Raw


class DocumentLine(Body, frozen=True, kw_only=True, tag="document"):
    id: int
    scope: str
    owner: int
    kind: str
    key: str = ""
    retired: bool = False
    b64: bool = False
    body: Raw


class BaseLine(Body, frozen=True, kw_only=True, tag="base"):
    """`at` is the commit; None: the one that the mark tells."""

    document: int
    prune: bool = False
    at: int | None = None
    b64: bool = False
    body: Raw


class DeltaLine(Body, frozen=True, kw_only=True, tag="delta"):
    document: int
    at: int | None = None
    b64: bool = False
    body: Raw


class TakenLine(Body, frozen=True, kw_only=True, tag="taken"):
    id: str
    at: int | None = None
    b64: bool = False
    body: Raw


class ItemLine(Body, frozen=True, kw_only=True, tag="item"):
    """An inbound item as handed in. `n` counts those of the session."""

    n: int
    id: str
    b64: bool = False
    body: Raw


class RemoveLine(Line, frozen=True, kw_only=True, tag="remove"):
    """`through`: an inbound item that was handed in up to this `n` is gone; a later one of that id is another."""

    table: Literal["task", "submission", "document", "conversation", "inbound"]
    id: int | str
    through: int = 0


class RemoveEntriesLine(Line, frozen=True, kw_only=True, tag="remove_entries"):
    conversation: int
    after: int


class KnownLine(Line, frozen=True, kw_only=True, tag="known"):
    """A commit id of so many epochs ago, in a file that begins with everything."""

    commit: str
    seq: int
    ago: int


class Mark(Line, frozen=True, kw_only=True):
    """The end of a batch. `synced`: how much of the file was on the disk when this was written."""


class ClaimMark(Mark, frozen=True, kw_only=True, tag="claim"):
    epoch: int
    worker: Worker
    bytes: int
    synced: int
    more: bool = False
    crc: str


class CommitMark(Mark, frozen=True, kw_only=True, tag="commit"):
    seq: int
    id: str
    next_id: int
    bytes: int
    synced: int
    more: bool = False
    crc: str


class ReleaseMark(Mark, frozen=True, kw_only=True, tag="release"):
    epoch: int
    bytes: int
    synced: int
    more: bool = False
    crc: str


class EverythingMark(Mark, frozen=True, kw_only=True, tag="everything"):
    """The lines before it are all that there was."""

    epoch: int
    head: int
    next_id: int
    clean: bool
    worker: Worker | None
    bytes: int
    synced: int
    more: bool = False
    crc: str


class HandedInMark(Mark, frozen=True, kw_only=True, tag="handed_in"):
    """`next` is the `n` of the item that comes next."""

    next: int
    bytes: int
    synced: int
    more: bool = False
    crc: str


AnyMark = ClaimMark | CommitMark | ReleaseMark | EverythingMark | HandedInMark
WithBody = (
    ConversationLine
    | EntryLine
    | TaskLine
    | SubmissionLine
    | DocumentLine
    | BaseLine
    | DeltaLine
    | TakenLine
    | ItemLine
)
AnyLine = File | WithBody | RemoveLine | RemoveEntriesLine | KnownLine | AnyMark

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyLine)


def decode_line(line: bytes) -> AnyLine | None:
    """A line, with or without its LF; None where it is none of ours."""
    try:
        return cast(AnyLine, _decoder.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
