"""Adapters by name: the one table through which storages, models, schemas and sandboxes are loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from perdure.schema import Schema

ADAPTERS: Mapping[str, tuple[str, str]] = {
    "storage:memory": ("perdure.backends.memory", "MemoryStorage"),
    "storage:sqlite": ("perdure.backends.sqlite", "open_sqlite"),
    "storage:jsonl": ("perdure.backends.jsonl", "open_jsonl"),
    "storage-check:sqlite": ("perdure.backends.sqlite_check", "check"),
    "storage-check:jsonl": ("perdure.backends.jsonl_check", "check"),
    "storage-backup:sqlite": ("perdure.backends.sqlite_backup", "backup"),
    "storage-backup:jsonl": ("perdure.backends.jsonl_backup", "backup"),
    "model:demo": ("perdure.providers.demo", "open_model"),
    **{
        f"model:{prefix}": ("perdure.providers.vendors", "open_model")
        for prefix in (
            *("openai", "openai-chat", "anthropic", "google"),
            *("ollama", "llama-server", "vllm", "lm-studio", "http", "https"),
        )
    },
    "schema": ("perdure.schemas.pydantic", "PydanticSchema"),
    "sandbox:local": ("perdure.sandboxes.local", "LocalSandbox"),
    "process-state": ("perdure.backends.workers", "state"),
}


def adapter(name: str) -> Callable[..., Any]:
    """Load an adapter by its name in the table."""
    module, attribute = ADAPTERS[name]
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


class LazySchema:
    """Describes functions with the schema adapter, which is loaded when the first tool is described."""

    def __init__(self) -> None:
        self._schema: Schema | None = None

    def describe(self, function: Callable[..., Any], *, skip: tuple[str, ...] = ()) -> Any:
        schema = self._schema
        if schema is None:
            schema = self._schema = adapter("schema")()
        return schema.describe(function, skip=skip)
