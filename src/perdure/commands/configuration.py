"""The configuration: the environment over the project's file over the user's, each value with its source.

The user's file is `perdure/config.toml` where XDG_CONFIG_HOME says, else in ~/.config.
The project's is the nearest `perdure.toml` in the working directory or above it, up to the repository or home.
It may come from somebody else, so it cannot run code, offer tools that change something, or name the server that gets
your key, unless the user's file trusts its directory. What it wanted without that is kept in `withheld`, and no command
that works goes on without it silently.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from perdure.commands.settings import (
    IN_FILES,
    PATHS,
    SETTINGS,
    Setting,
    from_variable,
    looks_like_key,
    names_a_key,
    variable_of,
)
from perdure.commands.suggestions import did_you_mean
from perdure.errors import UsageError

PROJECT_FILE = "perdure.toml"


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """The effective value of a setting, and where it is from."""

    value: Any
    source: str


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """What a project's file wanted and may not."""

    name: str
    source: str
    why: str


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of settings that was looked for."""

    path: str
    found: bool
    trusted: bool


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is configured."""

    values: dict[str, Value]
    files: list[File]
    withheld: list[Withheld]
    #: Variables that are called PERDURE_ and mean nothing here.
    strange: list[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def given(self, name: str) -> Value | None:
        """A setting that somebody set; None where it has its default."""
        found = self.values[name]
        return None if found.source.startswith("default") else found

    def refuse_withheld(self) -> None:
        """Raise UsageError where work would go on without what the project's file wants."""
        for each in self.withheld:
            raise UsageError(f"{each.source} sets {each.name}, which {each.why}")


#: Variables of perdure that are no settings.
OTHER_VARIABLES = frozenset(
    {"PERDURE_DEBUG", "PERDURE_BASH_ISOLATION", "PERDURE_MODEL_KEY", "PERDURE_CHILD", "PERDURE_CALL"}
)


def load(environment: Mapping[str, str], directory: str) -> Configuration:
    """Read it all. Raises UsageError, which names the file and the line, and never a value that may be a key."""
    values = {name: Value(value=row.default, source="default") for name, row in SETTINGS.items()}
    withheld: list[Withheld] = []
    user = user_file(environment)
    there = os.path.lexists(user)
    values.update(_read(user, own=True, trusted=True, withheld=withheld) if there else {})
    files = [File(path=str(user), found=there, trusted=True)]
    project = project_file(environment, directory)
    if project is not None:
        trusted = str(project.parent) in {os.path.realpath(os.path.expanduser(each)) for each in values["trust"].value}
        files.append(File(path=str(project), found=True, trusted=trusted))
        values.update(_read(project, own=False, trusted=trusted, withheld=withheld))
        if not any(each.name == "store" for each in withheld):
            values["store"] = _beside(project, directory, values["store"])
    values.update(_from_environment(environment))
    known = {*(variable_of(each) for each in SETTINGS if each not in IN_FILES), *OTHER_VARIABLES}
    strange = sorted(name for name in environment if name.startswith("PERDURE_") and name not in known)
    return Configuration(values=values, files=files, withheld=withheld, strange=strange)


def _beside(project: Path, directory: str, store: Value) -> Value:
    """The store of a project is one, wherever in it somebody works: where nobody says which, it is beside its file.

    A file of somebody else says nothing, not where work is kept either.
    """
    if store.source != "default" or os.path.realpath(directory) == str(project.parent) or not _ours(project.stat()):
        return store
    return Value(value=str(project.parent / store.value), source=f"default, beside {project}")


def user_file(environment: Mapping[str, str]) -> Path:
    """Where the user's settings are, whether or not they are there."""
    above = environment.get("XDG_CONFIG_HOME", "")
    home = Path(above) if os.path.isabs(above) else Path(_home(environment)) / ".config"
    return home / "perdure" / "config.toml"


def project_file(environment: Mapping[str, str], directory: str) -> Path | None:
    """The nearest one, up to the repository or home."""
    start, home = Path(os.path.realpath(directory)), os.path.realpath(_home(environment))
    for folder in (start, *start.parents):
        found = folder / PROJECT_FILE
        if os.path.lexists(found):
            return found
        if str(folder) == home or os.path.exists(folder / ".git"):
            return None
    return None


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("HOME") or os.path.expanduser("~")


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Value]]:
    for name in SETTINGS:
        variable = variable_of(name)
        text = environment.get(variable, "")
        if not text or name in IN_FILES:
            continue
        if looks_like_key(text):
            raise UsageError(f"{variable} holds what looks like a key: {_KEYS_BELONG}")
        try:
            yield name, Value(value=from_variable(name, text), source=variable)
        except ValueError as error:
            raise UsageError(f"{variable}={text!r}: {error}") from None


