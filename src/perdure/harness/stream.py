"""One model request: its stream, its time limits, and the committed part of the answer (H12, H13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import ModelError
from perdure.harness.answer import Answer
from perdure.harness.spending import Overspent, stopped_by
from perdure.harness.stored import LIVE
from perdure.harness.supervision import GRACE, CancelledWithin, Supervised, TimeUp
from perdure.messages import AssistantMessage
from perdure.model import Heartbeat, Model, Request
from perdure.tasks.invocation import Invocation
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


class Stream:
    """Runs a request and commits what arrives, throttled.

    Raises ModelError and nothing else, whatever the adapter does; also for an end without a finish reason (H13).
    """

    __slots__ = (
        *("_committed", "_harness", "_invocation", "_message", "_model", "_over", "_reading", "_shown"),
        *("answer", "waited"),
    )

    def __init__(self, harness: Harness, invocation: Invocation, model: Model) -> None:
        self._harness = harness
        self._invocation = invocation
        self._model = model
        self.answer = Answer(model.name)
        self._message: AssistantMessage | None = None
        #: What was shown of the answer, in pieces by part of the live document, and how many of them are committed.
        #: Empty until the model says something: thousands of requests may wait at once.
        self._shown: dict[str, list[str]] | None = None
        self._committed: dict[str, int] | None = None
        self._over = False
        #: How long it waited for its permit, in seconds.
        self.waited = 0.0

    @property
    def text(self) -> str:
        """The visible text so far."""
        return "" if self._shown is None else "".join(self._shown.get("text", ()))

    async def run(self, request: Request, *, capped: bool = False) -> AssistantMessage:
        """The whole answer. Waits for a permit first, and holds it until the stream has ended (I70).

        Raises Overspent, before anything is sent, where it is `capped` and others spent what was left meanwhile.
        """
        clock, limits = self._harness.clock, self._harness.defaults.limits
        asked = clock.monotonic()
        failure: ModelError | None = None
        async with self._harness.permits:
            began = clock.monotonic()
            self.waited = began - asked
            if capped and (spent := await stopped_by(self._harness, self._invocation.conversation)) is not None:
                raise Overspent(spent)
            seconds = min(limits.first_byte, limits.total)
            self._reading = Supervised(self._harness.watch, self._read(request, began), seconds=seconds)
            try:
                await self._reading.result()
            except Exception as error:
                failure = self._failure(error)
            finally:
                self._over = True
                self._harness.progress.forget(self._flush)
        if self._message is not None:
            return self._message  # it was whole: what went wrong after that is of no account
        raise failure or ModelError(f"the stream of {self._model.name} ended without a finish reason", kind="cut")

    def _failure(self, error: Exception) -> ModelError:
        """What went wrong, as a model's error."""
        name = self._model.name
        match error:
            case TimeUp():
                what = "stopped answering" if self._shown else "answered nothing"
                return ModelError(f"{name} {what} within the time limit", kind="timeout")
            case ModelError():
                return error
            case CancelledWithin():
                return ModelError(f"the request to {name} was cancelled from within")
            case OSError():
                return ModelError(f"the connection to {name} failed: {_told(error)}")
            case _:  # an adapter that breaks must not take the run with it
                metadata = {"model": name, "error": type(error).__name__}
                self._harness.telemetry.emit("perdure.model.broke", metadata=metadata)
                return ModelError(f"the adapter of {name} broke: {_told(error)}", kind="invalid")

    async def _read(self, request: Request, began: float) -> None:
        """Runs as a task of its own. The answer ends with its finish reason: nothing after it is waited for."""
        answer, clock, limits = self.answer, self._harness.clock, self._harness.defaults.limits
        stream: Any = self._model.stream(request)
        try:
            async for event in stream:
                if self._over:
                    return
                if isinstance(event, Heartbeat):
                    continue
                self._reading.extend(min(limits.progress, began + limits.total - clock.monotonic()))
                text, thinking = answer.add(event)
                if text:
                    self._show("text", text)
                if thinking:
                    self._show("thinking", thinking)
                if answer.stop is not None:
                    self._message = answer.message()
                    self._reading.extend(GRACE)
                    return
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    def _show(self, part: str, piece: str) -> None:
        if self._shown is None:
            self._shown = {}
        self._shown.setdefault(part, []).append(piece)
        self._harness.progress.note(self._flush)

    async def _flush(self) -> None:
        shown, committed = self._shown or {}, self._committed or {}
        counts = {part: len(pieces) for part, pieces in shown.items()}
        async with self._invocation.commit() as tx:
            if self._over:
                return
            live = await tx.doc(LIVE, self._invocation.id)
            for part, pieces in shown.items():
                fresh = "".join(pieces[committed.get(part, 0) : counts[part]])
                if fresh:
                    live.append_text(part, fresh)
            if live["retry"] is not None:
                live["retry"] = None
        self._committed = counts


def _told(error: Exception) -> str:
    try:
        return clean_text(f"{type(error).__name__}: {error}")
    except Exception:  # an error whose text cannot be made is still only an error
        return type(error).__name__
