"""The views that readers are given, and the frames that tell them what each commit did to one."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from perdure.deltas import Op
from perdure.records import Conversation, Entry, Seq, Submission, TaskId, encode


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A live task. `state` is its name; `reason` and `detail` say why it is held; `on` what it waits for."""

    id: int
    kind: str
    conversation: int
    state: str
    owner: int | None = None
    phase: str | None = None
    attempt: int = 0
    begun: bool = False
    background: bool = False
    aborting: bool = False
    reason: str | None = None
    detail: str | None = None
    on: tuple[int, ...] = ()
    crashes: int = 0
    label: str | None = None


class QuestionInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An open question. `call` is the tool call that it is about: `name` and `arguments`."""

    id: int
    conversation: int
    payload: Any
    asker: int | None = None
    deadline: float | None = None
    call: Any = None


class ConversationView(msgspec.Struct, frozen=True, kw_only=True):
    """The committed state of a conversation. `view["entries"]` and so on in JSON; here the same, typed.

    `entries` are the newest that it sees, oldest first; with `older` there are more: page with `entries(before=…)`.
    `run` is the live run, which `live` shows: round, attempt, committed partial answer, retry, open tool calls by task.
    `inbox` has queued and placed submissions by id, `questions` the open ones of its ordinary work by id.
    `agent` are its own settings, `usage` what it used, `jobs` its background jobs by task id.
    """

    conversation: Conversation
    entries: tuple[Entry, ...]
    older: bool
    run: TaskId | None
    live: dict[str, Any] | None
    inbox: dict[str, Submission]
    questions: dict[str, QuestionInfo]
    agent: dict[str, Any]
    usage: dict[str, Any]
    jobs: dict[str, Any]


class TaskGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The live tasks of a session by id, who waits on whom (`on`), who owns whom (`owner`),
    and the conversations that live tasks own, by id."""

    tasks: dict[str, TaskInfo]
    conversations: dict[str, Conversation]

    def waiters(self, id: int) -> list[TaskInfo]:
        """The tasks that wait on a task."""
        return [task for task in self.tasks.values() if id in task.on]

    def owned(self, id: int) -> list[TaskInfo]:
        """The live tasks that a task owns itself."""
        return [task for task in self.tasks.values() if task.owner == id]


def conversation_view(value: Any) -> ConversationView:
    """A conversation's view, typed. Raises msgspec.ValidationError for what is none."""
    return msgspec.convert(value, ConversationView)


def task_graph(value: Any) -> TaskGraph:
    """A task graph, typed. Raises msgspec.ValidationError for what is none."""
    return msgspec.convert(value, TaskGraph)


# -- frames -------------------------------------------------------------------------------------


class Wire(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What many readers are given: encoded once."""

    @cached_property
    def encoded(self) -> bytes:
        """Its JSON."""
        return encode(self)


class Ended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record that left the view at `path`, as it ended: a settled submission, the task of a run or question."""

    path: str
    record: dict[str, Any]


class Whole(Wire, frozen=True, kw_only=True, tag="whole"):
    """The newest whole view, as of commit `seq`: comes first, and again where a reader was too slow for deltas."""

    seq: Seq
    view: Any


class Deltas(Wire, frozen=True, kw_only=True, tag="deltas", omit_defaults=True):
    """What commit `seq` did to the view that the frame of commit `after` led to: operations in order (see `deltas`)."""

    seq: Seq
    after: Seq
    ops: tuple[Op, ...]
    ended: tuple[Ended, ...] = ()


Frame = Whole | Deltas

#: Reads a frame from its JSON. Raises msgspec.DecodeError.
decode_frame = msgspec.json.Decoder(Frame).decode
