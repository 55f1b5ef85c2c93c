"""Pydantic AI alone: it stores nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import job
from job import ANSWER, BODY, PIECES, ROUNDS, SAID, SEEDED, asked, now, question, run_of, worked
from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

LOOP = {"rounds": ROUNDS}


async def caller(messages: list[Any], info: Any) -> ModelResponse:
    """The model of the agent."""
    parts = [part for message in messages for part in message.parts]
    results = sum(part.part_kind == "tool-return" for part in parts)
    asked(len(parts), results)
    if results >= LOOP["rounds"]:
        return ModelResponse([TextPart(ANSWER)])
    arguments = {"run": run_of(parts[0].content), "i": results}
    return ModelResponse([ToolCallPart("t", arguments, tool_call_id=f"c{results}")])


def made(**options: Any) -> Agent:
    made = Agent(FunctionModel(caller), name="bench", **options)

    @made.tool_plain
    async def t(run: int, i: int) -> str:
        """A tool."""
        return worked(run, i)

    return made


async def agent(folder: Path, conversations: int) -> None:
    bench = made()

    async def run(number: int) -> str:
        result = await bench.run(question(number))
        assert len([part for each in result.all_messages() for part in each.parts]) == 2 * ROUNDS + 2
        return result.output

    job.report("nothing stored", await job.drive(run, conversations))


async def cold(folder: Path) -> None:
    LOOP["rounds"] = 0
    assert (await made().run(question(1))).output == ANSWER
    job.report("nothing stored", {})


async def growth(folder: Path) -> None:
    async def say(messages: list[Any], info: Any) -> ModelResponse:
        return ModelResponse([TextPart(SAID)])

    agent, history = Agent(FunctionModel(say)), []

    async def turn(number: int) -> None:
        nonlocal history
        history = (await agent.run(BODY, message_history=history)).all_messages()

    job.report("history in memory, nothing stored", await job.grow(turn))


async def stream(folder: Path) -> None:
    async def say(messages: list[Any], info: Any) -> AsyncIterator[str]:
        for _ in range(PIECES):
            yield "abcde"
            await asyncio.sleep(0)

    agent = Agent(FunctionModel(stream_function=say))
    began, first, seen = now(), 0.0, 0
    async with agent.run_stream("hi") as running:
        async for _ in running.stream_text(delta=True, debounce_by=None):
            first, seen = first or now() - began, seen + 1
    assert seen == PIECES, seen
    figures = {"deltas_s": PIECES / (now() - began), "first_ms": first * 1e3, "seen": seen}
    job.report("stream_text, nothing stored", figures)


def begin(folder: Path) -> None:
    """There is no store: a program keeps its messages itself."""
    messages: list[Any] = [
        ModelResponse([TextPart(SAID)]) if number % 2 else ModelRequest([UserPromptPart(question(number))])
        for number in range(SEEDED)
    ]
    (folder / "a.json").write_bytes(ModelMessagesTypeAdapter.dump_json(messages))


async def follow(folder: Path, warm: bool = True) -> None:
    LOOP["rounds"] = 1
    if warm:
        await made().run(question(1), message_history=ModelMessagesTypeAdapter.validate_json(b"[]"))
        job.SEEN.clear()
    began = now()
    history = ModelMessagesTypeAdapter.validate_json((folder / "a.json").read_bytes())
    opened = now()
    assert (await made().run(question(1), message_history=history)).output == ANSWER
    job.report_first("messages from a JSON file of one's own", began, opened, warm)


async def memory(folder: Path, count: int) -> None:
    release, waiting = asyncio.Event(), []

    async def wait(messages: list[Any], info: Any) -> ModelResponse:
        waiting.append(1)
        await release.wait()
        return ModelResponse([TextPart(ANSWER)])

    agent = Agent(FunctionModel(wait))
    before = job.resident()
    running = [asyncio.create_task(agent.run(question(number))) for number in range(count)]
    await job.until(lambda: len(waiting) == count)
    each = (job.resident() - before) / count / 1e3
    job.report("nothing stored, waits for the model", {"kb_each": each, "base_mb": before / 1e6})
    release.set()
    await asyncio.gather(*running)


if __name__ == "__main__":
    job.main((agent, cold, growth, stream, begin, follow, memory))