_KEYS_BELONG = (
    "keys are only ever read from the environment variables of their services, such as OPENAI_API_KEY, "
    "and kept in no setting and no file; take it out, and if others could see it, replace it"
)


def _read(path: Path, *, own: bool, trusted: bool, withheld: list[Withheld]) -> dict[str, Value]:
    """The settings of one file that count."""
    text, why_not = _text_of(path, trusted=trusted)
    found: dict[str, Value] = {}
    for name, value in _parsed(path, text).items():
        source = f"{path}:{line_of(text, name)}"
        row = _row(name, value, source)
        try:
            read = row.read(value)
        except ValueError as error:
            raise UsageError(f"{source}: {name} = {value!r}: {error}") from None
        if name in PATHS:
            read = _path(read, None if own else path.parent)
        why = why_not or (None if own else _reserved(row, read, path, trusted=trusted))
        if why is not None:
            withheld.append(Withheld(name=name, source=source, why=why))
        else:
            found[name] = Value(value=read, source=source)
    return found


def _row(name: str, value: Any, source: str) -> Setting:
    """The row of a setting that is known and whose value may be shown."""
    if names_a_key(name) or looks_like_key(value):
        raise UsageError(f"{source}: {name} looks like a key: {_KEYS_BELONG}")
    if name not in SETTINGS:
        known = did_you_mean(name, SETTINGS) or f"; there are {', '.join(SETTINGS)}"
        raise UsageError(f"{source}: there is no setting {name!r}{known}")
    return SETTINGS[name]


def _text_of(path: Path, *, trusted: bool) -> tuple[str, str | None]:
    """The text of a file, and why nothing in it counts, if so."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
            raise UsageError(f"{path} is {kind}, and settings are read from a file: move it away or rename it")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 at byte {error.start}") from None
    if trusted and status.st_mode & stat.S_IWOTH:
        raise UsageError(f"anybody may change {path}, and it may name code to run: chmod o-w {path}")
    if not _ours(status):
        return text, f"does not count: the file belongs to user {status.st_uid}"
    return text, None


def _ours(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0)


def _path(text: str, start: Path | None) -> str:
    """A path, from where the project's file is; what names no path is as it was."""
    if text == "memory:" or "://" in text:
        return text
    scheme = "jsonl:" if text.startswith("jsonl:") else ""
    text = os.path.expanduser(text.removeprefix("sqlite:").removeprefix("jsonl:"))
    return scheme + (text if start is None else os.path.normpath(start / text))


def _reserved(row: Setting, value: Any, path: Path, *, trusted: bool) -> str | None:
    """Why a project's file may not set this, if so."""
    if row.reach == "never":
        return "counts only in your own file, see perdure config show"
    if row.reach == "any" or trusted or value == "memory:":
        return None
    if row.reach == "inside":
        inside = "://" not in value and Path(os.path.realpath(value.removeprefix("jsonl:"))).is_relative_to(path.parent)
        return None if inside else f"may only name a path below {path.parent} there{_trusting(path)}"
    if row.reach == "served" and "://" not in value:
        return None
    return f"counts only in a directory that you trust{_trusting(path)}"


def _trusting(path: Path) -> str:
    return f': read the file, then add trust = ["{path.parent}"] to your own file, see perdure config show'


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}") from None


def line_of(text: str, name: str) -> int:
    """The line that sets a key of the top table; 1 where it cannot be told."""
    key = re.compile(rf"""\s*(\[\s*)?["']?{re.escape(name)}["']?\s*(=|\.|\])""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if key.match(line)), 1)


def shown(value: Any) -> str:
    """A value for people."""
    if value is None or value == ():
        return "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, cast("tuple[Any, ...]", value)))
    return str(value)
