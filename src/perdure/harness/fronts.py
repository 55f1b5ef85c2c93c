"""Keeping the front of a conversation's requests: staged where a request is pinned, read where it is sent (H16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from perdure.harness.consult import note_failure
from perdure.harness.installed import Installed
from perdure.harness.loadout import Loadout, uses_of
from perdure.harness.prompt import Anew, Noted, Wanted, decide, digest_of, note, rendered_front, system_of, wanted
from perdure.harness.stored import FRONT, PROMPT, TOOLS
from perdure.messages import user
from perdure.model import ToolSpec
from perdure.records import ConversationId, Entry
from perdure.session.reading import snapshot
from perdure.session.transaction import Transaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness, Settings


class Front(msgspec.Struct, frozen=True):
    """What stands at the front of a request. `stale` are entries with notes that it already took in."""

    system: str
    tools: tuple[ToolSpec, ...]
    stale: frozenset[int] = frozenset()


async def stage_front(
    harness: Harness,
    tx: Transaction,
    conversation: ConversationId,
    settings: Settings,
    loadout: Loadout,
    offered: list[str],
) -> str:
    """Stage what changed of the front since it was sent last, in the commit that pins a request. Mostly nothing.

    Returns the system prompt of that request.
    """
    installed = harness.installed
    now = wanted(loadout, installed, settings, offered, conversation, tx.now)
    for name, error in now.failed:
        harness.telemetry.emit(
            "perdure.hook.failed", metadata={"hook": "section", "name": name, "error": type(error).__name__}
        )
        await note_failure(tx, conversation, f"section {name}", error)
    stored = await tx.snapshot(FRONT, conversation)
    head = await _head(tx, conversation)
    match decide(stored, head, await _reaches(tx, conversation, stored), now):
        case Anew():
            await _anew(tx, conversation, installed, now, head)
        case Noted() as change:
            await _noted(tx, conversation, installed, change)
        case None:
            pass
    return await system_in(tx, conversation)


async def _head(tx: Transaction, conversation: ConversationId) -> int:
    """The head of the active transcript, as this commit leaves it; 0 where nothing was cut off."""
    for entry in reversed(tx.entries):
        if entry.conversation == conversation and entry.head is not None:
            return entry.id
    if _is_new(tx, conversation):
        return 0
    head = (await tx.transcript(conversation)).head
    return 0 if head is None else head.id


def _is_new(tx: Transaction, conversation: ConversationId) -> bool:
    """This commit makes it, and not as a fork: there is nothing to read of it."""
    made = tx.candidate.conversations.get(conversation)
    return made is not None and made.parent is None and conversation not in tx.memory.tip.conversations


async def _reaches(tx: Transaction, conversation: ConversationId, stored: Any) -> bool:
    """Whether the conversation sees the newest note. A fork may leave its parent between a commit's entries."""
    last: int = stored.get("last", 0) if stored else 0
    point = (await tx.use(conversation)).parent if last else None
    return point is None or not point.entry < last < conversation


async def _anew(tx: Transaction, conversation: ConversationId, installed: Installed, now: Wanted, head: int) -> None:
    stale: list[int] = []
    if not _is_new(tx, conversation):
        kept: list[Entry] = (await tx.transcript(conversation)).entries
        stale = [entry.id for entry in kept if entry.kind == PROMPT.name]
    await _keep(tx, installed, [digest for _, digest in now.tools], [name for name, _ in now.tools])
    draft = await tx.doc(FRONT, conversation)
    front = rendered_front(now, head, stale)
    for name in [name for name in draft if name not in front]:
        del draft[name]
    for name, value in front.items():
        draft[name] = value


async def _noted(tx: Transaction, conversation: ConversationId, installed: Installed, change: Noted) -> None:
    await _keep(tx, installed, [digest for _, digest in change.added], [name for name, _ in change.added])
    described = [name for name, digest in change.tools.items() if digest]
    text = note(change, {name: installed.ready(name).spec for name in described})
    sections = {name: digest_of(text) if text else "" for name, text in change.sections.items()}
    added = [list(tool) for tool in change.added]
    data = {"sections": sections, "added": added, "tools": change.tools}
    entry = tx.append(conversation, PROMPT, messages=(user(text),), data=data)
    draft = await tx.doc(FRONT, conversation)
    draft["last"] = entry.id
    for tool in added:
        draft["tools"].append(tool)
    if "noted" not in draft:
        draft["noted"] = {"sections": {}, "tools": {}}
    noted = draft["noted"]
    for name, digest in sections.items():
        noted["sections"][name] = digest
    for name, digest in change.tools.items():
        noted["tools"][name] = digest


async def _keep(tx: Transaction, installed: Installed, digests: list[str], names: list[str]) -> None:
    """Keep the descriptions of tools that are sent, once for a session: their code may be gone when they are needed."""
    known: dict[str, Any] = await tx.snapshot(TOOLS) or {}
    missing = {digest: name for digest, name in zip(digests, names, strict=True) if digest not in known}
    if missing:
        draft = await tx.doc(TOOLS)
        for digest, name in missing.items():
            draft[digest] = msgspec.to_builtins(installed.ready(name).spec)


async def system_in(tx: Transaction, conversation: ConversationId) -> str:
    """The system prompt of the conversation's next request, as this commit leaves it."""
    stored = await tx.snapshot(FRONT, conversation)
    return system_of(stored) if stored else ""


async def front_of(harness: Harness, conversation: ConversationId, installed: Installed, pin: dict[str, Any]) -> Front:
    """The front of a pinned request, as it was stored; where an older version pinned it, as it would be now."""
    memory = harness.line.memory
    loaded = await memory.loaded(("conversation", conversation), (FRONT.kind, ""))
    stored = await snapshot(harness.line, FRONT, conversation, "") if loaded is None else loaded.value
    if not stored:
        settings = await harness.published_settings(conversation)
        offered = installed.offered(pin["tools"])
        now = wanted(installed.loadout(uses_of(pin)), installed, settings, offered, conversation, pin["began"])
        return Front(system_of(rendered_front(now, 0, ())), installed.specs(offered))
    tools: list[ToolSpec] = []
    for name, digest in stored["tools"]:
        spec = await _spec(harness, installed, name, digest)
        if spec is not None:
            tools.append(spec)
    return Front(system_of(stored), tuple(tools), frozenset(stored.get("stale", ())))


async def _spec(harness: Harness, installed: Installed, name: str, digest: str) -> ToolSpec | None:
    """A tool as it was sent: by the code where that still says the same, else as it was kept."""
    ready = installed.ready(name) if name in installed.tools else None
    if ready is not None and ready.digest == digest:
        return ready.spec
    known = await harness.line.memory.loaded(("session", 0), (TOOLS.kind, ""))
    kept = None if known is None else known.value.get(digest)
    if kept is None:  # it cannot be: what was sent was kept in the same commit
        return None if ready is None else ready.spec
    return msgspec.convert(kept, ToolSpec)
