"""What conversations store: the kinds of their entries, and their documents (H42)."""

from __future__ import annotations

from typing import Any

from perdure.session.documents import declare
from perdure.session.transaction import EntryKind

USER = EntryKind("perdure.user")
ASSISTANT = EntryKind("perdure.assistant")
TOOL_RESULT = EntryKind("perdure.tool_result")
#: The model's context starts with it; what was said before stays in storage (H8).
RESET = EntryKind("perdure.reset")
#: A summary of what came before its head, in the place of it (H26).
COMPACTION = EntryKind("perdure.compaction")

#: The kinds of the built-in tasks.
GENERATION = "perdure.generation"
TOOL = "perdure.tool"


def _live() -> Any:
    return {"round": 0, "attempt": 0, "text": "", "thinking": "", "retry": None, "tools": {}}


#: What a run shows while it works: it belongs to the run's generation task and ends with it (K22, K40).
#: `text` and `thinking` are the committed part of the answer that streams;
#: `retry` is {"kind", "message", "at", "attempt", "attempts", "wait"} while attempt `attempt` of `attempts` waits;
#: `tools` maps the id of each open tool task to {"name", "call", "output", "details"}.
LIVE = declare("perdure.live", scope="task", initial=_live)

#: What a conversation used (H17):
#: {"models": {name: {"requests", "unknown", bucket…}}, "tools": {name: {"calls", "errors"}}}.
USAGE = declare("perdure.usage", initial=lambda: {"models": {}, "tools": {}})
#: The same of the conversations below it, and of the whole session; see `perdure.harness.usage`.
USAGE_BELOW = declare("perdure.usage.below", initial=lambda: {"models": {}, "tools": {}})
USAGE_TOTAL = declare("perdure.usage.total", scope="session", initial=lambda: {"models": {}, "tools": {}})

#: A conversation's own settings over the session's: model, tools, instructions, steering, follow_up, max_rounds (H31).
AGENT = declare("perdure.agent", history="rewindable", fork="as_of", initial=dict)

#: What was allowed for good in a conversation: {"allow": [the `remember` of an answered question…]} (K37).
PERMISSIONS = declare("perdure.permissions", history="rewindable", fork="as_of", initial=lambda: {"allow": []})

#: What before_request hooks made of a run's newest request, so that it is the same when it is sent again (H11):
#: {"of": [round, cut-off], "change": null or {"head", "tail", "messages"}}.
REQUEST = declare("perdure.request", scope="task", initial=dict)

#: What of a conversation's extensions failed: {"extension.hook": {"times", "error", "at"}}.
FAILURES = declare("perdure.failures", initial=dict)

#: A note that tells the model what changed of the front of its requests: {"sections", "added", "tools"} (H16).
PROMPT = EntryKind("perdure.prompt")


def _front() -> Any:
    return {"sections": [], "tools": []}


#: What stands at the front of a conversation's requests since its newest head (H16): `sections` as [name, text] and
#: `tools` as [name, digest], in the order in which they are sent. Where there is something to say also `head`, for
#: which it was made; `noted`, by name what notes changed since, as a digest, "" where it was taken away; `last`, the
#: newest note; `stale`, notes from before that are not sent.
FRONT = declare("perdure.front", history="rewindable", fork="as_of", initial=_front)

#: The tools that were ever sent, as models see them, by digest.
TOOLS = declare("perdure.tools", scope="session", initial=dict)
