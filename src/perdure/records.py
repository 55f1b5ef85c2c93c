"""The immutable records of a session, their ids and their one encoding.

Every id of a session comes from one counter (K4): ids order records, clocks never do.
States are tagged unions, so that a queued submission cannot have an answer and a waiting task cannot be running.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NewType, Protocol, TypeVar

import msgspec

from perdure.errors import InvalidValue, StorageCorrupt, UsageError
from perdure.messages import Message

ConversationId = NewType("ConversationId", int)
EntryId = NewType("EntryId", int)
TaskId = NewType("TaskId", int)
SubmissionId = NewType("SubmissionId", int)
DocumentId = NewType("DocumentId", int)
Seq = NewType("Seq", int)
T = TypeVar("T")

#: The conversation that `session.root()` names (K11).
ROOT = ConversationId(1)
#: Kinds that start so are perdure's own (K12).
RESERVED_PREFIX = "perdure."


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all records: frozen, keyword-only, defaults left out of the encoding, unknown fields ignored.

    What a record holds is plain JSON or older than itself, so no circle goes through it: the collector need not look.
    """


# -- conversations and entries ------------------------------------------------------------------


class ForkPoint(Record, frozen=True, kw_only=True):
    """Where a conversation left its parent: it sees the parent through `entry`."""

    conversation: ConversationId
    entry: EntryId
    seq: Seq


class Conversation(Record, frozen=True, kw_only=True):
    """A transcript scope (K10). `owner` is the task it was made for; `deleted` leaves a tombstone for forks (K47)."""

    id: ConversationId
    at: float
    key: str | None = None
    parent: ForkPoint | None = None
    owner: TaskId | None = None
    title: str | None = None
    deleted: bool = False


class Edit(Record, frozen=True, kw_only=True):
    """Omits (`messages` None) or replaces the model messages of an earlier entry (K12)."""

    entry: EntryId
    messages: tuple[Message, ...] | None = None


class Entry(Record, frozen=True, kw_only=True):
    """One immutable line of a transcript (K12). `seq` is the commit that wrote it."""

    id: EntryId
    conversation: ConversationId
    kind: str
    seq: Seq
    at: float
    messages: tuple[Message, ...] = ()
    data: Any = None
    head: EntryId | None = None
    edits: tuple[Edit, ...] = ()
    task: TaskId | None = None


# -- tasks --------------------------------------------------------------------------------------


class ErrorInfo(Record, frozen=True, kw_only=True):
    """An error as data: its class name and message, never a stack."""

    type: str
    message: str


class Ended(Record, frozen=True, kw_only=True):
    """What all outcomes have in common."""

    @property
    def completed(self) -> bool:
        """Whether the task did its work."""
        return False

    def result_as(self, type: type[T]) -> T:
        """The result, as a value of that type. Raises UsageError where there is none, and InvalidValue for another."""
        raise UsageError(f"there is no result: the task did not complete, it ended as {self}")


class Completed(Ended, frozen=True, kw_only=True, tag="completed"):
    """The task did its work."""

    result: Any = None

    @property
    def completed(self) -> bool:
        return True

    def result_as(self, type: type[T]) -> T:
        try:
            return msgspec.convert(self.result, type)
        except msgspec.ValidationError as error:
            raise InvalidValue(f"the result {self.result!r} is no {type.__name__}: {error}") from None


class Failed(Ended, frozen=True, kw_only=True, tag="failed"):
    """The task decided that its work failed."""

    error: ErrorInfo


class Aborted(Ended, frozen=True, kw_only=True, tag="aborted"):
    """The task was told to stop. `begun` says whether its effect may have happened."""

    reason: str
    begun: bool = False
    result: Any = None


class Faulted(Ended, frozen=True, kw_only=True, tag="faulted"):
    """The task's code broke its contract (K26)."""

    error: ErrorInfo


class Orphaned(Ended, frozen=True, kw_only=True, tag="orphaned"):
    """The task was told to stop and no code could run its abort (K34)."""

    reason: str


Outcome = Completed | Failed | Aborted | Faulted | Orphaned


class Checkpoint(Record, frozen=True, kw_only=True):
    """The phase that runs next, and what the previous one saved for it."""

    phase: str
    data: Any = None


