"""The façade: puts storage, engine, model and sandbox together."""

from perdure.app.handing_in import HandedIn, HandInConversation, HandInSession
from perdure.app.looking import ReadConversation, ReadSession, ReadSubmission
from perdure.app.opening import Store, open, run, store
from perdure.app.session import Session

__all__ = [
    "HandInConversation",
    "HandInSession",
    "HandedIn",
    "ReadConversation",
    "ReadSession",
    "ReadSubmission",
    "Session",
    "Store",
    "open",
    "run",
    "store",
]
