"""What the tools that ship here need of their call. `perdure.ToolCall` has it; tests may give anything that has."""

from __future__ import annotations

from typing import Any, Protocol

from perdure.harness.jobs import Jobs
from perdure.sandbox import Sandbox


class ToolContext(Protocol):
    """A running call."""

    @property
    def conversation(self) -> int:
        """The conversation that asked for it."""
        ...

    @property
    def sandbox(self) -> Sandbox:
        """Where files and processes are. Raises SandboxError where there is none."""
        ...

    @property
    def jobs(self) -> Jobs:
        """The background jobs of the conversation."""
        ...

    def output(self, chunk: str | bytes) -> None:
        """Show progress."""
        ...

    def details(self, value: Any) -> None:
        """Structured details of the result, not for the model."""
        ...

    def extend(self, seconds: float) -> None:
        """Let the call last `seconds` from now before it is ended from outside."""
        ...
