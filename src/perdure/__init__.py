"""perdure: a runtime for AI agents that survive.

Every message, model answer, tool call and effect is committed before anyone sees it.
The map, from what you call down to what keeps it:

    app        perdure.open: sessions and stores
    harness    conversations: runs, rounds, tools, submissions
    views      committed state for readers: frames, replicas
    tasks      durable state machines, questions, timers
    session    the commit line, documents, transcripts
    settle     the scheduling rules: pure functions over records
    surface    what a user or a remote client sees
    storage · model · sandbox · schema     ports; adapters in backends, providers, sandboxes, schemas
"""

from typing import TYPE_CHECKING

from perdure.public_names import __dir__ as __dir__
from perdure.public_names import __getattr__ as __getattr__

if TYPE_CHECKING:  # a name is loaded when it is first used: `perdure --help` needs none of them
    from perdure.app.handing_in import HandInSession
    from perdure.app.looking import ReadSession
    from perdure.app.opening import Store, open, run, store
    from perdure.app.session import Session
    from perdure.errors import (
        AlreadyAnswered,
        ConversationBusy,
        Fenced,
        HandleExpired,
        InvalidValue,
        MissedFrames,
        ModelError,
        NotFound,
        NotTaken,
        OwnerGone,
        PerdureError,
        RequestConflict,
        SessionOwned,
        StorageError,
        UsageError,
    )
    from perdure.extensions.permissions import permissions
    from perdure.harness.call import Call as ToolCall
    from perdure.harness.children import Profile
    from perdure.harness.conversation import ConversationHandle as Conversation
    from perdure.harness.decisions import Allow, Ask, Deny, Edit
    from perdure.harness.handover import WaitFor
    from perdure.harness.harness import RequestLimits, Settings
    from perdure.harness.hooks import (
        AnswerReceived,
        Block,
        CallReturned,
        CallToJudge,
        CompactionToDo,
        PromptScope,
        Refuse,
        Replace,
        RequestToSend,
        ResultOfRound,
        Rewrite,
        RoundDone,
        Summary,
    )
    from perdure.harness.question import Question
    from perdure.harness.registry import Extension, Registry, Section, Tool, ToolResult, section, tool
    from perdure.harness.retry import RetryPolicy
    from perdure.harness.submissions import SubmissionHandle as Submission
    from perdure.session.documents import document
    from perdure.session.transaction import entry_kind
    from perdure.surface.settled import Answered, NotAnswered
    from perdure.tasks.definition import TaskDefinition as Task
    from perdure.tasks.definition import phase
    from perdure.tasks.invocation import Invocation
    from perdure.views.replica import Replica

__all__ = [
    "Allow",
    "AlreadyAnswered",
    "AnswerReceived",
    "Answered",
    "Ask",
    "Block",
    "CallReturned",
    "CallToJudge",
    "CompactionToDo",
    "Conversation",
    "ConversationBusy",
    "Deny",
    "Edit",
    "Extension",
    "Fenced",
    "HandInSession",
    "HandleExpired",
    "InvalidValue",
    "Invocation",
    "MissedFrames",
    "ModelError",
    "NotAnswered",
    "NotFound",
    "NotTaken",
    "OwnerGone",
    "PerdureError",
    "Profile",
    "PromptScope",
    "Question",
    "ReadSession",
    "Refuse",
    "Registry",
    "Replace",
    "Replica",
    "RequestConflict",
    "RequestLimits",
    "RequestToSend",
    "ResultOfRound",
    "RetryPolicy",
    "Rewrite",
    "RoundDone",
    "Section",
    "Session",
    "SessionOwned",
    "Settings",
    "StorageError",
    "Store",
    "Submission",
    "Summary",
    "Task",
    "Tool",
    "ToolCall",
    "ToolResult",
    "UsageError",
    "WaitFor",
    "document",
    "entry_kind",
    "open",
    "permissions",
    "phase",
    "run",
    "section",
    "store",
    "tool",
]
