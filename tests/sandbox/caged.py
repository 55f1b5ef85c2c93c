"""A process that does as a test tells it with commands, and may be killed; see cage.py."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from tests.sandbox.scenarios import Numbers, glance

from perdure.testing.processes import Child


class Caged:
    """See cage.py."""

    def __init__(self, child: Child, numbers: Numbers) -> None:
        self.child = child
        self.numbers = numbers
        self.until("ready")

    def order(self, do: str, **more: Any) -> None:
        self.child.write_line(json.dumps({"do": do, **more}))

    def until(self, key: str) -> Any:
        event = json.loads(self.child.read_line())
        assert key in event, event
        return event[key]

    def ends(self, key: str, commands: dict[str, str]) -> dict[str, Any]:
        """How each command ended."""
        found: dict[str, Any] = {}
        while len(found) < len(commands):
            event = json.loads(self.child.read_line())
            assert key in event, event
            found[event["name"]] = event[key]
        return found

    def until_all_run(self, commands: dict[str, str]) -> None:
        until = time.monotonic() + 30
        while missing := commands.keys() - self.numbers.alive(commands).keys():
            assert time.monotonic() < until, [commands[each] for each in missing]
            glance()

    def left(self, commands: dict[str, str], seconds: float = 0.0) -> dict[str, int]:
        """How many processes of each scenario live, after they had some time; they are killed then."""
        until = time.monotonic() + seconds
        while (alive := self.numbers.alive(commands)) and time.monotonic() < until:
            glance()
        for pids in alive.values():
            for pid in pids:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
        return {self.numbers.names[each]: len(pids) for each, pids in alive.items()}
