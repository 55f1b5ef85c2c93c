"""What a tool function is given of its call: progress, files and processes, and its own identity (H21, H43)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import HandleExpired, SandboxError
from perdure.harness.limits import Limit
from perdure.harness.output import Output
from perdure.harness.registry import Tool
from perdure.harness.stored import LIVE
from perdure.sandbox import Sandbox
from perdure.session.line import Commit
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import TaskTransaction
from perdure.values import clean, coerce

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


class Call:
    """A tool call as its function sees it (`perdure.ToolCall`). It dies with the call: later use raises HandleExpired."""

    def __init__(self, harness: Harness, invocation: Invocation, tool: Tool) -> None:
        self._harness = harness
        self._invocation = invocation
        self._tool = tool
        self._output = Output(keep=tool.keep)
        self._cleanups: list[Callable[[], Any]] = []
        self._limit: Limit | None = None
        self._over = False
        #: Details and diagnostics of the result, as they are stored with it.
        self.data: dict[str, Any] = {}
        self.name = tool.name
        #: The call's key: the assistant entry that asked for it and its position there.
        self.id: str = invocation.input["call"]
        self.conversation = invocation.conversation
        #: The time limit in seconds. A tool that keeps a limit of its own, as bash does, may ask for another one.
        self.timeout = tool.timeout
        #: The same over all attempts of this call.
        self.idempotency_key = invocation.idempotency_key
        #: Counts the attempts of this call from 1.
        self.attempt = invocation.attempt

    @property
    def sandbox(self) -> Sandbox:
        """Where files and processes are. Raises SandboxError where the session has none."""
        if self._harness.sandbox is None:
            raise SandboxError("this session has no sandbox: open it with a directory")
        return self._harness.sandbox

    def output(self, chunk: str | bytes) -> None:
        """Show progress: committed at most every 100 ms, bounded, kept when the call is interrupted."""
        self._alive()
        self._output.feed(chunk)
        self._harness.progress.note(self._flush)

    def details(self, value: Any) -> None:
        """Structured details of the result, for people and programs, not for the model."""
        self._alive()
        self.data["details"] = coerce(value)
        self._harness.progress.note(self._flush)

    def diagnostic(self, text: str) -> None:
        """A note about how the call went, stored with the result."""
        self._alive()
        self.data.setdefault("diagnostics", []).append(clean(text))

    def on_cleanup(self, function: Callable[[], Any]) -> None:
        """Run this when the call crashes, runs out of time or is aborted; not after success (H43)."""
        self._alive()
        self._cleanups.append(function)

    def extend(self, seconds: float) -> None:
        """Give this call a time limit of `seconds` from now."""
        self._alive()
        self.timeout = seconds
        if self._limit is not None:
            self._limit.extend(seconds)

    def commit(self) -> Commit[TaskTransaction]:
        """Entries, documents and tasks of your own, in one commit; tasks are owned by this call."""
        invocation = self._invocation

        def make(line: Any) -> TaskTransaction:
            tx = TaskTransaction(line, invocation.conversation, invocation.id)
            invocation.fence(tx)
            return tx

        return invocation.line.commit(make)

    # -- for the tool task ------------------------------------------------------------------

    def bound(self, limit: Limit) -> None:
        self._limit = limit

    @property
    def limit_passed(self) -> bool:
        """The harness ended the call, not the tool itself."""
        return self._limit is not None and self._limit.expired

    def final(self, value: Any) -> str:
        """The result's text: what was returned, or else what was shown."""
        if value is None:
            self._output.close()
            return self._output.text()
        bounded = Output(keep=self._tool.keep)
        bounded.feed(value if isinstance(value, str) else msgspec.json.encode(coerce(value)))
        bounded.close()
        return bounded.text()

    def with_output(self, text: str) -> str:
        """An error's text, followed by what was shown before it."""
        self._output.close()
        shown = self._output.text()
        return f"{text}\nOutput until then:\n{shown}" if shown else text

    def timed_out(self, shown: str) -> str:
        """The text of a call that ran out of time: its outcome is unknown (H20)."""
        text = f"{self.name} ran out of its time limit of {self.timeout:g} s and was stopped. What it did until then stays done."
        return f"{text}\n{shown}" if shown else self.with_output(text)

    async def cleanup(self) -> None:
        """Run what was registered, newest first; a failing one is noted, and the others still run."""
        while self._cleanups:
            function = self._cleanups.pop()
            try:
                value = function()
                if inspect.isawaitable(value):
                    await value
            except Exception as error:
                self.data.setdefault("diagnostics", []).append(f"cleanup failed: {type(error).__name__}")

    def over(self) -> None:
        """The call has its result: the handle is dead."""
        self._over = True
        self._harness.progress.forget(self._flush)

    def _alive(self) -> None:
        if self._over:
            raise HandleExpired(f"the call {self.id} of {self.name} has ended: this handle is dead")

    async def _flush(self) -> None:
        invocation = self._invocation
        async with invocation.commit() as tx:
            owner = tx.own.owner
            if self._over or owner is None:
                return
            tools = (await tx.doc(LIVE, owner))["tools"]
            slot = tools.get(str(invocation.id))
            if slot is None:
                return
            shown, stored = self._output.text(), slot["output"]
            if shown.startswith(stored):
                if shown != stored:
                    slot.append_text("output", shown[len(stored) :])
            else:
                slot["output"] = shown
            if "details" in self.data and slot.get("details") != self.data["details"]:
                slot["details"] = self.data["details"]
            tx.progress()

