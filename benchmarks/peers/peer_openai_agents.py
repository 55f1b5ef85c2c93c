"""The OpenAI Agents SDK: its runner, with its SQLite session, which keeps items and no runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import job
from agents import Agent, Model, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled
from job import ANSWER, BODY, PIECES, ROUNDS, SAID, SEEDED, STORED, asked, now, question, run_of, worked
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

set_tracing_disabled(True)


def said(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(text=text, annotations=[], type="output_text")
    return ResponseOutputMessage(id="m", content=[part], role="assistant", status="completed", type="message")


class Caller(Model):
    """The model: calls the tool so often, then answers; or waits; or streams pieces."""

    def __init__(self, rounds: int = ROUNDS, answer: str = ANSWER, wait: Any = None, pieces: int = 0) -> None:
        self.rounds, self.answer, self.wait, self.pieces = rounds, answer, wait, pieces

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        results = sum(item.get("type") == "function_call_output" for item in items)
        asked(len(items), results)
        if self.wait is not None:
            await self.wait.wait()
        if results >= self.rounds:
            return ModelResponse(output=[said(self.answer)], usage=Usage(), response_id=None)
        run = run_of(items[0]["content"])
        call = ResponseFunctionToolCall(
            arguments=json.dumps({"run": run, "i": results}),
            call_id=f"c{run}-{results}",
            name="t",
            type="function_call",
        )
        return ModelResponse(output=[call], usage=Usage(), response_id=None)

    async def stream_response(self, *rest: Any, **options: Any) -> AsyncIterator[Any]:
        for number in range(self.pieces):
            yield ResponseTextDeltaEvent(
                content_index=0, delta="abcde", item_id="m", output_index=0, sequence_number=number, logprobs=[],
                type="response.output_text.delta",
            )  # fmt: skip
            await asyncio.sleep(0)
        done = Response(
            id="r", created_at=0, model="bench", object="response", output=[said(ANSWER)], tool_choice="none", tools=[],
            parallel_tool_calls=False,
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", sequence_number=self.pieces, response=done)


@function_tool
async def t(run: int, i: int) -> str:
    """A tool."""
    return worked(run, i)


def made(**options: Any) -> Agent:
    return Agent(name="bench", model=Caller(**options), tools=[t])


async def ask(agent: Agent, text: str, session: Any) -> str:
    return str((await Runner.run(agent, text, session=session, max_turns=20)).final_output)


async def agent(folder: Path, conversations: int, stored: bool = True) -> None:
    bench, sessions = made(), []

    async def run(number: int) -> str:
        session = SQLiteSession(f"s{number}", folder / "a.db") if stored else None
        sessions.append(session)
        try:
            return await ask(bench, question(number), session)
        finally:
            if session is not None:
                session.close()

    figures = await job.drive(run, conversations)
    if not stored:
        job.report("nothing stored", figures)
        return
    session = SQLiteSession("s7", folder / "a.db")
    items = len(await session.get_items())
    assert items == 2 * ROUNDS + 2, items
    with session._locked_connection() as connection:
        facts = job.modes(connection)
    session.close()
    job.report("SQLiteSession", figures, stored=items, **facts)


async def cold(folder: Path) -> None:
    session = SQLiteSession("c", folder / "a.db")
    assert await ask(made(rounds=0), question(1), session) == ANSWER
    session.close()
    job.report("SQLiteSession", {})


async def growth(folder: Path) -> None:
    session, bench = SQLiteSession("c", folder / "a.db"), made(rounds=0, answer=SAID)

    async def turn(number: int) -> None:
        assert await ask(bench, BODY, session) == SAID

    figures = await job.grow(turn)
    session.close()
    job.report("SQLiteSession", {**figures, "mb": job.size(folder / "a.db") / 1e6})


async def stream(folder: Path) -> None:
    began, first, seen = now(), 0.0, 0
    running = Runner.run_streamed(made(pieces=PIECES), "hi")
    async for event in running.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            first, seen = first or now() - began, seen + 1
    assert seen == PIECES, seen
    figures = {"deltas_s": PIECES / (now() - began), "first_ms": first * 1e3, "seen": seen}
    job.report("stream_events, nothing stored", figures)


async def begin(folder: Path) -> None:
    session = SQLiteSession("c", folder / "a.db")
    await session.add_items([
        {"role": ("user", "assistant")[number % 2], "content": question(number)} for number in range(SEEDED)
    ])  # fmt: skip
    session.close()


async def _warm(folder: Path) -> None:
    """What is loaded on first use is loaded: a short run in a store of its own."""
    (folder / "warm").mkdir()
    session = SQLiteSession("c", folder / "warm" / "a.db")
    await ask(made(rounds=1), question(1), session)
    session.close()
    job.SEEN.clear()


async def follow(folder: Path, warm: bool = True) -> None:
    if warm:
        await _warm(folder)
    began = now()
    session = SQLiteSession("c", folder / "a.db")
    bench = made(rounds=1)
    opened = now()
    assert await ask(bench, question(1), session) == ANSWER
    session.close()
    job.report_first("SQLiteSession", began, opened, warm)


async def fill(folder: Path) -> None:
    session = SQLiteSession("c0", folder / "a.db")
    with session._locked_connection() as connection:
        connection.execute("PRAGMA synchronous = OFF")
    for number in range(STORED):
        session.session_id = f"c{number}"
        await session.add_items([{"role": "user", "content": SAID}, {"role": "assistant", "content": SAID}])
    session.close()


async def many(folder: Path) -> None:
    await _warm(folder)
    began = now()
    session = SQLiteSession("c5000", folder / "a.db")
    found = await session.get_items()
    opened = now()
    assert len(found) == 2
    session.close()
    mb = job.size(folder / "a.db") / 1e6
    job.report("has no list of sessions", {"open_ms": (opened - began) * 1e3, "list_ms": None, "mb": mb})


async def memory(folder: Path, count: int) -> None:
    release = asyncio.Event()
    bench = made(wait=release, rounds=0)
    before = job.resident()
    running = [asyncio.create_task(Runner.run(bench, question(number))) for number in range(count)]
    await job.until(lambda: job.SEEN.requests == count)
    each = (job.resident() - before) / count / 1e3
    job.report("nothing stored, waits for the model", {"kb_each": each, "base_mb": before / 1e6})
    release.set()
    await asyncio.gather(*running)


async def crash(folder: Path) -> None:
    job.crashing(folder)
    await ask(made(), question(1), SQLiteSession("c", folder / "a.db"))


async def look(folder: Path) -> None:
    """There is nothing to go on with: a program asks anew, with what the session has."""
    job.SEEN.effects = folder / "effects"
    session = SQLiteSession("c", folder / "a.db")
    items: list[Any] = await session.get_items()
    kept = sum(item.get("type") == "function_call_output" for item in items)
    dangling = sum(item.get("type") == "function_call" for item in items) - kept
    try:
        answered = await ask(made(), BODY, session) == ANSWER
    except Exception as error:
        answered = False
        print(f"the next run: {error!r}"[:200])
    session.close()
    figures = job.crashed(folder, kept=kept, answered=answered, alone="never: a new run, with a new input")
    job.report("SQLiteSession", {**figures, "model_is_told": False}, calls_without_result=dangling)


if __name__ == "__main__":
    job.main((agent, cold, growth, stream, begin, follow, fill, many, memory, crash, look))
