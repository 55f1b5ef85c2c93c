"""What a hook may ask before a call runs, and what may be answered: values that are JSON in the store (K37)."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import msgspec

from perdure.errors import UsageError
from perdure.records import decode_json
from perdure.values import clean


class Allow(
    msgspec.Struct, frozen=True, tag="allow", tag_field="decision", omit_defaults=True, forbid_unknown_fields=True
):
    """The call runs. `always`: calls like it are not asked about in this conversation any more."""

    always: bool = False


class Deny(
    msgspec.Struct, frozen=True, tag="deny", tag_field="decision", omit_defaults=True, forbid_unknown_fields=True
):
    """The call does not run; the model is told why."""

    reason: str = ""


class Edit(msgspec.Struct, frozen=True, tag="edit", tag_field="decision", forbid_unknown_fields=True):
    """The call runs with these arguments, once every hook has judged them too."""

    arguments: dict[str, Any]


Decision: TypeAlias = Allow | Deny | Edit

#: What a question is answered with that nobody answered in time.
NOT_IN_TIME = Deny("nobody answered in time")


class Ask(msgspec.Struct, frozen=True):
    """A hook's answer: somebody has to decide, see `Allow`, `Deny` and `Edit`.

    `payload` is what whoever decides is shown beside the call: a text or other JSON.
    After `deadline` seconds, where there is one, the answer is `default`; its default is to deny.
    `remember` is what `Allow(always=True)` adds to what later calls of the conversation are judged by
    (`CallToJudge.allowed`), as JSON; without it the question cannot be answered for good.
    """

    payload: Any = None
    deadline: float | None = None
    default: Decision | bool = NOT_IN_TIME
    remember: tuple[Any, ...] = ()


class AskedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The call that an approval is about. `arguments` are those that it would run with; `hook` is who asks."""

    name: str
    arguments: dict[str, Any]
    hook: str = ""
    remember: list[Any] = []


_HOW = (
    'answer allow, always, deny [REASON] or edit {"name": "value"}, '
    "in code perdure.Allow(), perdure.Deny() or perdure.Edit(), or true and false"
)
_WORDS = {
    **dict.fromkeys(("allow", "y", "yes"), Allow()),
    **dict.fromkeys(("always", "a"), Allow(always=True)),
    **dict.fromkeys(("deny", "n", "no"), Deny()),
}


def decision_of(value: object) -> Decision:
    """The decision that a value means: one itself, its JSON, true or false, or a text as people type it.

    Raises UsageError that says what can be answered.
    """
    if isinstance(value, Allow | Deny | Edit):
        value = msgspec.to_builtins(value)
    if isinstance(value, bool):
        return Allow() if value else Deny()
    if isinstance(value, str):
        return _typed(value.strip())
    try:
        return msgspec.convert(clean(value), Decision)
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"{str(value)[:200]!r} decides no call ({error}): {_HOW}") from None


def _typed(text: str) -> Decision:
    """`y`, `always`, `no, use git stash instead`, `edit {"command": "ls"}`."""
    if text.startswith("{"):
        return decision_of(_json(text))
    word = text.split(maxsplit=1)[0].rstrip(",.:;!").lower() if text else ""
    rest = text.split(maxsplit=1)[1].strip() if len(text.split(maxsplit=1)) > 1 else ""
    if word in ("edit", "e") and rest:
        return decision_of({"decision": "edit", "arguments": _json(rest)})
    found = _WORDS.get(word)
    if isinstance(found, Deny):
        return Deny(rest)
    if found is None or rest:
        raise UsageError(f"{text[:200]!r} decides no call: {_HOW}")
    return found


def _json(text: str) -> Any:
    try:
        return decode_json(text.encode())
    except (ValueError, UsageError) as error:
        raise UsageError(f"{text[:200]!r} is no JSON ({error}): {_HOW}") from None


def stored(decision: Decision) -> dict[str, Any]:
    """The decision as it is kept."""
    return cast("dict[str, Any]", clean(msgspec.to_builtins(decision)))
