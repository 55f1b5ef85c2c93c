"""Agent events: what happened in a conversation, derived from its commits (H30)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from perdure.records import Entry, Outcome, Seq, Submission, SubmissionId, TaskId
from perdure.surface.frames import QuestionInfo, Wire


def _words(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, tag=_words, omit_defaults=True):
    """What happened in a conversation; in JSON, `type` is the name of the class in small letters."""


class Snapshot(AgentEvent, frozen=True, kw_only=True):
    """The whole view: what came before is in it. First of all, and again where a reader was too slow."""

    view: Any


class RunStarted(AgentEvent, frozen=True, kw_only=True):
    """The conversation is busy: `run` answers."""

    run: TaskId


class RunEnded(AgentEvent, frozen=True, kw_only=True):
    """The run is over. `outcome` is how its task ended; where a look missed that, None."""

    run: TaskId
    outcome: Outcome | None = None


class MessageStarted(AgentEvent, frozen=True, kw_only=True):
    """The model's answer of this round begins to be seen."""

    run: TaskId
    round: int
    attempt: int


class MessageDelta(AgentEvent, frozen=True, kw_only=True):
    """More of it: of its text, or of its thinking."""

    part: Literal["text", "thinking"]
    text: str


class MessageEnded(AgentEvent, frozen=True, kw_only=True):
    """The answer is over, as `entry`; without one nothing of it was kept, as when a failed attempt is repeated."""

    entry: Entry | None = None


class RetryScheduled(AgentEvent, frozen=True, kw_only=True):
    """The request failed and is repeated at the time `at`."""

    kind: str
    message: str
    at: float


class ToolStarted(AgentEvent, frozen=True, kw_only=True):
    """A call's task is there; its arguments are those that the model gave."""

    task: TaskId
    call: str
    name: str
    arguments: dict[str, Any] | None = None


class ToolOutput(AgentEvent, frozen=True, kw_only=True):
    """What a call shows: more of it, or with `whole` all of it anew."""

    task: TaskId
    call: str
    text: str
    whole: bool = False


class ToolDetails(AgentEvent, frozen=True, kw_only=True):
    """Structured details of a call."""

    task: TaskId
    call: str
    details: Any


class ToolEnded(AgentEvent, frozen=True, kw_only=True):
    """A call has its result. One that was refused has only this: it never started."""

    call: str
    name: str
    entry: Entry
    error: str | None = None


class EntryAdded(AgentEvent, frozen=True, kw_only=True):
    """Any other entry: inputs that were placed, writes, notes."""

    entry: Entry


class TranscriptReset(AgentEvent, frozen=True, kw_only=True):
    """The active transcript begins anew."""

    entry: Entry


class Compacted(AgentEvent, frozen=True, kw_only=True):
    """A summary stands for what was before it."""

    entry: Entry


class QueueChanged(AgentEvent, frozen=True, kw_only=True):
    """What waits in the inbox now, in order."""

    queued: tuple[SubmissionId, ...]


class SubmissionSettled(AgentEvent, frozen=True, kw_only=True):
    """A submission is done or unanswered."""

    submission: Submission


class QuestionOpened(AgentEvent, frozen=True, kw_only=True):
    """Someone has to answer."""

    question: QuestionInfo


class QuestionClosed(AgentEvent, frozen=True, kw_only=True):
    """It is answered (the result of `outcome` says what and by whom), or nobody can any more."""

    question: TaskId
    outcome: Outcome | None = None


class SettingsChanged(AgentEvent, frozen=True, kw_only=True):
    """The conversation's own settings."""

    settings: dict[str, Any]


class UsageChanged(AgentEvent, frozen=True, kw_only=True):
    """What it used so far."""

    usage: dict[str, Any]


class JobChanged(AgentEvent, frozen=True, kw_only=True):
    """What is known of a background job."""

    task: TaskId
    job: dict[str, Any]


Event = (
    Snapshot
    | RunStarted
    | RunEnded
    | MessageStarted
    | MessageDelta
    | MessageEnded
    | RetryScheduled
    | ToolStarted
    | ToolOutput
    | ToolDetails
    | ToolEnded
    | EntryAdded
    | TranscriptReset
    | Compacted
    | QueueChanged
    | SubmissionSettled
    | QuestionOpened
    | QuestionClosed
    | SettingsChanged
    | UsageChanged
    | JobChanged
)


class Events(Wire, frozen=True, kw_only=True):
    """The events of commit `seq`: they happened at once."""

    seq: Seq
    events: tuple[Event, ...]


#: Reads a batch of events from its JSON. Raises msgspec.DecodeError.
decode_events = msgspec.json.Decoder(Events).decode
