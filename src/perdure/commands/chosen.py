"""Looking at what there is to choose a model from, and checking the one that was chosen before any work starts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.app.adapters import adapter
from perdure.app.naming import is_provided, no_such_model
from perdure.clock import Clock
from perdure.commands.choosing import Chosen, Found, Key, Remembered, Server, choose
from perdure.commands.configuration import Configuration
from perdure.commands.settings import looks_like_key
from perdure.errors import UsageError
from perdure.providers.choices import KEYS, missing
from perdure.providers.local_servers import find


async def chosen(
    flag: str | None, configuration: Configuration, remembered: Remembered | None, environment: Mapping[str, str]
) -> Chosen:
    """Who answers. The machine is looked at for local servers only where nothing else decides."""
    configured = configuration.given("model")
    found = Found(
        flag=flag,
        remembered=remembered,
        configured=None if configured is None else (configured.value, configured.source),
        keys=keys(environment),
    )
    choice = choose(found)
    if choice is None:
        choice = choose(msgspec.structs.replace(found, servers=await servers(environment)))
    assert choice is not None
    return choice


def keys(environment: Mapping[str, str]) -> list[Key]:
    """The keys of providers that are in the environment, in the order in which they decide."""
    return [
        Key(variable=each.key, model=each.model, missing=missing(each.model.partition(":")[0]))
        for each in KEYS
        if environment.get(each.key, "").strip()
    ]


async def servers(environment: Mapping[str, str]) -> list[Server]:
    """The local servers that answer and have a model."""
    return [
        Server(name=each.name, url=each.url, model=each.models[0]) for each in await find(environment) if each.models
    ]


def preflight(flag: str | None, configuration: Configuration, clock: Clock) -> None:
    """Raise UsageError for a model that somebody named and that cannot be asked, before anything was made."""
    configured = configuration.given("model")
    if flag is not None:
        check_model(flag, clock)
    elif configured is not None:
        try:
            check_model(configured.value, clock)
        except UsageError as error:
            raise UsageError(f"{configured.source}: {error}") from error


def check_model(name: str, clock: Clock) -> None:
    """Raise UsageError where there is no model of that name, or where it cannot be asked from here."""
    if looks_like_key(name):
        raise UsageError(
            "what was given as a model looks like a key: others can read arguments. "
            "Put it in the environment variable of its service, such as OPENAI_API_KEY, and replace it if it leaked"
        )
    if not is_provided(name):
        raise no_such_model(name)
    adapter(f"model:{name.partition(':')[0]}")(name, clock)
