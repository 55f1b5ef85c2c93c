"""What `perdure` offers, each name loaded when it is first used: `perdure --help` needs none of them.

`perdure/__init__.py` has the same names as imports, for type checkers and readers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

#: Name: (module, its name there).
PLACES: Mapping[str, tuple[str, str]] = {
    "Allow": ("perdure.harness.decisions", "Allow"),
    "AlreadyAnswered": ("perdure.errors", "AlreadyAnswered"),
    "AnswerReceived": ("perdure.harness.hooks", "AnswerReceived"),
    "Answered": ("perdure.surface.settled", "Answered"),
    "Ask": ("perdure.harness.decisions", "Ask"),
    "Block": ("perdure.harness.hooks", "Block"),
    "CallReturned": ("perdure.harness.hooks", "CallReturned"),
    "CallToJudge": ("perdure.harness.hooks", "CallToJudge"),
    "CompactionToDo": ("perdure.harness.hooks", "CompactionToDo"),
    "Conversation": ("perdure.harness.conversation", "ConversationHandle"),
    "ConversationBusy": ("perdure.errors", "ConversationBusy"),
    "Deny": ("perdure.harness.decisions", "Deny"),
    "Edit": ("perdure.harness.decisions", "Edit"),
    "Extension": ("perdure.harness.registry", "Extension"),
    "Fenced": ("perdure.errors", "Fenced"),
    "HandInSession": ("perdure.app.handing_in", "HandInSession"),
    "HandleExpired": ("perdure.errors", "HandleExpired"),
    "InvalidValue": ("perdure.errors", "InvalidValue"),
    "Invocation": ("perdure.tasks.invocation", "Invocation"),
    "MissedFrames": ("perdure.errors", "MissedFrames"),
    "ModelError": ("perdure.errors", "ModelError"),
    "NotAnswered": ("perdure.surface.settled", "NotAnswered"),
    "NotFound": ("perdure.errors", "NotFound"),
    "NotTaken": ("perdure.errors", "NotTaken"),
    "OwnerGone": ("perdure.errors", "OwnerGone"),
    "PerdureError": ("perdure.errors", "PerdureError"),
    "Profile": ("perdure.harness.children", "Profile"),
    "PromptScope": ("perdure.harness.hooks", "PromptScope"),
    "Question": ("perdure.harness.question", "Question"),
    "ReadSession": ("perdure.app.looking", "ReadSession"),
    "Refuse": ("perdure.harness.hooks", "Refuse"),
    "Registry": ("perdure.harness.registry", "Registry"),
    "Replace": ("perdure.harness.hooks", "Replace"),
    "Replica": ("perdure.views.replica", "Replica"),
    "RequestConflict": ("perdure.errors", "RequestConflict"),
    "RequestLimits": ("perdure.harness.harness", "RequestLimits"),
    "RequestToSend": ("perdure.harness.hooks", "RequestToSend"),
    "ResultOfRound": ("perdure.harness.hooks", "ResultOfRound"),
    "RetryPolicy": ("perdure.harness.retry", "RetryPolicy"),
    "Rewrite": ("perdure.harness.hooks", "Rewrite"),
    "RoundDone": ("perdure.harness.hooks", "RoundDone"),
    "Section": ("perdure.harness.registry", "Section"),
    "Session": ("perdure.app.session", "Session"),
    "SessionOwned": ("perdure.errors", "SessionOwned"),
    "Settings": ("perdure.harness.harness", "Settings"),
    "StorageError": ("perdure.errors", "StorageError"),
    "Store": ("perdure.app.opening", "Store"),
    "Submission": ("perdure.harness.submissions", "SubmissionHandle"),
    "Summary": ("perdure.harness.hooks", "Summary"),
    "Task": ("perdure.tasks.definition", "TaskDefinition"),
    "Tool": ("perdure.harness.registry", "Tool"),
    "ToolCall": ("perdure.harness.call", "Call"),
    "ToolResult": ("perdure.harness.registry", "ToolResult"),
    "UsageError": ("perdure.errors", "UsageError"),
    "WaitFor": ("perdure.harness.handover", "WaitFor"),
    "document": ("perdure.session.documents", "document"),
    "entry_kind": ("perdure.session.transaction", "entry_kind"),
    "open": ("perdure.app.opening", "open"),
    "permissions": ("perdure.extensions.permissions", "permissions"),
    "phase": ("perdure.tasks.definition", "phase"),
    "run": ("perdure.app.opening", "run"),
    "section": ("perdure.harness.registry", "section"),
    "store": ("perdure.app.opening", "store"),
    "tool": ("perdure.harness.registry", "tool"),
}


def __getattr__(name: str) -> Any:
    """A name of `perdure`, for `from perdure import name` and `perdure.name`."""
    if name not in PLACES:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    module, attribute = PLACES[name]
    found = getattr(importlib.import_module(module), attribute)
    setattr(sys.modules["perdure"], name, found)
    return found


def __dir__() -> list[str]:
    return sorted({*vars(sys.modules["perdure"]), *PLACES})
