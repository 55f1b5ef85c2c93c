"""Rules of permissions: what a call is compared with. Nothing here looks at the world."""

from __future__ import annotations

import os.path
import re
from functools import lru_cache
from typing import Any, Literal

import msgspec

from perdure.errors import UsageError
from perdure.extensions.script import Command, Unclear
from perdure.extensions.shell import read_script

Verdict = Literal["allow", "ask", "deny"]

#: Tools whose calls name a file; what a redirection opens is judged as these too.
READS, CHANGES = ("read",), ("write", "edit")


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which calls are meant: of this tool, and of these only those that fit what else is said.

    `words` are the leading words of a program's command, `exact` that there are no others;
    `command` is the whole text of a shell command; `path` is a pattern for files.
    """

    tool: str
    words: tuple[str, ...] = ()
    exact: bool = False
    command: str | None = None
    path: str | None = None

    @property
    def whole(self) -> bool:
        """Every call of the tool is meant."""
        return not self.words and self.command is None and self.path is None

    def of(self, tool: str) -> bool:
        return self.tool in (tool, "*")

    def fits(self, command: Command) -> bool:
        """Whether it names this command."""
        own, given = self.words, command.words
        return bool(own) and given[: len(own)] == own and (not self.exact or len(given) == len(own))

    def concerns(self, command: Command) -> bool | None:
        """Whether it is meant by a rule that forbids: behind options and a path too; None where it may be."""
        program, *given = command.words
        own = self.words
        if not own or os.path.basename(own[0]) != os.path.basename(program or ""):
            return False
        if given and given[0] is not None and not given[0].startswith("-"):
            given = given[: len(own) - 1]
        left = iter(given)
        if all(word in left for word in own[1:]):
            return True
        return None if None in given else False

    def covers(self, *paths: str) -> bool:
        """Whether it names one of these paths."""
        return self.path is not None and any(_pattern(self.path).fullmatch(each) for each in paths)

    def __str__(self) -> str:
        """As a person is told what would be allowed."""
        if self.command is not None:
            return f"{self.tool}: exactly {self.command!r}"
        if self.words:
            shown = " ".join(map(_shown, self.words))
            return f"{self.tool}: {shown}" + ("" if self.exact else " with any arguments")
        if self.path is not None:
            return f"{self.tool}: {self.path}"
        return f"{self.tool}: every call"


def rule_of(text: str, directory: str) -> Rule:
    """A rule as it is written down: `TOOL`, `TOOL PATH-PATTERN`, or `bash WORD…`. Raises UsageError."""
    tool, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    if not re.fullmatch(r"\*|[A-Za-z0-9_-]{1,64}", tool):
        raise UsageError(f"permission rule {text!r}: it begins with the name of a tool, as in 'bash git status'")
    if not rest:
        return Rule(tool=tool)
    if tool == "bash":
        return Rule(tool=tool, words=_words(text, rest))
    if tool not in (*READS, *CHANGES):
        raise UsageError(f"permission rule {text!r}: calls of {tool} are judged as they are: write only {tool!r}")
    return Rule(tool=tool, path=absolute(os.path.expanduser(rest), directory))


def _words(text: str, rest: str) -> tuple[str, ...]:
    try:
        script = read_script(rest)
    except Unclear as error:
        raise UsageError(f"permission rule {text!r}: {error}") from None
    words = tuple(word for command in script.commands for word in command.words if word is not None)
    simple = not (script.writes or script.reads or script.assigned)
    if len(script.commands) != 1 or not simple or words != script.commands[0].words or script.commands[0].assigned:
        raise UsageError(
            f"permission rule {text!r}: write the first words of one command, without operators and patterns, "
            "as in 'bash git status'"
        )
    return words


def absolute(path: str, directory: str) -> str:
    """The path from the root, without looking at what is there."""
    return os.path.normpath(os.path.join(directory or "/", path))


@lru_cache(maxsize=256)
def _pattern(glob: str) -> re.Pattern[str]:
    """`*` and `?` stay within a name, `**` crosses directories, and stands for none too."""
    parts = re.split(r"(/\*\*/|/\*\*\Z|\*\*|\*|\?)", glob)
    known = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    made = [
        "/(?:.*/)?" if part == "/**/" else "(?:/.*)?" if part == "/**" else known.get(part, re.escape(part))
        for part in parts
    ]
    return re.compile("".join(made), re.DOTALL)


def _shown(word: str) -> str:
    return word if re.fullmatch(r"[\w./=:@%+,-]+", word) else repr(word)


def remembered(values: tuple[Any, ...]) -> list[Rule]:
    """The rules that were allowed for good. What another version wrote and this one does not know allows nothing."""
    found: list[Rule] = []
    for value in values:
        try:
            found.append(msgspec.convert(value, Rule))
        except msgspec.ValidationError:
            continue
    return found
