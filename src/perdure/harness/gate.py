"""What a call passes before any effect (H14): known and offered tool, arguments that parse and fit. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import msgspec

from perdure.errors import InvalidArguments
from perdure.harness.output import clip
from perdure.harness.supervision import Broke
from perdure.messages import StopReason, ToolCall, ToolErrorCode
from perdure.schema import Described
from perdure.values import clean_text


class Passed(msgspec.Struct, frozen=True):
    """The call may run with these arguments, as JSON."""

    arguments: dict[str, Any]


class Refused(msgspec.Struct, frozen=True):
    """The call does not run; `text` tells the model why and what to do."""

    code: ToolErrorCode
    text: str


#: What the model is told of an error, in characters.
MOST_TOLD = 4000


def judge(
    call: ToolCall, offered: Mapping[str, Described], gone: Container[str] = (), *, stop: StopReason, last: bool
) -> Passed | Refused:
    """Judge one call of an answer that ended for `stop`. Only the `last` one can be cut by the output limit.

    `gone` are tools that the model was shown, and that are not offered any more (H16).
    """
    name = clip(call.name, 100)
    if stop == "length" and last:
        return Refused(
            "truncated",
            f"The answer reached the output limit inside this call of {name}, so it was not run. Use smaller pieces.",
        )
    if stop == "refusal":
        return Refused("blocked", f"The answer was refused by its provider, so this call of {name} was not run.")
    described = offered.get(call.name)
    if described is None:
        names = clip(", ".join(sorted(offered)), MOST_TOLD) or "none"
        what = f"The tool {name!r} is no longer available" if call.name in gone else f"There is no tool named {name!r}"
        return Refused("tool_unavailable", f"{what}. Available: {names}.")
    if call.arguments is None:
        return Refused(
            "invalid_arguments",
            f"The arguments of {call.name} are not a JSON object: {clip(call.raw or '', 200)!r}. "
            f"It was not run. Send an object that fits {_schema(described)}.",
        )
    try:
        described.validate(call.arguments)
    except InvalidArguments as error:
        told = clip(str(error), MOST_TOLD)
        return Refused("invalid_arguments", f"{call.name} was not run. {told} The schema is {_schema(described)}.")
    except Exception as error:  # a validator of the tool's own types may raise anything
        told = f"Checking its arguments raised {type(error).__name__}."
        return Refused("invalid_arguments", f"{call.name} was not run. {told}")
    return Passed(call.arguments)


def _schema(described: Described) -> str:
    return clip(msgspec.json.encode(described.parameters).decode(), 1000)


def told(error: Exception) -> str:
    """An error as class and message; a cause that is no Exception speaks for itself."""
    if isinstance(error, Broke):
        return clip(clean_text(str(error)), MOST_TOLD)
    return clip(f"{type(error).__name__}: {message_of(error)}", MOST_TOLD)


def message_of(error: BaseException) -> str:
    """What an error says."""
    try:
        return clean_text(str(error))
    except Exception as second:  # an exception whose text cannot be made is still only a failed tool
        return f"(its message could not be made: {type(second).__name__})"
