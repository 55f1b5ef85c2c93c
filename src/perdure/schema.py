"""The schema port: what a model is told about a function, and what it sends back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A function as a tool.

    `parameters` is the JSON schema of its arguments, without those named in `skip`.
    `validate` turns a JSON object into keyword arguments (lax: "5" becomes 5 where a number is asked for)
    or raises `InvalidArguments` with a message for the model.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    validate: Callable[[dict[str, Any]], dict[str, Any]]


class Schema(Protocol):
    """Describes functions by their signature, type hints and docstring."""

    def describe(self, function: Callable[..., Any], *, skip: tuple[str, ...] = ()) -> Described: ...
