"""What a call passes before any effect (H14): known and offered tool, arguments that parse and fit. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.errors import InvalidArguments
from perdure.harness.output import clip
from perdure.messages import ToolCall, ToolErrorCode
from perdure.schema import Described


class Passed(msgspec.Struct, frozen=True):
    """The call may run with these arguments, as JSON."""

    arguments: dict[str, Any]


class Refused(msgspec.Struct, frozen=True):
    """The call does not run; `text` tells the model why and what to do."""

    code: ToolErrorCode
    text: str


def judge(call: ToolCall, offered: Mapping[str, Described], *, cut: bool) -> Passed | Refused:
    """Judge one call. `cut`: the answer ended at the output limit inside this call, or might have."""
    if cut:
        return Refused(
            "truncated",
            f"The answer reached the output limit inside this call of {call.name}, so it was not run. Use smaller pieces.",
        )
    described = offered.get(call.name)
    if described is None:
        names = ", ".join(sorted(offered)) or "none"
        return Refused("tool_unavailable", f"There is no tool named {clip(call.name, 100)!r}. Available: {names}.")
    if call.arguments is None:
        return Refused(
            "invalid_arguments",
            f"The arguments of {call.name} are not a JSON object: {clip(call.raw or '', 200)!r}. "
            f"It was not run. Send an object that fits {_schema(described)}.",
        )
    try:
        described.validate(call.arguments)
    except InvalidArguments as error:
        return Refused("invalid_arguments", f"{call.name} was not run. {error} The schema is {_schema(described)}.")
    return Passed(call.arguments)


def _schema(described: Described) -> str:
    return clip(msgspec.json.encode(described.parameters).decode(), 1000)
