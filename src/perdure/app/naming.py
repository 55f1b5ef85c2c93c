"""Names of models: PROVIDER:NAME, and what somebody meant who left the provider out."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

from perdure.app.adapters import ADAPTERS
from perdure.errors import UsageError

#: How the models of a provider are called.
_FAMILIES: Mapping[str, re.Pattern[str]] = {
    "openai": re.compile(r"gpt|o\d|chatgpt|codex"),
    "anthropic": re.compile(r"claude|sonnet|opus|haiku"),
    "google": re.compile(r"gemini"),
    "ollama": re.compile(r"llama|qwen|mistral|gemma|phi|deepseek|smollm"),
}


def is_provided(name: str) -> bool:
    """Whether there is a provider for a model of that name."""
    return f"model:{name.partition(':')[0]}" in ADAPTERS


def no_such_model(name: str) -> UsageError:
    """The error for a name that no provider takes: what may have been meant, or what there is."""
    family = next((each for each, pattern in _FAMILIES.items() if pattern.match(name.lower())), None)
    if family is not None and ":" not in name:
        return UsageError(f"there is no model {name!r}: did you mean {family}:{name}?")
    known = [each.partition(":")[2] for each in ADAPTERS if each.startswith("model:")]
    return UsageError(f"there is no model {name!r}: write PROVIDER:NAME; the providers are {', '.join(known)}")


def check_name(name: str, own: Container[str] = ()) -> None:
    """Raise UsageError for a name without a provider. One with an unknown provider ends its runs as `no_model`."""
    if ":" not in name and name not in own and not is_provided(name):
        raise no_such_model(name)
