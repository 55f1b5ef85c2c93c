"""What `doctor` looks at. Each look says what it found in one line, and whether that is broken."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import apsw
import msgspec

from perdure.app.adapters import adapter
from perdure.app.handing_in import described
from perdure.app.opening import store as open_store
from perdure.backends.sqlite_schema import SAFE_SQLITE
from perdure.clock import Clock
from perdure.commands.choosing import Remembered
from perdure.commands.chosen import check_model, chosen, keys, servers
from perdure.commands.configuration import Configuration
from perdure.commands.options import meaningless
from perdure.commands.private import is_open_to_others, kept_files
from perdure.commands.suggestions import did_you_mean
from perdure.errors import NotFound, PerdureError
from perdure.providers.choices import missing
from perdure.sandboxes.probing import Finding as Probed
from perdure.sandboxes.probing import probe
from perdure.storage import SessionInfo
from perdure.tasks.inspection import Inspection

#: A log that is larger was not copied into the database for long: somebody reads all the time.
LARGE_LOG = 64 << 20


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report."""

    what: str
    state: Literal["ok", "note", "broken"]
    says: str


def platform_here() -> Finding:
    """Python, and what it runs on."""
    version = ".".join(map(str, sys.version_info[:3]))
    says = f"Python {version} on {platform.system()} {platform.release()} ({platform.machine()}), {sys.executable}"
    return Finding(what="platform", state="ok" if sys.version_info >= (3, 11) else "broken", says=says)


def configured(settings: Configuration) -> Iterator[Finding]:
    """Files of settings, and what does not count in them."""
    there = [file.path + ("" if file.trusted else " (not trusted)") for file in settings.files if file.found]
    given = [name for name in settings.values if settings.given(name)]
    says = f"{', '.join(there) or 'no file'}; set: {', '.join(given) or 'nothing'} (perdure config show)"
    yield Finding(what="settings", state="ok", says=says)
    for each in settings.withheld:
        says = f"{each.source} sets {each.name}, which {each.why}; perdure run, chat and resume refuse to work here"
        yield Finding(what="settings", state="broken", says=says)
    for name in settings.strange:
        yield Finding(what="settings", state="note", says=meaningless(name))


async def model(
    flag: str | None, settings: Configuration, environment: Mapping[str, str], clock: Clock
) -> list[Finding]:
    """Who would answer in a new conversation, and why."""
    before: Remembered | None = None
    choice = await chosen(flag, settings, before, environment)
    try:
        check_model(choice.name, clock)
    except PerdureError as error:
        return [Finding(what="model", state="broken", says=f"{choice.name} ({choice.why}): {error}")]
    state = "note" if choice.by == "demo" else "ok"
    found = [Finding(what="model", state=state, says=choice.line)]
    present = [key.variable for key in keys(environment)]
    answering = [f"{each.name} at {each.url}" for each in await servers(environment)]
    says = f"keys: {', '.join(present) or 'none'}; local servers: {', '.join(answering) or 'none'}"
    return [*found, Finding(what="models", state="ok", says=says)]


def extras() -> Iterator[Finding]:
    """The libraries of vendors."""
    lacking = {name: missing(name) for name in ("openai", "anthropic", "google")}
    there = [name for name, command in lacking.items() if command is None]
    commands = [command for command in lacking.values() if command is not None]
    says = f"installed: {', '.join(there) or 'none'}" + (f"; to add: {', '.join(commands)}" if commands else "")
    yield Finding(what="extras", state="ok", says=says)


def isolation() -> Iterator[Finding]:
    """How commands are kept together, and why not better."""
    findings = probe()
    asked = os.environ.get("PERDURE_BASH_ISOLATION", "")
    works = [each for each in findings if each.works and asked in ("", each.strategy.name)]
    for each in findings:
        if each.works:
            break
        why = f"{each.strategy.name} does not work here: {each.reason}" + (f" ({each.hint})" if each.hint else "")
        yield Finding(what="isolation", state="note", says=why)
    if not works:
        says = _no_isolation(asked, findings)
        yield Finding(what="isolation", state="broken", says=says)
        return
    first = works[0]
    reason = "PERDURE_BASH_ISOLATION asks for it" if asked else "the first one that works"
    state = "note" if first.strategy.kind == "group" else "ok"
    yield Finding(what="isolation", state=state, says=f"{first.strategy.name}: {first.strategy.label}; {reason}")


