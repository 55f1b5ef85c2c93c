"""One model request: its stream, its time limits, and the committed part of the answer (H12, H13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import ModelError
from perdure.harness.answer import Answer
from perdure.harness.stored import LIVE
from perdure.model import Heartbeat, Model, Request
from perdure.tasks.invocation import Invocation

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


class Stream:
    """Runs a request and commits what arrives, throttled. Raises ModelError; also for an end without a finish reason (H13)."""

    def __init__(self, harness: Harness, invocation: Invocation, model: Model) -> None:
        self._harness = harness
        self._invocation = invocation
        self._model = model
        self.answer = Answer(model.name)
        #: Everything that was shown of the answer, and how much of it is committed.
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._over = False

    @property
    def text(self) -> str:
        """The visible text so far."""
        return "".join(self._text)

    async def run(self, request: Request) -> Answer:
        """The whole answer."""
        harness = self._harness
        limits = harness.defaults.limits
        began = harness.clock.monotonic()
        try:
            async with harness.watch.limit(min(limits.first_byte, limits.total)) as limit:
                stream = self._model.stream(request)
                async for event in stream:
                    if not isinstance(event, Heartbeat):
                        left = began + limits.total - harness.clock.monotonic()
                        limit.extend(min(limits.progress, left))
                        self._note(*self.answer.add(event))
                    if self.answer.stop is not None:
                        break
        except TimeoutError:
            what = "answered nothing" if not self._text and not self._thinking else "stopped answering"
            raise ModelError(f"{self._model.name} {what} within the time limit", kind="timeout") from None
        finally:
            self._over = True
            harness.progress.forget(self._flush)
        if self.answer.stop is None:
            raise ModelError(f"the stream of {self._model.name} ended without a finish reason", kind="cut")
        return self.answer

    def _note(self, text: str, thinking: str) -> None:
        if text:
            self._text.append(text)
        if thinking:
            self._thinking.append(thinking)
        if text or thinking:
            self._harness.progress.note(self._flush)

    async def _flush(self) -> None:
        async with self._invocation.commit() as tx:
            if self._over:
                return
            live = await tx.doc(LIVE, self._invocation.id)
            for name, pieces in (("text", self._text), ("thinking", self._thinking)):
                whole = "".join(pieces)
                new = whole[len(live[name]) :]
                if new:
                    live.append_text(name, new)
