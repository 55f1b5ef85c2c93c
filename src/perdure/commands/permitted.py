"""What `[permissions]`, `--allow` and `--ask` say, as one set of rules."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.commands.settings import GUARDED, Rules
from perdure.extensions.permissions import permissions
from perdure.harness.registry import Extension


def guard(allow: Sequence[str], ask: Sequence[str], configured: Rules | None, *, always: bool) -> Extension | None:
    """The extension that judges calls; None where nothing is to be judged, unless there is `always` one.

    What changes something in the working directory runs without being asked about only where that is allowed.
    """
    if not (always or ask or configured):
        return None
    rules = configured or Rules()
    offered = any(name in GUARDED for name in ask)
    return permissions(
        allow=[*allow, *rules.allow],
        ask=[*(name for name in ask if name not in GUARDED), *rules.ask],
        deny=rules.deny,
        inside=rules.inside or ("ask" if always or offered else "allow"),
        deadline=rules.deadline,
    )
