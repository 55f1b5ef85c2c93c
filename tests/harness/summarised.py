"""A scripted model that is asked for summaries, and what a conversation with one says in short."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.harness.registry import Extension, Registry, Tool, tool
from perdure.messages import UserMessage, text_of
from perdure.model import Request
from perdure.records import Entry
from perdure.testing.scripted import ScriptedModel, say

#: About 100 tokens.
WORDS = "word " * 80
MODEL = "scripted"


def is_compaction(request: Request) -> bool:
    return request.options.get("purpose") == "compaction"


def model_of(talk: Any = None, summary: Any = None, *, window: int | None = None) -> ScriptedModel:
    """Writes summaries when it is asked for them, else talks."""
    talk = say("ok") if talk is None else talk
    summary = say("THE SUMMARY") if summary is None else summary

    def script(request: Request) -> Any:
        return summary if is_compaction(request) else talk

    return ScriptedModel(script, context_window=window)


def asked(model: ScriptedModel) -> list[Request]:
    return [request for request in model.requests if is_compaction(request)]


def talked(model: ScriptedModel) -> list[Request]:
    return [request for request in model.requests if not is_compaction(request)]


def said(request: Request) -> list[str]:
    """What the users of a request said, in short."""
    return [text_of(message)[:40].strip() for message in request.messages if isinstance(message, UserMessage)]


async def entries(chat: Any) -> list[Entry]:
    return [entry async for entry in chat.history()][::-1]


async def kinds(chat: Any) -> list[str]:
    return [entry.kind.removeprefix("perdure.") for entry in await entries(chat)]


async def talk_of(chat: Any, count: int) -> list[Any]:
    """So many inputs and answers."""
    return [await (await chat.submit(f"{number} {WORDS}")).wait() for number in range(count)]


def gate_tool(gate: asyncio.Event, text: str = "worked") -> Tool:
    @tool
    async def work() -> str:
        """Wait for the test."""
        await gate.wait()
        return text

    return work


def hooked(*hooks: Any) -> Registry:
    return Registry([Extension(name="test", before_compact=hooks)])


async def calling(world: Any) -> None:
    await world.until(lambda: any(task.kind == "perdure.tool" for task in world.session.inspect().tasks))


async def compacting(world: Any, model: ScriptedModel) -> None:
    await world.until(lambda: asked(model))


#: A small window: requests wait from 600 tokens on, and 100 of the newest are kept.
SMALL = {"compaction_reserve": 400, "compaction_keep_recent": 100, "compaction_background": 0}
