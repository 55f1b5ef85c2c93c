"""The environment of commands: a copy without secrets, set up so that nothing waits for a person (I77, I78)."""

from __future__ import annotations

from collections.abc import Mapping

#: Names that look like secrets are not handed on. Values are not looked at: a password inside a URL stays.
SECRET_ENDINGS = ("_KEY", "_TOKEN", "APIKEY")
SECRET_PARTS = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE")
SECRET_NAMES = frozenset({"KEY", "TOKEN"})

#: Files that a shell would run before the command.
STARTUP_NAMES = frozenset({"BASH_ENV", "ENV"})

#: No pager, no prompt, no editor: what would wait fails at once or takes the default. No colours: a model reads it.
UNATTENDED = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
    "GIT_TERMINAL_PROMPT": "0",
    "EDITOR": "false",
    "VISUAL": "false",
    "DEBIAN_FRONTEND": "noninteractive",
    "TERM": "dumb",
    "NO_COLOR": "1",
}


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is a secret, in any case."""
    upper = name.upper()
    return upper in SECRET_NAMES or upper.endswith(SECRET_ENDINGS) or any(part in upper for part in SECRET_PARTS)


def command_environment(own: Mapping[str, str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command sees: `own` without secrets, made unattended, and on top whatever was `given` for it."""
    kept = {name: value for name, value in own.items() if not is_secret(name) and name not in STARTUP_NAMES}
    return {**kept, **UNATTENDED, **(given or {})}