class Begun(Record, frozen=True, kw_only=True):
    """The effect of this attempt may have started (K24a). `replay` was declared with the intent; `progress` came
    after it."""

    attempt: int
    replay: Literal["safe", "unsafe"] = "unsafe"
    progress: bool = False


HoldReason = Literal["definition", "migration", "uncertain", "parked", "recovery"]


class Pending(Record, frozen=True, kw_only=True, tag="pending"):
    """May be reserved. `begun` is kept from an attempt whose outcome is unknown: the task is uncertain."""

    checkpoint: Checkpoint
    begun: Begun | None = None


class Running(Record, frozen=True, kw_only=True, tag="running"):
    """Reserved for an invocation; begun once its effect may have started."""

    checkpoint: Checkpoint
    begun: Begun | None = None


class Held(Record, frozen=True, kw_only=True, tag="held"):
    """Waits for someone: a definition, a migration, a decision, `retry()`."""

    checkpoint: Checkpoint
    reason: HoldReason
    detail: str = ""
    begun: Begun | None = None


class AllSettled(Record, frozen=True, kw_only=True, tag="all_settled"):
    """Resume when all named tasks are terminal."""


class FailFast(Record, frozen=True, kw_only=True, tag="fail_fast"):
    """As all_settled, but the first bad outcome marks the other live ones for abort. Only for owned children."""


class First(Record, frozen=True, kw_only=True, tag="first"):
    """The n-th success marks the rest for abort. Only for owned children."""

    n: int


class Outside(Record, frozen=True, kw_only=True, tag="outside"):
    """Completed from outside (a question) or by the clock at `deadline` (a timer, a question's default)."""

    deadline: float | None = None


WaitPolicy = AllSettled | FailFast | First | Outside


class Waiting(Record, frozen=True, kw_only=True, tag="waiting"):
    """Resumes at `checkpoint` when `policy` is met by the tasks `on`; `begun` is the intent that it then resumes
    with. At `deadline` the clock stops those that have not ended."""

    checkpoint: Checkpoint
    on: tuple[TaskId, ...] = ()
    policy: WaitPolicy
    begun: Begun | None = None
    deadline: float | None = None


class Completing(Record, frozen=True, kw_only=True, tag="completing"):
    """Has decided its outcome; waits for the ordinary work it owns (K29)."""

    outcome: Outcome


class Terminal(Record, frozen=True, kw_only=True, tag="terminal"):
    """Ended."""

    outcome: Outcome


TaskState = Pending | Running | Held | Waiting | Completing | Terminal


class AbortMark(Record, frozen=True, kw_only=True):
    """The durable wish that a task stops (K31)."""

    reason: str


class Task(Record, frozen=True, kw_only=True):
    """A durable state machine (K24).

    `conversation` is the scope it lives in; `owner` the task that owns it, or None where the conversation does.
    `attempt` counts the invocations of the present checkpoint; `first` holds until it leaves its first one.
    `crashes` counts process deaths during its own begun, progressless invocations (H44).
    """

    id: TaskId
    kind: str
    version: int
    conversation: ConversationId
    state: TaskState
    at: float
    input: Any = None
    owner: TaskId | None = None
    background: bool = False
    abort: AbortMark | None = None
    attempt: int = 0
    first: bool = True
    crashes: int = 0
    memos: dict[str, Any] = {}
    traceparent: str | None = None
    ended: float | None = None

    @property
    def live(self) -> bool:
        return type(self.state) is not Terminal

    @property
    def outcome(self) -> Outcome | None:
        return self.state.outcome if type(self.state) is Terminal else None


# -- submissions --------------------------------------------------------------------------------

UnansweredReason = Literal[
    "no_model", "model_error", "aborted", "faulted", "orphaned", "overflow", "reset", "limit", "stale"
]


class Queued(Record, frozen=True, kw_only=True, tag="queued"):
    """Accepted; waits in the inbox."""


class Placed(Record, frozen=True, kw_only=True, tag="placed"):
    """In the transcript as `entry`; `run` is the generation task that answers it."""

    entry: EntryId
    run: TaskId


class Done(Record, frozen=True, kw_only=True, tag="done"):
    """Settled: an input with its `answer` entry, a write without one."""

    entry: EntryId
    answer: EntryId | None = None


