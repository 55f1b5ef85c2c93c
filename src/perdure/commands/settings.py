"""What may be configured: one row for each setting, and how its value is read. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec

from perdure.sandboxes.environment import is_secret

#: Tools that change something: offered only where they are allowed. `read` is always offered.
GUARDED = ("bash", "write", "edit")

#: What a project file may set. `any`; `served`: what names no server by its address; `inside`: a path in the project;
#: `trusted`: all of these and more, in a directory that the user trusts; `never`: only the user's own file.
Reach = Literal["any", "served", "inside", "trusted", "never"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `read` turns a value of TOML into ours and raises ValueError with what it must be."""

    read: Callable[[Any], Any]
    about: str
    reach: Reach
    default: Any = None
    #: Whether the text of an environment variable is a list with commas.
    several: bool = False
    #: What the text of an environment variable is as a value of TOML.
    of_text: Callable[[str], Any] = str


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("it must be a text that is not empty")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("it must be a list of texts")
    return tuple(dict.fromkeys(_text(each) for each in cast("list[Any]", value)))


def _allowed(value: Any) -> tuple[str, ...]:
    names = _texts(value)
    for name in names:
        if name not in (*GUARDED, "read"):
            raise ValueError(f"there is no tool {name!r} to allow; there are {', '.join(GUARDED)}")
    return tuple(name for name in names if name != "read")


def _tools(value: Any) -> tuple[str, ...]:
    specs = _texts(value)
    for spec in specs:
        if not all(spec.partition(":")[::2]):
            raise ValueError(f"{spec!r} is no MODULE:NAME, such as shop.tools:pay")
    return specs


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        raise ValueError("it must be a number of seconds above 0, without quotes")
    found = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not math.isfinite(found) or found <= 0:
        raise ValueError("it must be a number of seconds above 0")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[permissions]`, see `perdure.permissions`."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    inside: Literal["allow", "ask", "deny"] | None = None
    deadline: float | None = None

    def __str__(self) -> str:
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        lists = {name: ", ".join(given.pop(name)) for name in ("allow", "ask", "deny")}
        return "; ".join(f"{name}: {value}" for name, value in {**lists, **given}.items() if value)


def _rules(value: Any) -> Rules:
    try:
        return msgspec.convert(value, Rules)
    except msgspec.ValidationError as error:
        raise ValueError(f"it must be a table of rules: allow, ask and deny are lists of texts ({error})") from None


SETTINGS: Mapping[str, Setting] = {
    "model": Setting(read=_text, about="who answers, as with --model", reach="served"),
    "store": Setting(read=_text, about="where work is kept", reach="inside", default=".perdure/store.db"),
    "session": Setting(read=_text, about="the session", reach="any", default="main"),
    "directory": Setting(read=_text, about="where tools work", reach="inside", default="."),
    "timeout": Setting(read=_seconds, about="a run over so many seconds is aborted", reach="any", of_text=_number),
    "allow": Setting(
        read=_allowed, about="tools that change something and are offered", reach="trusted", default=(), several=True
    ),
    "tools": Setting(
        read=_tools, about="your own tools: code that is imported", reach="trusted", default=(), several=True
    ),
    "permissions": Setting(
        read=_rules, about="which calls run, which are asked about, which never run", reach="trusted"
    ),
    "trust": Setting(
        read=_texts,
        about="directories whose perdure.toml may allow tools, load code and name a server",
        reach="never",
        default=(),
    ),
}

#: Settings that only stand in files.
IN_FILES = ("permissions", "trust")

#: Settings that are paths; one in a file is meant from where the file is.
PATHS = ("store", "directory")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"PERDURE_{name.upper()}"


def from_variable(name: str, text: str) -> Any:
    """The value of a setting as an environment variable has it. Raises ValueError."""
    row = SETTINGS[name]
    if row.several:
        return row.read([each.strip() for each in text.split(",") if each.strip()])
    return row.read(row.of_text(text))


#: How the keys of well-known services begin.
_BEGINNINGS = re.compile(
    r"\b(sk|rk|pk|gsk|xai|pplx)-[\w-]{12,}|\b(AIza|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|hf_|AKIA|eyJ)[\w.-]{12,}"
)
#: What is long, of one piece, and of letters and digits mixed, is no name that anybody chose.
_RANDOM = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[a-z])(?=[^\s]*[A-Z])[A-Za-z0-9_+=-]{28,}|[0-9a-f]{32,}")


def looks_like_key(value: object) -> bool:
    """Whether a value, or a part of it, looks like a key that must not be written down."""
    match value:
        case str():
            return bool(_BEGINNINGS.search(value) or _RANDOM.fullmatch(value))
        case list() | tuple():
            return any(map(looks_like_key, cast("list[Any]", value)))
        case dict():
            return any(map(looks_like_key, cast("dict[str, Any]", value).values()))
        case _:
            return False


def names_a_key(name: str) -> bool:
    """Whether the name of a setting says that its value is a secret."""
    return is_secret(name.replace("-", "_").replace(".", "_"))
