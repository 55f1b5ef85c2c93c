"""In the agent's process: where it is to be killed, it says so and goes no further."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from perdure.commands.demo.schedule import Kill, Point
from perdure.commands.demo.talk import Reached, Report, line_of
from perdure.telemetry import Telemetry

#: What the agent exits with when its client is gone.
ABANDONED = 3


class Voice:
    """Says things to the client, from any thread. Invariant: a line is written whole before another one begins."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def tell(self, report: Report) -> None:
        """Write a line. What was written is read by the client, though this process dies."""
        line = f"{line_of(report)}\n".encode()
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]


class Points:
    """The one point at which this life ends. Passing points is cheap and may happen in any thread."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._lock = threading.Lock()
        self._kill: Kill | None = None
        #: How often the agent still passes its point before it is killed there.
        self._left = 0
        #: Tasks in whose present step another death would be one too many (H44). While there are any, no point counts.
        self.spared: set[int] = set()

    def arm(self, kill: Kill | None) -> None:
        self._kill = kill
        self._left = 0 if kill is None else kill.nth

    def attach(self, telemetry: Telemetry) -> None:
        """Two of the points are events of the product."""
        telemetry.attach("perdure demo", ["perdure.tool.begun", "perdure.tool.returned"], self._tool)

    def reach(self, point: Point, detail: str, tool: str | None = None) -> None:
        """The agent is at a point. Does not return where it is to be killed."""
        if self.due(point, detail, tool):
            wait_for_the_end()

    def due(self, point: Point, detail: str, tool: str | None = None) -> bool:
        """Whether this is where the agent is to be killed; then the client was told."""
        kill = self._kill
        if kill is None or kill.point != point or self.spared or (kill.tool is not None and kill.tool != tool):
            return False
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return False
        self._voice.tell(Reached(point=point, detail=detail))
        return True

    def _tool(self, event: str, _measurements: Mapping[str, float], about: Mapping[str, Any]) -> None:
        tool = str(about["tool"])
        if event == "perdure.tool.begun":
            self.reach("before_effect", f"{tool} was about to start", tool)
        else:
            self.reach("after_effect", f"{tool} had returned", tool)


def wait_for_the_end() -> NoReturn:
    """Stand still until SIGKILL comes; or the client's own end, for nobody would send it then."""
    poll = select.poll()
    poll.register(0, 0)
    poll.poll()
    os._exit(ABANDONED)