class Unanswered(Record, frozen=True, kw_only=True, tag="unanswered"):
    """Settled without an answer. `entry` is where it was placed, if it was."""

    reason: UnansweredReason
    detail: str = ""
    entry: EntryId | None = None


SubmissionState = Queued | Placed | Done | Unanswered


class Submission(Record, frozen=True, kw_only=True):
    """Something handed to a conversation that can be waited for (H1).

    `content` is kept only while it is queued: from then on the entry has it.
    `digest` is the hash of the body, to tell a repeated request id from a conflict (H44).
    """

    id: SubmissionId
    conversation: ConversationId
    type: Literal["input", "write", "reset", "summary"]
    state: SubmissionState
    digest: str
    at: float
    request_id: str | None = None
    mode: Literal["follow_up", "steer"] = "follow_up"
    content: Any = None

    @property
    def live(self) -> bool:
        return isinstance(self.state, Queued | Placed)


# -- documents ----------------------------------------------------------------------------------

Scope = Literal["session", "conversation", "task"]


class Document(Record, frozen=True, kw_only=True):
    """One incarnation of a document (K17): its declaration as stored. `owner` is the conversation or task id, 0 for
    the session.

    `source` is the document of a parent conversation that an `as_of` fork reads through until its first own write
    (K23).
    """

    id: DocumentId
    scope: Scope
    owner: int
    kind: str
    key: str = ""
    history: Literal["latest", "rewindable"] = "latest"
    fork: Literal["initial", "current", "as_of"] = "initial"
    created: Seq
    retired: Seq | None = None


class Base(Record, frozen=True, kw_only=True):
    """A whole value of a document, with the version of the code that wrote it."""

    version: int
    value: Any


# -- inbound ------------------------------------------------------------------------------------


class Inbound(Record, frozen=True, kw_only=True):
    """What any process handed in (K1a). `id` is a UUIDv7; `answer` is written by the owner in the commit that acted
    on it."""

    id: str
    kind: str
    body: Any
    at: float
    taken: Seq | None = None
    answer: Any = None


_encoder = msgspec.json.Encoder()
encode = _encoder.encode

R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


class Decode(Protocol[T_co]):
    """Reads a stored record. Raises StorageCorrupt naming it, and the session where that is given."""

    def __call__(self, body: bytes, session: str | None = None, /) -> T_co: ...


def _decoder(what: str, record: type[R]) -> Decode[R]:
    decode = msgspec.json.Decoder(record).decode

    def checked(body: bytes, session: str | None = None, /) -> R:
        try:
            return decode(body)
        except msgspec.DecodeError as error:
            raise damaged(what, body, session, error) from None

    return checked


def damaged(what: str, body: bytes, session: str | None, error: Exception) -> StorageCorrupt:
    """The error for a stored record that cannot be read: which one, as far as it still tells."""
    found = _ID.match(body)
    which = f"{what} {found[1].decode()}" if found else f"{what} (its id is lost too)"
    where = "" if session is None else f" of session {session!r}"
    return StorageCorrupt(
        f"{which}{where} is damaged in the store: {error}. It was left as it is, and nothing goes on that needs it: "
        "keep a copy of the store, then restore a backup"
    )


#: Every record begins with its id.
_ID = re.compile(rb'\{"id":"?([0-9a-f-]{1,40})[",}]')

decode_conversation = _decoder("conversation", Conversation)
decode_entry = _decoder("entry", Entry)
_decode_entry = msgspec.json.Decoder(Entry).decode


def decode_entries(bodies: Sequence[bytes], session: str | None = None) -> list[Entry]:
    """Many at a time: a transcript is the one thing that is read by the thousand. Raises as `decode_entry`."""
    try:
        return [_decode_entry(body) for body in bodies]
    except msgspec.DecodeError:
        return [decode_entry(body, session) for body in bodies]  # which raises for the one, and names it


decode_task = _decoder("task", Task)
decode_submission = _decoder("submission", Submission)
decode_document = _decoder("document", Document)
decode_inbound = _decoder("inbound item", Inbound)
#: These two raise msgspec.DecodeError: they stand below a record that their caller can name.
decode_base = msgspec.json.Decoder(Base).decode
decode_json = msgspec.json.Decoder().decode
