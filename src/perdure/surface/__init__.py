"""What a user or a remote client sees: Protocols and the types that travel. In process and over HTTP alike.

A view is a JSON object; `conversation_view` and `task_graph` read one. Its readers are told of it in frames: first a
`Whole` one, then `Deltas`, one a commit. Agent events are derived from the same commits and come in batches.
Each frame and batch has its JSON in `encoded`, made once for all its readers.
"""

from perdure.surface.events import AgentEvent, Event, Events, decode_events
from perdure.surface.frames import (
    ConversationView,
    Deltas,
    Ended,
    Frame,
    QuestionInfo,
    TaskGraph,
    TaskInfo,
    Whole,
    conversation_view,
    decode_frame,
    task_graph,
)
from perdure.surface.protocols import Conversation, ConversationReader, Live, Session, SessionReader, Stream, Submission
from perdure.surface.settled import Answered, NotAnswered, Settled

__all__ = [
    "AgentEvent",
    "Answered",
    "Conversation",
    "ConversationReader",
    "ConversationView",
    "Deltas",
    "Ended",
    "Event",
    "Events",
    "Frame",
    "Live",
    "NotAnswered",
    "QuestionInfo",
    "Session",
    "SessionReader",
    "Settled",
    "Stream",
    "Submission",
    "TaskGraph",
    "TaskInfo",
    "Whole",
    "conversation_view",
    "decode_events",
    "decode_frame",
    "task_graph",
]
