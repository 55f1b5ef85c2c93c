"""Permissions: which calls run, which are asked about, and which never run (H24).

Every part of a call is judged by itself: each command of a shell text, each file that it opens. The strictest part
decides. What cannot be told apart exactly is asked about.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from perdure.extensions.programs import read_all
from perdure.extensions.rules import CHANGES, READS, Rule, Verdict, absolute, remembered, rule_of
from perdure.extensions.script import Command, Script, Unclear
from perdure.harness.decisions import Ask
from perdure.harness.hooks import Block, CallToJudge
from perdure.harness.registry import Extension

#: Programs whose first argument says what they do.
SUBCOMMANDS = frozenset(
    {
        *("apt", "brew", "bun", "cargo", "docker", "gh", "git", "go", "helm", "kubectl", "npm", "pip", "pnpm"),
        *("podman", "poetry", "systemctl", "terraform", "uv", "yarn"),
    }
)
#: Programs that are remembered with any arguments: those that only look whatever they are told, and those that check
#: and test what is here. (`test`, `printf` and `rg` can be told to run something.)
COMMON = frozenset(
    {
        *("basename", "cat", "cmp", "cut", "date", "df", "diff", "dirname", "du", "echo", "false", "grep", "head"),
        *("id", "ls", "mypy", "ps", "pwd", "pytest", "realpath", "ruff", "stat", "tail", "tr", "true", "uname"),
        *("wc", "which", "whoami"),
    }
)
#: What changes where relative paths begin.
_MOVES = frozenset({"cd", "pushd", "popd"})
#: Variables that no program takes notice of where nobody exported them.
_HARMLESS = re.compile(r"(?!.*_proxy\Z)[a-z_][a-z0-9_]*\Z")
#: A longer command is not remembered as a whole, in characters.
MOST_REMEMBERED = 2000


class Part(msgspec.Struct, frozen=True):
    """How one part of a call is judged, why, and what `always` would allow."""

    verdict: Verdict
    why: str = ""
    always: Rule | None = None


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force for one call."""

    allow: tuple[Rule, ...]
    ask: tuple[Rule, ...]
    deny: tuple[Rule, ...]
    always: tuple[Rule, ...]
    inside: Verdict

    def whole(self, tool: str) -> Verdict | None:
        """What is said of every call of a tool."""
        for verdict, rules in (("deny", self.deny), ("ask", self.ask), ("allow", self.allow)):
            if any(rule.whole and rule.of(tool) for rule in rules):
                return cast("Verdict", verdict)
        return None

    def some(self, *tools: str) -> bool:
        """Whether some calls of these tools are not to run just so, and which ones has to be told."""
        return any(not rule.whole and any(map(rule.of, tools)) for rule in (*self.deny, *self.ask))


class Permissions:
    """A `before_tool` hook. Rules are texts, see `rule_of`; they are checked here: UsageError names the wrong one."""

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        ask: Sequence[str] = (),
        deny: Sequence[str] = (),
        inside: Verdict = "allow",
        deadline: float | None = None,
    ) -> None:
        self._texts = (tuple(allow), tuple(ask), tuple(deny))
        self._inside: Verdict = inside
        self._deadline = deadline
        _read(self._texts, "/")

    async def judge(self, seen: CallToJudge) -> Block | Ask | None:
        """Judge one call."""
        allow, ask, deny = _read(self._texts, seen.directory or "/")
        always = tuple(rule for rule in remembered(seen.allowed) if rule.of(seen.name))
        rules = Rules(allow=allow, ask=ask, deny=deny, always=always, inside=self._inside)
        parts = list(judged(seen, rules))
        denied = [part.why for part in parts if part.verdict == "deny"]
        if denied:
            return Block(f"not permitted: {'; '.join(dict.fromkeys(denied))}")
        asked = [part for part in parts if part.verdict == "ask"]
        text = seen.arguments.get("command") if seen.name == "bash" else None
        if not asked or (text is not None and any(rule.command == text for rule in always)):
            return None
        remember = _remember(asked, text)
        payload = {
            "why": list(dict.fromkeys(part.why for part in asked)),
            "always": [str(rule) for rule in remember],
        }
        return Ask(payload, deadline=self._deadline, remember=tuple(map(msgspec.to_builtins, remember)))


def permissions(
    *,
    allow: Sequence[str] = (),
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
    inside: Verdict = "allow",
    deadline: float | None = None,
) -> Extension:
    """An extension that judges every call by rules: the strictest that fits a part of it decides.

    A rule is a tool (`"pay"`), a tool with a pattern for files (`"edit src/**"`), or the first words of a command
    (`"bash git status"`). Where none fits: `bash` is asked about; reading in the working directory is allowed and
    elsewhere asked about; writing and editing is `inside` there and asked about elsewhere; other tools are allowed.
    After `deadline` seconds what nobody answered is denied. Raises UsageError for what is no rule.
    """
    hook = Permissions(allow=allow, ask=ask, deny=deny, inside=inside, deadline=deadline)
    return Extension(name="permissions", before_tool=[hook.judge])


@lru_cache(maxsize=64)
def _read(texts: tuple[tuple[str, ...], ...], directory: str) -> tuple[tuple[Rule, ...], ...]:
    return tuple(tuple(rule_of(text, directory) for text in each) for each in texts)


def _remember(asked: Sequence[Part], text: Any) -> list[Rule]:
    """What `always` would allow: every part that is asked about, or else exactly this command."""
    found = [part.always for part in asked if part.always is not None]
    if len(found) == len(asked):
        return list(dict.fromkeys(found))
    return [Rule(tool="bash", command=text)] if isinstance(text, str) and len(text) <= MOST_REMEMBERED else []


