"""One life of the agent, as its client sees it: a process that is started, talked to, and killed."""

from __future__ import annotations

import sys
from types import TracebackType

import msgspec

from perdure.commands.demo.talk import Order, Report, line_of, read_report
from perdure.errors import PerdureError
from perdure.testing.processes import Child, ChildTimeout, Exit

_AGENT = "perdure.commands.demo.agent"
#: What a killed process started may take so long to end by itself, in seconds; a guard does that for commands.
GRACE = 3.0


class AgentFailed(PerdureError):
    """The agent ended by itself, or stood still, where it should have worked."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a life ended: what it still said, what it wrote to standard error, and what it left running for good."""

    reports: tuple[Report, ...]
    complaints: str
    left: tuple[str, ...]


class Life:
    """A process of its own, with nothing of an earlier one but the files. What it started ends with the block."""

    def __init__(self) -> None:
        self._child = Child([sys.executable, "-P", "-m", _AGENT])
        #: How many of its lines were read.
        self._heard = 0

    @property
    def pid(self) -> int:
        return self._child.pid

    def say(self, order: Order) -> None:
        """Tell it. Raises AgentFailed where it is gone."""
        try:
            self._child.write_line(line_of(order))
        except BrokenPipeError:
            raise self.failed("ended by itself") from None

    def hear(self, timeout: float) -> Report | None:
        """What it says next; None when it says nothing in time. Raises AgentFailed where it is gone."""
        try:
            line = self._child.read_line(max(timeout, 0.0))
        except ChildTimeout:
            if not self._child.running:
                raise self.failed("ended by itself") from None
            return None
        self._heard += 1
        return read_report(line)

    def expect(self, within: float) -> Report:
        """What it says next. Raises AgentFailed where it says nothing."""
        report = self.hear(within)
        if report is None:
            raise self.failed(f"said nothing for {within:.0f} s")
        return report

    def kill(self) -> Ending:
        """SIGKILL, and wait until it is gone, and what it started with it. Raises AgentFailed where it ended before."""
        self._child.kill()
        exit = self._child.wait(grace=GRACE)
        if not exit.killed:
            raise AgentFailed(f"the agent (process {self.pid}) ended before it was killed; it said:\n{exit.stderr}")
        return self._ending(exit)

    def end(self) -> Ending:
        """Wait until it has closed by itself. Raises AgentFailed where it does not do so in order."""
        exit = self._child.wait(grace=GRACE)
        if exit.code != 0:
            raise AgentFailed(f"the agent (process {self.pid}) did not close in order; it said:\n{exit.stderr}")
        return self._ending(exit)

    def _ending(self, exit: Exit) -> Ending:
        reports = tuple(map(read_report, exit.lines[self._heard :]))
        return Ending(reports=reports, complaints=exit.stderr.strip(), left=exit.left)

    def failed(self, what: str) -> AgentFailed:
        """The error for an agent that did `what`, with what it complained of."""
        return AgentFailed(f"the agent (process {self.pid}) {what}; it said:\n{self._child.stderr or '(nothing)'}")

    def close(self) -> None:
        """Kill it with all that it started, if it is still there."""
        self._child.__exit__(None, None, None)

    def __enter__(self) -> Life:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
