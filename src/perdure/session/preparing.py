"""From a transaction to a batch: deltas are taken, and every record is encoded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from perdure.errors import InvalidValue
from perdure.records import Document, Record, Seq, encode
from perdure.session.documents import DocumentChange, Loaded, Name, Owner, write_of
from perdure.session.drafts import Drafts
from perdure.storage import (
    PutBase,
    PutConversation,
    PutDelta,
    PutDocument,
    PutEntry,
    PutSubmission,
    PutTask,
    Remove,
    TakeInbound,
    Write,
)

if TYPE_CHECKING:
    from perdure.session.transaction import Transaction

#: A record larger than this is refused before it is admitted, in bytes.
MAX_BODY = 64 * 1024 * 1024


class Prepared:
    """A transaction as storage takes it, and what memory and observers need of it."""

    __slots__ = ("documents", "shelved", "writes")

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.documents: list[DocumentChange] = []
        self.shelved: list[tuple[Owner, Name, Loaded | None]] = []


def prepare(tx: Transaction) -> Prepared | None:
    """The batch of a settled transaction; None when nothing was staged. Raises InvalidValue for what does not fit."""
    out = Prepared()
    writes, candidate = out.writes, tx.candidate
    for conversation in candidate.conversations.values():
        parent = conversation.parent.conversation if conversation.parent else None
        body = _body(conversation, conversation.id)
        writes.append(
            PutConversation(
                conversation.id, conversation.key, conversation.owner, parent, not conversation.deleted, body
            )
        )
    for entry in tx.entries:
        writes.append(PutEntry(entry.id, entry.conversation, entry.head, _body(entry, entry.id)))
    for task in candidate.tasks.values():
        writes.append(PutTask(task.id, task.live, task.ended, _body(task, task.id)))
    for item in candidate.submissions.values():
        ended = None if item.live else tx.now
        body = _body(item, item.id)
        writes.append(PutSubmission(item.id, item.conversation, item.request_id, item.live, ended, body))
    _documents(tx.drafts, out, tx.seq)
    for taken in tx.inbound:
        writes.append(TakeInbound(taken.id, _body(taken, taken.id)))
    writes.extend(tx.removes)
    return out if writes or tx.forced else None


def _documents(drafts: Drafts, out: Prepared, seq: Seq) -> None:
    for loaded in drafts.copies.values():
        out.writes.append(_put(loaded.record))
    for (owner, name), slot in drafts.slots.items():
        ops = slot.draft.ops
        if not ops and slot.loaded is not None:
            continue
        if owner in drafts.ending:
            continue
        if slot.loaded is not None:
            record = slot.loaded.record
        else:
            record = drafts.declare(slot, name)
            out.writes.append(_put(record))
        written = write_of(slot, record, ops)
        if written.base is not None:
            out.writes.append(PutBase(record.id, record.history == "latest", _fitting(written.base, record)))
        elif written.delta is not None:
            out.writes.append(PutDelta(record.id, _fitting(written.delta, record)))
        whole = slot.loaded is None or slot.rebase
        change = DocumentChange(record=record, value=written.loaded.value, ops=tuple(ops), whole=whole)
        out.documents.append(change)
        out.shelved.append((owner, name, written.loaded))
    for place, loaded in drafts.copies.items():
        slot = drafts.slots.get(place)
        if slot is None or not slot.changed:
            base = encode({"version": loaded.version, "value": loaded.value})
            out.writes.append(PutBase(loaded.record.id, loaded.record.history == "latest", base))
            out.documents.append(DocumentChange(record=loaded.record, value=loaded.value, whole=True))
            out.shelved.append((*place, loaded))
    for owner, name, loaded in drafts.ended:
        record = msgspec.structs.replace(loaded.record, retired=seq)
        out.writes.append(_put(record) if record.history == "rewindable" else Remove("document", record.id))
        out.documents.append(DocumentChange(record=record, value=None, retired=True))
        out.shelved.append((owner, name, None))


def _put(record: Document) -> PutDocument:
    retired = record.retired is not None
    return PutDocument(record.id, record.scope, record.owner, record.kind, record.key, retired, encode(record))


def _body(record: Record, id: int | str) -> bytes:
    try:
        body = encode(record)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        what = f"{type(record).__name__.lower()} {id}"
        raise InvalidValue(f"{what} cannot be written as JSON ({error}): nothing was written") from error
    if len(body) > MAX_BODY:
        raise _too_big(f"{type(record).__name__.lower()} {id}", body)
    return body


def _fitting(body: bytes, record: Document) -> bytes:
    if len(body) > MAX_BODY:
        raise _too_big(f"document {record.kind!r} ({record.id})", body)
    return body


def _too_big(what: str, body: bytes) -> InvalidValue:
    return InvalidValue(f"{what} has {len(body):,} bytes; at most {MAX_BODY:,} are stored: keep big content in a file")


__all__ = ["Prepared", "prepare"]
