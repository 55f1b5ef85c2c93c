"""What the hooks of extensions see, and what they may answer (H24, H40).

A hook is a function, synchronous or not, with one parameter. What it is given is a copy. None changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec

from perdure.harness.decisions import Ask
from perdure.messages import AssistantMessage, Message, ToolErrorCode, UserMessage
from perdure.model import Usage
from perdure.records import Conversation

if TYPE_CHECKING:
    from perdure.harness.call import Call
    from perdure.harness.harness import Settings
    from perdure.tasks.transaction import TaskTransaction

#: How long one hook may take, in seconds, where its extension says nothing else.
HOOK_SECONDS = 30.0


# -- what hooks see -----------------------------------------------------------------------------


class RequestToSend(msgspec.Struct, frozen=True, kw_only=True):
    """What a before_request hook sees: a request that is about to be sent to a model."""

    conversation: int
    run: int
    round: int
    model: str
    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[str, ...] = ()


class AnswerReceived(msgspec.Struct, frozen=True, kw_only=True):
    """What an after_response hook sees, once it is committed; and an on_yield hook, before an answer without calls is.

    `entry` is the answer's entry; None before there is one.
    """

    conversation: int
    run: int
    round: int
    model: str
    message: AssistantMessage
    usage: Usage | None = None
    entry: int | None = None


class CallToJudge(msgspec.Struct, frozen=True, kw_only=True):
    """What a before_tool hook sees: a call that passed the gate's own checks, before its intent is committed.

    `allowed` is what was answered for good in its conversation: the `remember` of questions that were.
    `directory` is where the session's tools work, `scratch` where the output of commands is kept; empty without any.
    """

    conversation: int
    name: str
    arguments: dict[str, Any]
    allowed: tuple[Any, ...] = ()
    directory: str = ""
    scratch: str = ""


class CallReturned(msgspec.Struct, frozen=True, kw_only=True):
    """What an after_tool hook sees: a call that ran, before its result is committed. `text` is what the model is told.

    A call that was refused, blocked, interrupted or aborted has no hooks after it: nothing ran, or nobody knows.
    """

    conversation: int
    call: str
    name: str
    arguments: dict[str, Any]
    text: str
    error: ToolErrorCode | None = None
    details: Any = None


class RoundDone(msgspec.Struct, frozen=True, kw_only=True):
    """What an after_tools hook sees: every call of a round has its committed result, in call order."""

    conversation: int
    run: int
    round: int
    results: tuple[ResultOfRound, ...]


class ResultOfRound(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a round, as it is stored."""

    call: str
    name: str
    text: str
    error: ToolErrorCode | None = None


class CompactionToDo(msgspec.Struct, frozen=True, kw_only=True):
    """What a before_compact hook sees: what is to be summarised, and why.

    `reason` is what started it; `messages` are those that the summary will stand for;
    `keep` is the first entry that stays as it is; `instructions` are whoever asked for it.
    """

    conversation: int
    reason: Literal["manual", "background", "threshold", "overflow"]
    messages: tuple[Message, ...]
    keep: int | None = None
    instructions: str = ""


class PromptScope(msgspec.Struct, frozen=True, kw_only=True):
    """What a section's text may depend on. `day` is the date in UTC, as in "2026-12-01"."""

    conversation: int
    settings: Settings
    day: str


# -- what hooks answer --------------------------------------------------------------------------


class Block(msgspec.Struct, frozen=True):
    """A before_tool hook's answer: the call does not run; the model is told why."""

    reason: str


class Rewrite(msgspec.Struct, frozen=True):
    """A before_tool hook's answer: the call runs with these arguments."""

    arguments: dict[str, Any]


class Replace(msgspec.Struct, frozen=True):
    """An after_tool hook's answer: the model is told this instead of what the call gave."""

    text: str
    error: ToolErrorCode | None = None


class Refuse(msgspec.Struct, frozen=True):
    """A before_compact hook's answer: this compaction does not happen."""

    reason: str


class Summary(msgspec.Struct, frozen=True):
    """A before_compact hook's answer: this is the summary, no model is asked for one."""

    text: str


# -- the functions of an extension --------------------------------------------------------------

T = TypeVar("T")
Maybe: TypeAlias = "Awaitable[T] | T"

BeforeRequest: TypeAlias = Callable[[RequestToSend], "Maybe[Sequence[Message] | None]"]
AfterResponse: TypeAlias = Callable[[AnswerReceived], "Maybe[None]"]
OnYield: TypeAlias = Callable[[AnswerReceived], "Maybe[str | UserMessage | None]"]
BeforeTool: TypeAlias = Callable[[CallToJudge], "Maybe[Block | Rewrite | Ask | None]"]
AfterTool: TypeAlias = Callable[[CallReturned], "Maybe[Replace | None]"]
AfterTools: TypeAlias = Callable[[RoundDone], "Maybe[None]"]
BeforeCompact: TypeAlias = Callable[[CompactionToDo], "Maybe[Refuse | Summary | None]"]

#: Around the execution of a call: `run()` goes on inwards and gives what the tool's function gave.
Wrapper: TypeAlias = "Callable[[Call, Callable[[], Awaitable[Any]]], Awaitable[Any]]"

#: Stages what a new conversation starts with, in the commit that makes it. `parent` is what it was forked from.
Setup: TypeAlias = "Callable[[TaskTransaction, Conversation, Conversation | None], Maybe[None]]"

#: The hooks that an extension may bring, by the name of its field.
HookName = Literal[
    "before_request", "after_response", "on_yield", "before_tool", "after_tool", "after_tools", "before_compact"
]
