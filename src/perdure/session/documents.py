"""Documents (K17 to K23): typed JSON beside the transcript, kept as bases and deltas."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from perdure.deltas import Draft
from perdure.errors import DocumentVersionError, UsageError
from perdure.records import RESERVED_PREFIX, Base, Document, Scope, encode
from perdure.values import clean

#: (scope, owning conversation or task id, 0 for the session)
Owner = tuple[str, int]
#: (kind, key)
Name = tuple[str, str]

#: A value that is in storage and not in memory.
UNREAD: Any = object()


class DocumentToken(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The declaration of a document, or of a family of them told apart by a key.

    `initial` makes the first value. `migrate(value, version)` takes an older stored value to the present version.
    `history="rewindable"` keeps what it was at every commit; `latest` keeps what the present value needs.
    `fork` says what a forked conversation starts with: `initial`, the parent's `current` value,
    or the value that the parent had `as_of` the fork's entry.
    """

    kind: str
    version: int = 1
    scope: Scope = "conversation"
    initial: Callable[[], Any] = dict
    migrate: Callable[[Any, int], Any] | None = None
    history: Literal["latest", "rewindable"] = "latest"
    fork: Literal["initial", "current", "as_of"] = "initial"

    def current(self, value: Any, version: int) -> Any:
        """The stored value in the present version (K21). Raises DocumentVersionError where no code takes it there."""
        if version == self.version:
            return value
        stored = f"document {self.kind!r} is stored in version {version}, this code"
        if version > self.version:
            raise DocumentVersionError(f"{stored} knows {self.version}: install the newer code")
        if self.migrate is None:
            raise DocumentVersionError(f"{stored} is {self.version}: give its token a `migrate`")
        try:
            return clean(self.migrate(copy.deepcopy(value), version))  # the stored value is shared, and may not change
        except Exception as error:
            raise DocumentVersionError(f"{stored} is {self.version}, and its `migrate` failed: {error!r}") from error


def document(
    kind: str,
    *,
    version: int = 1,
    scope: Scope = "conversation",
    initial: Callable[[], Any] = dict,
    migrate: Callable[[Any, int], Any] | None = None,
    history: Literal["latest", "rewindable"] = "latest",
    fork: Literal["initial", "current", "as_of"] = "initial",
) -> DocumentToken:
    """Declare a document of your own. Raises UsageError for a reserved kind or rules that exclude one another."""
    if kind.startswith(RESERVED_PREFIX):
        raise UsageError(
            f"document kind {kind!r} starts with {RESERVED_PREFIX!r}, which is perdure's: take another one"
        )
    return declare(kind, version=version, scope=scope, initial=initial, migrate=migrate, history=history, fork=fork)


def declare(
    kind: str,
    *,
    version: int = 1,
    scope: Scope = "conversation",
    initial: Callable[[], Any] = dict,
    migrate: Callable[[Any, int], Any] | None = None,
    history: Literal["latest", "rewindable"] = "latest",
    fork: Literal["initial", "current", "as_of"] = "initial",
) -> DocumentToken:
    """As `document`, also for perdure's own kinds."""
    if fork == "as_of" and history != "rewindable":
        raise UsageError(f"document {kind!r}: fork='as_of' needs history='rewindable'")
    if scope != "conversation" and fork != "initial":
        raise UsageError(f"document {kind!r}: only conversation documents declare how they fork")
    return DocumentToken(
        kind=kind, version=version, scope=scope, initial=initial, migrate=migrate, history=history, fork=fork
    )


class Loaded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A document in memory. The value is never changed in place.

    `base_bytes`, `tail_bytes` and `tail_count` measure what storage has to read for the value.
    """

    record: Document
    value: Any
    version: int = 0
    base_bytes: int = 0
    tail_bytes: int = 0
    tail_count: int = 0


class DocumentChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a commit did to a document: `ops` lead from the value before to `value`. `retired`: it ended.

    `whole`: it is new, or was migrated by this commit, so that `value` is all there is to know.
    """

    record: Document
    value: Any
    ops: tuple[dict[str, Any], ...] = ()
    whole: bool = False
    retired: bool = False


class Slot:
    """A document as one transaction uses it."""

    __slots__ = ("draft", "loaded", "owner", "rebase", "token")

    def __init__(self, token: DocumentToken, owner: Owner, loaded: Loaded | None, value: Any, *, rebase: bool) -> None:
        self.token = token
        self.owner = owner
        #: What the session holds of it; None where this commit creates it.
        self.loaded = loaded
        #: The next write stores a whole value: it is new, migrated, or read through ancestry until now.
        self.rebase = rebase
        self.draft = Draft(value)

    @property
    def changed(self) -> bool:
        """Whether this commit has something to store for it."""
        return bool(self.draft.ops) or self.loaded is None


#: After so many deltas, or when they outweigh the base, the next write is a base (K19: replay tails are bounded).
TAIL_COUNT = 64
TAIL_BYTES = 2048


class Written(msgspec.Struct, frozen=True, gc=False):
    """What a changed document stores: a base, or a delta."""

    loaded: Loaded
    base: bytes | None
    delta: bytes | None


def write_of(slot: Slot, record: Document, ops: list[Any]) -> Written:
    """What to store for a changed slot: a pure decision by the base rule."""
    draft, loaded = slot.draft, slot.loaded
    value = draft.value
    if loaded is not None and not slot.rebase:
        delta = encode(ops)
        tail = loaded.tail_bytes + len(delta)
        if loaded.tail_count < TAIL_COUNT and tail <= max(TAIL_BYTES, loaded.base_bytes):
            kept = Loaded(
                record=record,
                value=value,
                version=loaded.version,
                base_bytes=loaded.base_bytes,
                tail_bytes=tail,
                tail_count=loaded.tail_count + 1,
            )
            return Written(kept, None, delta)
    base = encode(Base(version=slot.token.version, value=value))
    return Written(Loaded(record=record, value=value, version=slot.token.version, base_bytes=len(base)), base, None)
