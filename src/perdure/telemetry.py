"""The event bus: names, measurements and metadata to whoever attached. No dependency, next to no cost while nobody
listens.

Content (prompts, arguments, outputs, document values) never goes into an event.
Kill points of the crash suites are events too, so product code never knows its tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Handler = Callable[[str, Mapping[str, float], Mapping[str, Any]], None]

_EMPTY: Mapping[str, Any] = {}


class Telemetry:
    """A bus. A handler that raises is detached and reported on standard error, and disturbs nobody."""

    def __init__(self) -> None:
        #: Handlers by event name, then by the name they were attached under. Changed only in attach and detach.
        self._handlers: dict[str, dict[str, Handler]] = {}

    def attach(self, name: str, events: Iterable[str], handler: Handler) -> None:
        """Call `handler` for each of `events`, under a name by which it can be detached."""
        for event in events:
            self._handlers.setdefault(event, {})[name] = handler

    def detach(self, name: str) -> None:
        """Forget every handler attached under `name`."""
        for handlers in self._handlers.values():
            handlers.pop(name, None)

    def emit(
        self, event: str, measurements: Mapping[str, float] = _EMPTY, metadata: Mapping[str, Any] = _EMPTY
    ) -> None:
        """Tell the handlers of `event`, in the order in which they were attached."""
        handlers = self._handlers.get(event)
        if not handlers:
            return
        for name, handler in list(handlers.items()):
            try:
                handler(event, measurements, metadata)
            except Exception as error:  # a listener must not be able to break a commit
                handlers.pop(name, None)
                print(
                    f"perdure: telemetry handler {name!r} raised {error!r} on {event} and was detached", file=sys.stderr
                )
