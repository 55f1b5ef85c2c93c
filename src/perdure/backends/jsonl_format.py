"""Writes as lines of a JSONL store and back, bodies in lines, and drafts of batches to append."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from perdure.backends.jsonl_lines import (
    AnyLine,
    AnyMark,
    BaseLine,
    Body,
    ConversationLine,
    DeltaLine,
    DocumentLine,
    EntryLine,
    Mark,
    RemoveEntriesLine,
    RemoveLine,
    SubmissionLine,
    TakenLine,
    TaskLine,
)
from perdure.records import ConversationId, DocumentId, EntryId, SubmissionId, TaskId
from perdure.storage import (
    PutBase,
    PutConversation,
    PutDelta,
    PutDocument,
    PutEntry,
    PutSubmission,
    PutTask,
    Remove,
    RemoveEntries,
    TakeInbound,
    Write,
)

_encoder = msgspec.json.Encoder()
_json = msgspec.json.Decoder()

# -- bodies -------------------------------------------------------------------------------------

#: Where a body is: the file, the offset in it, the length, and whether it is in base64. It stands for the body in an
#: index, whose tables keep bytes and do not ask what they mean.
_REFERENCE = struct.Struct("<IQI?")
_BLANK = b" \t\r\n"
_GONE = Raw()


def reference_to(line: AnyLine, file: int, end: int) -> bytes:
    """The reference to the body of a line whose LF is at `end`, empty for one without a body.

    The line lets go of the body itself: an index of many lines must not hold them all.
    """
    if not isinstance(line, Body):
        return b""
    length = len(memoryview(line.body))
    msgspec.structs.force_setattr(line, "body", _GONE)
    return _REFERENCE.pack(file, end - 1 - length, length, line.b64)


def dereferenced(found: bytes) -> tuple[int, int, int, bool]:
    """(file, offset, length, in base64)."""
    return _REFERENCE.unpack(found)


def _plain(body: bytes) -> bool:
    """Whether a body is one JSON value that a line can hold as it is and give back byte by byte."""
    if not body or body[0] in _BLANK or body[-1] in _BLANK or b"\n" in body:
        return False
    try:
        _json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def raw(body: bytes) -> tuple[bool, Raw]:
    """Whether it had to be base64, and what to write."""
    if _plain(body):
        return False, Raw(body)
    return True, Raw(b'"' + base64.b64encode(body) + b'"')


def unraw(found: bytes, b64: bool) -> bytes:
    """The body that was written. Raises ValueError."""
    try:
        return base64.b64decode(found[1:-1], validate=True) if b64 else found
    except binascii.Error as error:
        raise ValueError(str(error)) from error


# -- lines of writes ----------------------------------------------------------------------------


def line_of(write: Write, through: Callable[[str], int], *, at: int | None = None) -> AnyLine:
    """The line of a write. `through` tells the `n` of an inbound item that is removed, `at` an older commit."""
    match write:
        case Remove(table, id):
            return RemoveLine(table=table, id=id, through=through(id) if isinstance(id, str) else 0)
        case RemoveEntries(conversation, after):
            return RemoveEntriesLine(conversation=conversation, after=after)
        case _:
            b64, body = raw(write.body)
    match write:
        case PutConversation(id, key, owner, parent, listed):
            return ConversationLine(id=id, key=key, owner=owner, parent=parent, listed=listed, b64=b64, body=body)
        case PutEntry(id, conversation, head):
            return EntryLine(id=id, conversation=conversation, head=head, b64=b64, body=body)
        case PutTask(id, live, ended):
            return TaskLine(id=id, live=live, ended=ended, b64=b64, body=body)
        case PutSubmission(id, of, request, live, ended):
            return SubmissionLine(
                id=id, conversation=of, request_id=request, live=live, ended=ended, b64=b64, body=body
            )
        case PutDocument(id, scope, owner, kind, key, retired):
            return DocumentLine(
                id=id, scope=scope, owner=owner, kind=kind, key=key, retired=retired, b64=b64, body=body
            )
        case PutBase(document, prune):
            return BaseLine(document=document, prune=prune, at=at, b64=b64, body=body)
        case PutDelta(document):
            return DeltaLine(document=document, at=at, b64=b64, body=body)
        case TakeInbound(id):
            return TakenLine(id=id, at=at, b64=b64, body=body)


def write_of(line: AnyLine, body: bytes) -> Write | None:
    """The write of a line, with `body` for its body; None for a line that is no write."""
    match line:
        case EntryLine():
            head = None if line.head is None else EntryId(line.head)
            return PutEntry(EntryId(line.id), ConversationId(line.conversation), head, body)
        case TaskLine():
            return PutTask(TaskId(line.id), line.live, line.ended, body)
        case DeltaLine():
            return PutDelta(DocumentId(line.document), body)
        case BaseLine():
            return PutBase(DocumentId(line.document), line.prune, body)
        case SubmissionLine():
            of = ConversationId(line.conversation)
            return PutSubmission(SubmissionId(line.id), of, line.request_id, line.live, line.ended, body)
        case DocumentLine():
            return PutDocument(DocumentId(line.id), line.scope, line.owner, line.kind, line.key, line.retired, body)
        case ConversationLine():
            owner = None if line.owner is None else TaskId(line.owner)
            parent = None if line.parent is None else ConversationId(line.parent)
            return PutConversation(ConversationId(line.id), line.key, owner, parent, line.listed, body)
        case TakenLine():
            return TakeInbound(line.id, body)
        case RemoveLine():
            return Remove(line.table, line.id)
        case RemoveEntriesLine():
            return RemoveEntries(ConversationId(line.conversation), EntryId(line.after))
        case _:
            return None


# -- batches ------------------------------------------------------------------------------------

_HEX = 8


class Batch(msgspec.Struct, frozen=True):
    """Records with the references to their bodies, and the mark by which they count."""

    lines: list[tuple[AnyLine, bytes]]
    mark: AnyMark


class Draft:
    """Bytes to append to a file from `start` on: batches, one after another."""

    def __init__(self, file: int, start: int) -> None:
        self.file = file
        self.start = start
        self.data = bytearray()
        #: Where the batch that is being written begins in `data`, and its records.
        self._begin = 0
        self._lines: list[tuple[AnyLine, bytes]] = []
        #: Of what was drained: its length, and that and the checksum of its part of the batch.
        self._drained = self._drained_of_batch = self._crc = 0

    @property
    def end(self) -> int:
        return self.start + self._drained + len(self.data)

    def drain(self) -> bytes:
        """What can be written already."""
        given = bytes(self.data)
        self._crc = zlib.crc32(memoryview(given)[self._begin :], self._crc)
        self._drained_of_batch += len(given) - self._begin
        self._drained += len(given)
        self._begin = 0
        self.data.clear()
        return given

    def add(self, line: AnyLine, text: bytes | None = None) -> bytes:
        """Add a record, encoded before or here. The reference to its body, empty where it has none."""
        self.data += text or encode_line(line)
        end = self.end
        self.data += b"\n"
        found = reference_to(line, self.file, end)
        self._lines.append((line, found))
        return found

    def seal(self, kind: type[Mark], *, synced: int, **fields: Any) -> Batch:
        """End the batch with its mark."""
        size = self._drained_of_batch + len(self.data) - self._begin
        made: Any = kind
        mark = made(**fields, bytes=size, synced=synced, crc="")
        self.data += encode_line(mark)[:-2]
        with memoryview(self.data) as data:
            crc = zlib.crc32(data[self._begin :], self._crc)
        self.data += b'%08x"}\n' % crc
        self._begin = len(self.data)
        self._drained_of_batch = self._crc = 0
        batch, self._lines = Batch(self._lines, mark), []
        return batch


def encode_line(line: AnyLine) -> bytes:
    """Without its LF. Raises UnicodeEncodeError for a name that is no text, or what else the encoder raises."""
    return _encoder.encode(line)


def checks(mark: AnyMark, line: bytes, crc_of_lines: int, size: int) -> bool:
    """Whether a mark, a line with its LF, fits the lines before it."""
    crc = zlib.crc32(memoryview(line)[: -_HEX - 3], crc_of_lines)
    return mark.bytes == size and mark.crc == f"{crc:08x}"
