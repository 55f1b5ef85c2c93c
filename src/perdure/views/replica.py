"""A reader's own copy of a view, made from its frames."""

from __future__ import annotations

from typing import Any

from perdure.deltas import Op, apply, as_json_patch
from perdure.errors import MissedFrames
from perdure.records import Seq
from perdure.surface.frames import Frame, Whole


class Replica:
    """Equals the view as of `seq` once each of its frames was applied, in order. The value is not to be changed."""

    def __init__(self) -> None:
        self.value: Any = None
        #: The commit of the newest frame; None before the first.
        self.seq: Seq | None = None

    def apply(self, frame: Frame) -> None:
        """Follow a frame. Raises MissedFrames, and changes nothing, for deltas that do not follow the newest one."""
        if isinstance(frame, Whole):
            self.value = frame.view
        else:
            self._check(frame.after)
            self.value = apply(self.value, frame.ops)
        self.seq = frame.seq

    def json_patch(self, frame: Frame) -> list[Op]:
        """What `apply` would do, as a JSON Patch (RFC 6902) of the present value. Raises as `apply`.

        A whole view replaces the root. Of deltas all operations are those of RFC 6902 but two: `append` becomes the
        `replace` of the whole text, `truncate` the removals of first items, or a `replace` where that is shorter.
        """
        if isinstance(frame, Whole):
            return [{"op": "replace", "path": "", "value": frame.view}]
        self._check(frame.after)
        return as_json_patch(self.value, frame.ops)

    def _check(self, after: Seq) -> None:
        if self.seq is None:
            raise MissedFrames(f"these deltas follow commit {after}, and there was no whole view yet: begin with one")
        if after != self.seq:
            raise MissedFrames(
                f"these deltas follow commit {after}, the replica stands at {self.seq}: watch anew, from a whole view"
            )
