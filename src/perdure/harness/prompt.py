"""The front of requests (H16): system prompt and offered tools, stored as they were sent, and changed by notes.

Providers cache the beginning of a request. So what stands at its front is rendered once for a conversation and stored;
what changes later is told in a note at that place of the transcript, and only a new head renders the front anew.
The decisions are pure: `wanted` says what the front would be now, `decide` what is to be done about it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from perdure.harness.hooks import PromptScope
from perdure.harness.installed import Installed
from perdure.harness.loadout import Loadout
from perdure.harness.registry import INSTRUCTIONS, Section
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Settings

#: In `noted`: it was said to be gone.
GONE = ""


class Wanted(msgspec.Struct, frozen=True):
    """What the front would be now. A text is None where its section failed: then it stays what it was."""

    sections: tuple[tuple[str, str | None], ...]
    tools: tuple[tuple[str, str], ...]  #: name and digest
    failed: tuple[tuple[str, Exception], ...] = ()


class Anew(msgspec.Struct, frozen=True):
    """The front is rendered anew."""


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """What a note says: texts by section, and by tool what became of it. GONE stands for what was taken away."""

    sections: dict[str, str]
    added: tuple[tuple[str, str], ...]  #: name and digest; they are sent after the others
    tools: dict[str, str]  #: by name of a tool that is at the front: its digest now


Decision: TypeAlias = Anew | Noted | None


def wanted(
    loadout: Loadout, installed: Installed, settings: Settings, offered: Sequence[str], conversation: int, now: float
) -> Wanted:
    """The sections and the tools of a conversation as of now. A section that fails is named with what it raised."""
    day = datetime.fromtimestamp(now, UTC).date().isoformat()
    scope = PromptScope(conversation=conversation, settings=settings, day=day)
    texts: list[tuple[str, str | None]] = []
    failed: list[tuple[str, Exception]] = []
    if settings.instructions:
        texts.append((INSTRUCTIONS, clean_text(settings.instructions)))
    for section in loadout.sections:
        try:
            text = _text(section, scope)
        except Exception as error:
            failed.append((section.name, error))
            text = None
        if text is None or text:
            texts.append((section.name, text))
    tools = tuple((name, installed.ready(name).digest) for name in offered)
    return Wanted(tuple(texts), tools, tuple(failed))


def _text(section: Section, scope: PromptScope) -> str:
    text = section.text if isinstance(section.text, str) else section.text(scope)
    if not isinstance(text, str):  # type: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"section {section.name!r} made a {type(text).__name__}, not a text")
    return clean_text(text)


#: What notes changed where there are none.
NOTHING: Mapping[str, Mapping[str, str]] = {"sections": {}, "tools": {}}


def decide(front: Mapping[str, Any] | None, head: int, reaches: bool, now: Wanted) -> Decision:
    """What is to be done so that the model knows of the wanted front.

    `front` is what is stored; `head` is the transcript's present head; `reaches` says that its notes are all there.
    """
    if not front or front.get("head", 0) != head or not reaches:
        return Anew()
    sections = _changed_sections(front, now.sections)
    sent: dict[str, str] = dict(front["tools"])
    noted: Mapping[str, str] = front.get("noted", NOTHING)["tools"]
    added: list[tuple[str, str]] = []
    tools: dict[str, str] = {}
    for name, digest in now.tools:
        if name not in sent:
            added.append((name, digest))
        elif noted.get(name, sent[name]) != digest:
            if _parameters(digest) != _parameters(sent[name]):
                return Anew()  # some providers hold calls to the declared parameters: a note cannot change them
            tools[name] = digest
    offered = {name for name, _ in now.tools}
    tools.update({name: GONE for name in sent if name not in offered and noted.get(name) != GONE})
    if not (sections or added or tools):
        return None
    return Noted(sections=sections, added=tuple(added), tools=tools)


def _changed_sections(front: Mapping[str, Any], now: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    base: dict[str, str] = dict(front["sections"])
    noted: Mapping[str, str] = front.get("noted", NOTHING)["sections"]
    changed: dict[str, str] = {}
    for name, text in now:
        if text is None:
            continue
        known = noted.get(name)
        if (base.get(name) != text) if known is None else (known != digest_of(text)):
            changed[name] = text
    there = {name for name, _ in now}
    changed.update({name: GONE for name in (*base, *noted) if name not in there and noted.get(name) != GONE})
    return changed


def rendered_front(now: Wanted, head: int, stale: Sequence[int]) -> dict[str, Any]:
    """The stored form of a front that is rendered anew. `stale` are the notes that the transcript keeps from before."""
    front: dict[str, Any] = {
        "sections": [[name, text] for name, text in now.sections if text is not None],
        "tools": [list(tool) for tool in now.tools],
    }
    if head:
        front["head"] = head
    if stale:
        front["stale"] = list(stale)
    return front


def system_of(front: Mapping[str, Any]) -> str:
    """The system prompt of a stored front."""
    return "\n\n".join(text for _, text in front["sections"])


def note(change: Noted, specs: Mapping[str, Any]) -> str:
    """What the model is told. `specs` are those of the tools whose description changed, by name."""
    said = ["[From here on, the instructions above are changed as follows.]"]
    for name, text in change.sections.items():
        said.append(f'Section "{name}" is taken back.' if text == GONE else f'Section "{name}" now is:\n{text}')
    if change.added:
        said.append(f"New tools: {', '.join(name for name, _ in change.added)}.")
    gone = [name for name, digest in change.tools.items() if digest == GONE]
    if gone:
        said.append(f"No longer available, calls of them are refused: {', '.join(gone)}.")
    for name, digest in change.tools.items():
        if digest != GONE:
            said.append(f"Tool {name} is available. Its description: {specs[name].description}")
    return "\n\n".join(said)


def digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _parameters(digest: str) -> str:
    """The part of a tool's digest that is of its parameters (`installed.digest`)."""
    return digest.partition(".")[0]