# -- parts of a call ----------------------------------------------------------------------------


def judged(seen: CallToJudge, rules: Rules) -> Iterator[Part]:
    """Every part of the call."""
    if seen.name == "bash":
        yield from _shell(seen, rules)
    elif seen.name in (*READS, *CHANGES):
        yield _file(seen, rules, seen.name, str(seen.arguments.get("path", "")), None)
    else:
        known = any(rule.whole for rule in rules.always)
        verdict = rules.whole(seen.name) or "allow"
        verdict = "allow" if verdict == "ask" and known else verdict
        yield Part(verdict, f"{seen.name} is asked about" if verdict == "ask" else seen.name, Rule(tool=seen.name))


def _shell(seen: CallToJudge, rules: Rules) -> Iterator[Part]:
    whole = rules.whole("bash")
    text = seen.arguments.get("command")
    try:
        if not isinstance(text, str):
            raise Unclear("it is no text")
        script = read_all(text)
    except Unclear as error:
        if whole == "allow" and rules.some("bash", *READS, *CHANGES):
            whole = None
        yield Part(whole or "ask", f"what it does cannot be told: {error}")
        return
    for command in script.commands:
        yield _command(command, rules, whole)
    yield from _opened(seen, rules, script, "allow" if whole == "allow" else None)
    for name in script.assigned:
        if whole != "allow" and not _HARMLESS.match(name):
            yield Part("ask", f"it sets {name}")


def _command(command: Command, rules: Rules, whole: Verdict | None) -> Part:
    """One command: forbidden by any rule that may mean it, allowed by one that names it."""
    name = _told(command)
    own = [rule for rule in rules.deny if rule.of("bash")]
    if any(rule.whole or rule.concerns(command) for rule in own):
        return Part("deny", name)
    always = suggestion(command)
    maybe = any(rule.concerns(command) is None for rule in own)
    if not maybe and not command.assigned and any(rule.fits(command) for rule in rules.always):
        return Part("allow")
    asked = [rule for rule in rules.ask if rule.of("bash") and (rule.whole or rule.concerns(command) is not False)]
    if maybe or asked:
        return Part("ask", name, always)
    named = not command.assigned and any(rule.of("bash") and rule.fits(command) for rule in rules.allow)
    return Part("allow") if named or whole == "allow" else Part("ask", name, always)


def _opened(seen: CallToJudge, rules: Rules, script: Script, default: Verdict | None) -> Iterator[Part]:
    """Files that are opened by redirections: as if they were written or read."""
    moves = any(command.words[0] in _MOVES for command in script.commands)
    for tool, paths in (("write", script.writes), ("read", script.reads)):
        for path in paths:
            if path is not None and (os.path.isabs(path) or not moves):
                yield _file(seen, rules, tool, path, default)
            elif default is None or rules.some(tool):
                yield Part("ask", f"it opens a file that is only known when it runs, to {tool}")


def _file(seen: CallToJudge, rules: Rules, tool: str, path: str, default: Verdict | None) -> Part:
    """One file, wherever symbolic links lead."""
    named = absolute(path, seen.directory)
    real = os.path.realpath(named)
    why = f"{tool} {path}" if named == real else f"{tool} {path}, which is {real}"
    for verdict, those in (("deny", rules.deny), ("ask", rules.ask)):
        if any(rule.of(tool) and (rule.whole or rule.covers(named, real)) for rule in those):
            known = verdict == "ask" and any(rule.covers(real) for rule in rules.always)
            return Part("allow") if known else Part(cast("Verdict", verdict), why, _place(seen, tool, real))
    given = (*rules.allow, *rules.always)
    if any(rule.of(tool) and (rule.whole or rule.covers(real)) for rule in given):
        return Part("allow")
    if _within(real, seen.directory) or (tool in READS and _within(real, seen.scratch)):
        default = default or (rules.inside if tool in CHANGES else "allow")
    return Part(default or "ask", why, _place(seen, tool, real))


def _within(real: str, directory: str) -> bool:
    root = os.path.realpath(directory) if directory else None
    return root is not None and (real == root or real.startswith(root.rstrip("/") + "/"))


def _place(seen: CallToJudge, tool: str, real: str) -> Rule | None:
    """What `always` allows of files: everything in the working directory, else this one."""
    if tool != seen.name or any(sign in real for sign in "*?"):
        return None
    if _within(real, seen.directory) and not any(sign in seen.directory for sign in "*?"):
        return Rule(tool=tool, path=os.path.join(os.path.realpath(seen.directory), "**"))
    return Rule(tool=tool, path=real)


def suggestion(command: Command) -> Rule | None:
    """What `always` allows of a command: the program and what it is told to do, or exactly these words."""
    program, *rest = command.words
    if program is None or command.assigned:
        return None
    if program in SUBCOMMANDS and rest and rest[0] is not None and re.fullmatch(r"[a-z][a-z0-9-]*", rest[0]):
        return Rule(tool="bash", words=(program, rest[0]))
    if program in COMMON:
        return Rule(tool="bash", words=(program,))
    words = tuple(word for word in command.words if word is not None)
    return Rule(tool="bash", words=words, exact=True) if len(words) == len(command.words) else None


def _told(command: Command) -> str:
    words = [f"{name}=…" for name in command.assigned] + ["…" if word is None else word for word in command.words]
    return " ".join(words)[:500]