def _no_isolation(asked: str, findings: Sequence[Probed]) -> str:
    if not asked:
        return "no strategy works here"
    for each in findings:
        if each.strategy.name == asked:
            return f"PERDURE_BASH_ISOLATION={asked!r} does not work here: {each.reason}"
    there = ", ".join(each.strategy.name for each in findings if each.works)
    near = did_you_mean(asked, [each.strategy.name for each in findings])
    return f"PERDURE_BASH_ISOLATION={asked!r} names no strategy{near}; what works here is {there or 'none'}"


def sqlite_here() -> Iterator[Finding]:
    """The SQLite that apsw brings."""
    version = apsw.sqlite_lib_version()
    safe = tuple(map(int, version.split("."))) >= SAFE_SQLITE
    least = ".".join(map(str, SAFE_SQLITE))
    says = f"SQLite {version} with apsw {apsw.apsw_version()}: " + (
        f"has the fix of the write-ahead log ({least})"
        if safe
        else f"can corrupt a store that two connections use; install an apsw with SQLite {least} or newer"
    )
    yield Finding(what="sqlite", state="ok" if safe else "broken", says=says)


async def store_health(store: str, clock: Clock) -> list[Finding]:
    """Whether the store can be read, its size, who works in it, and what waits."""
    if store == "memory:":
        return [Finding(what="store", state="ok", says="memory: keeps nothing")]
    backend = "jsonl" if store.startswith("jsonl:") else "sqlite"
    path = store.removeprefix(f"{backend}:").removeprefix("//")
    if not _there(path):
        return [Finding(what="store", state="ok", says=f"{path} is not there yet: the first run makes it")]
    try:
        checked = adapter(f"storage-check:{backend}")(path, quick=True)
        found = [_file_finding(path, checked) if backend == "sqlite" else _lines_finding(checked)]
        async with open_store(store, mode="read", clock=clock) as opened:
            for info in await opened.sessions():
                found += _session(info, await opened.look(info.key).inspect())
    except (PerdureError, NotFound) as error:
        return [Finding(what="store", state="broken", says=str(error))]
    return found


def _there(path: str) -> bool:
    return os.path.exists(path)


def _file_finding(path: str, checked: Any) -> Finding:
    if not checked.healthy:
        says = f"{checked.path}: {checked.damage[0].what} (perdure db check says everything)"
        return Finding(what="store", state="broken", says=says)
    log = os.path.getsize(f"{path}-wal") if os.path.exists(f"{path}-wal") else 0
    says = (
        f"{checked.path}: its pages fit together, schema {checked.schema}, {checked.bytes:,} bytes, "
        f"a log of {log:,} bytes; a returned commit survives a power loss (durability power)"
    )
    return Finding(what="store", state="ok" if log < LARGE_LOG else "note", says=says)


def _lines_finding(checked: Any) -> Finding:
    if not checked.healthy:
        says = f"{checked.path}: {checked.damage[0].what} (perdure db check says everything)"
        return Finding(what="store", state="broken", says=says)
    says = (
        f"{checked.path}: its files are whole, format {checked.schema}, {checked.bytes:,} bytes; "
        "a returned commit survives a power loss (durability power)"
    )
    return Finding(what="store", state="ok", says=says)


def _session(info: SessionInfo, inspection: Inspection) -> Iterator[Finding]:
    owner = f"owned by {described(info.owner)}" if info.owner else "no live owner"
    held = [task for task in inspection.tasks if task.state == "held"]
    parts = [f"{info.key!r}: {owner}", f"{len(inspection.tasks)} live tasks", f"{len(inspection.questions)} questions"]
    waiting = sum(item.state == "queued" for item in inspection.submissions)
    says = ", ".join([*parts, f"{waiting} waiting inputs", f"{len(held)} held"])
    yield Finding(what="session", state="note" if held else "ok", says=says)
    for task in held:
        says = f"task {task.id} of {info.key!r} is held ({task.reason}): {task.detail}; perdure inspect says what to do"
        yield Finding(what="session", state="note", says=says)


def modes(store: str) -> Iterator[Finding]:
    """That nobody else may read what is kept."""
    names = kept_files(store)
    loose = [name for name in names if is_open_to_others(name)]
    if loose:
        listed = " ".join(map(str, loose))
        yield Finding(what="modes", state="broken", says=f"others may look at what is kept: chmod go= {listed}")
    elif any(name.exists() for name in names):
        yield Finding(what="modes", state="ok", says="the store's files are for their owner only")
