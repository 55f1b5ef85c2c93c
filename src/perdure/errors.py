"""The error tree.

Catch `PerdureError` at the top, a leaf where you can act.
A message names the value and the remedy.
Failures that a model should see are values (tool results), not exceptions.
"""

from __future__ import annotations


class PerdureError(Exception):
    """Anything that perdure raises on purpose."""


# -- what a caller gave -------------------------------------------------------------------------


class UsageError(PerdureError):
    """The call cannot mean anything here: a wrong argument, a closed handle, a commit inside a commit."""


class InvalidValue(UsageError):
    """A value is not the JSON that perdure stores; the message carries the path to the offending part."""


class NotFound(PerdureError):
    """No record under that id or key."""


class WrongKind(PerdureError):
    """The record exists, but is of another kind than the token that asks for it."""


class HandleExpired(UsageError):
    """A handle was used after the invocation, commit or session that lent it had ended. Nothing was written."""


class MissedFrames(PerdureError):
    """A replica was given deltas that do not follow what it has. It is as it was: watch anew."""


# -- conversations ------------------------------------------------------------------------------


class ConversationBusy(PerdureError):
    """`when_busy="reject"` met a live run. Nothing was written."""


class RequestConflict(PerdureError):
    """A request id was used again with another body. Nothing was written."""


class InboxFull(PerdureError):
    """The conversation already holds as many queued submissions as its setting allows. Nothing was written."""


# -- tasks --------------------------------------------------------------------------------------


class TaskRefused(UsageError):
    """The scheduling rules do not allow this task, wait or owner."""


class AlreadyAnswered(PerdureError):
    """The question was decided before. `by` and `at` say by whom and when."""

    def __init__(self, message: str, *, by: str | None = None, at: float | None = None) -> None:
        super().__init__(message)
        self.by = by
        self.at = at


class Revoked(PerdureError):
    """The invocation lost its right to commit: its task was aborted, taken over or ended. Nothing was written."""


# -- documents ----------------------------------------------------------------------------------


class DocumentVersionError(PerdureError):
    """The stored document is newer than the code, or older with no `migrate`. Its bytes stay as they are."""


# -- the session and its storage ----------------------------------------------------------------


class SessionClosed(PerdureError):
    """The session was closed, or is closing and takes nothing more in."""


class SessionOwned(PerdureError):
    """Another live worker owns the session. Reading and handing in are possible; `take_over=True` ends its right to
    write."""


class OwnerGone(PerdureError):
    """No live worker owns the session. What was handed in stays there, and whoever opens the session takes it."""


class NotTaken(PerdureError):
    """The session's owner lives, and did not take what was handed in. It stays handed in."""


class StorageError(PerdureError):
    """The storage did not do what was asked."""


class StorageRejected(StorageError):
    """The storage refused the batch and is known to have kept none of it. The session goes on."""


class StorageFull(StorageRejected):
    """No space: nothing of the batch was kept. It heals by itself when space returns."""


class StorageUncertain(StorageError):
    """The acknowledgement got lost. The batch's `commit_id` tells, after reconnecting, whether it was kept."""


class StorageFailed(StorageError):
    """A write or sync failed in a way that leaves the file in doubt. The session is poisoned; reopen it."""


class StorageCorrupt(StorageError):
    """The file is not a healthy perdure store."""


class SchemaTooNew(StorageError):
    """The store was written by a newer perdure."""


class Fenced(StorageError):
    """Another owner holds the session now. Drop what is in memory and start nothing more for it."""


class SessionPoisoned(StorageError):
    """An earlier write of this session failed in doubt. Nothing is published any more; reopen the session."""


# -- models and tools ---------------------------------------------------------------------------


class ModelError(PerdureError):
    """A model request failed.

    `kind` says what to do: `retryable` and `rate_limited` (wait `after` seconds if given), `overflow` (the input
    does not fit),
    `auth`, `quota`, `invalid` (do not repeat), `cut` (the stream ended without a finish reason), `timeout`.
    """

    KINDS = ("retryable", "rate_limited", "overflow", "auth", "quota", "invalid", "cut", "timeout")

    def __init__(self, message: str, *, kind: str = "retryable", after: float | None = None) -> None:
        super().__init__(message)
        if kind not in self.KINDS:
            raise UsageError(f"no kind of model error named {kind!r}; one of {', '.join(self.KINDS)}")
        self.kind = kind
        self.after = after


class InvalidArguments(PerdureError):
    """Tool arguments do not fit the tool's schema. The message is written for the model."""


class SandboxError(PerdureError):
    """A file or process operation in the sandbox failed; the message is written for the model."""


class FileChanged(SandboxError):
    """A file is not the one any more that it was when it was looked at; nothing was written."""
