"""The models of a session: those that were given, and those that a name opens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from perdure.app.adapters import ADAPTERS, adapter
from perdure.clock import Clock
from perdure.model import Model


class ModelFinder:
    """Finds models by name. Owns those that it opened itself, and closes them; a given one is its giver's."""

    def __init__(self, models: Mapping[str, Model], model: str | Model | None, clock: Clock) -> None:
        self._clock = clock
        self._given = dict(models)
        self._opened: dict[str, Model] = {}
        if model is not None and not isinstance(model, str):
            self._given[model.name] = model

    def __call__(self, name: str) -> Model | None:
        """The model of that name; None where there is none. Raises UsageError where it cannot be used here."""
        found = self._given.get(name) or self._opened.get(name)
        if found is None and (key := f"model:{name.partition(':')[0]}") in ADAPTERS:
            found = self._opened[name] = adapter(key)(name, self._clock)
        return found

    async def close(self) -> None:
        """Close the connections of what was opened."""
        opened, self._opened = self._opened, {}
        closing: list[Any] = [getattr(model, "aclose", None) for model in opened.values()]
        await asyncio.gather(*(close() for close in closing if close is not None), return_exceptions=True)
