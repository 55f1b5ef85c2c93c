"""Which model answers where only a key is set, and which packages a vendor needs. Imports nothing of any vendor."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

import msgspec


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A key in the environment, and the model that it stands for."""

    key: str  #: the name of the environment variable
    model: str  #: as `perdure.open(model=…)` takes it


#: In this order: the first key that is set decides.
KEYS: tuple[Choice, ...] = (
    Choice(key="ANTHROPIC_API_KEY", model="anthropic:claude-sonnet-5-5"),
    Choice(key="OPENAI_API_KEY", model="openai:gpt-6.1-terra"),
    Choice(key="GOOGLE_API_KEY", model="google:gemini-3.8-flash"),
    Choice(key="GEMINI_API_KEY", model="google:gemini-3.8-flash"),
)

#: What an extra of the package brings, by the module that is missing without it.
_MODULES: Mapping[str, tuple[str, ...]] = {
    "openai": ("pydantic_ai", "genai_prices", "openai"),
    "anthropic": ("pydantic_ai", "genai_prices", "anthropic"),
    "google": ("pydantic_ai", "genai_prices", "google.genai"),
}


def by_key(environment: Mapping[str, str]) -> Choice | None:
    """The choice of the first key that is set and not empty."""
    return next((choice for choice in KEYS if environment.get(choice.key, "").strip()), None)


def missing(extra: str) -> str | None:
    """The command that installs what an extra needs and is not there; None when all of it is. Loads nothing heavy."""
    if all(map(_installed, _MODULES[extra])):
        return None
    return f"pip install 'perdure[{extra}]'"


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        return False
