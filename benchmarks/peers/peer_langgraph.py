"""LangGraph: its prebuilt agent and small graphs, with the asynchronous SQLite saver.

`durability` is LangGraph's own word: `async` (its default) writes a step while the next one runs, `sync` before it.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import job
from job import ANSWER, BODY, PIECES, ROUNDS, SAID, SEEDED, STORED, asked, now, question, run_of, worked
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Send

CHAT = {"configurable": {"thread_id": "c"}, "recursion_limit": 100}


class Caller(BaseChatModel):
    """The model of the agent; with `pieces` it streams an answer instead."""

    rounds: int = ROUNDS
    pieces: int = 0

    @property
    def _llm_type(self) -> str:
        return "bench"

    def bind_tools(self, tools: Any, **options: Any) -> Caller:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        results = sum(message.type == "tool" for message in messages)
        asked(len(messages), results)
        if results >= self.rounds:
            said = AIMessage(ANSWER)
        else:
            arguments = {"run": run_of(str(messages[0].content)), "i": results}
            said = AIMessage("", tool_calls=[{"name": "t", "args": arguments, "id": f"c{results}"}])
        return ChatResult(generations=[ChatGeneration(message=said)])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        return self._generate(messages)

    async def _astream(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        if not self.pieces:
            [made] = self._generate(messages).generations
            yield ChatGenerationChunk(message=AIMessageChunk(**made.message.model_dump(exclude={"type"})))
        for _ in range(self.pieces):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content="abcde"))
            if run_manager:
                await run_manager.on_llm_new_token("abcde", chunk=chunk)
            yield chunk
            await asyncio.sleep(0)


@tool
async def t(run: int, i: int) -> str:
    """A tool."""
    return worked(run, i)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[AsyncSqliteSaver]:
    async with AsyncSqliteSaver.from_conn_string(str(folder / "a.db")) as saver:
        await saver.setup()
        yield saver


async def settings(saver: AsyncSqliteSaver) -> dict[str, Any]:
    found = {}
    for name in ("journal_mode", "synchronous"):
        cursor = await saver.conn.execute(f"PRAGMA {name}")
        found[name.partition("_")[0]] = (await cursor.fetchone())[0]
    return found


def thread(key: str) -> dict[str, Any]:
    return {**CHAT, "configurable": {"thread_id": key}}


async def agent(folder: Path, conversations: int, durability: str = "async") -> None:
    async with opened(folder) as saver:
        graph = create_react_agent(Caller(), [t], checkpointer=saver)

        async def run(number: int) -> str:
            said = {"messages": [("user", question(number))]}
            state = await graph.ainvoke(said, thread(f"c{number}"), durability=durability)
            assert len(state["messages"]) == 2 * ROUNDS + 2
            return str(state["messages"][-1].content)

        figures = await job.drive(run, conversations)
        facts = await settings(saver)
        stored = len((await graph.aget_state(thread("c7"))).values["messages"])
        assert stored == 2 * ROUNDS + 2
    job.report(f"AsyncSqliteSaver, {durability}", figures, stored=stored, **facts)


async def cold(folder: Path) -> None:
    async with opened(folder) as saver:
        graph = create_react_agent(Caller(rounds=0), [t], checkpointer=saver)
        state = await graph.ainvoke({"messages": [("user", question(1))]}, CHAT)
        assert state["messages"][-1].content == ANSWER
    job.report("AsyncSqliteSaver", {})


class Counted(TypedDict):
    x: int
    blob: str


async def durable(folder: Path, steps: int, size: int, durability: str = "async") -> None:
    async def step(state: Counted) -> dict[str, int]:
        return {"x": state["x"] + 1}

    graph = StateGraph(Counted)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: "step" if state["x"] < steps else END)
    async with opened(folder) as saver:
        app = graph.compile(checkpointer=saver)
        with job.measured() as found:
            options = {**CHAT, "recursion_limit": steps + 10}
            state = await app.ainvoke({"x": 0, "blob": job.noise(size)}, options, durability=durability)
        assert state["x"] == steps
    bytes_step = job.size(folder / "a.db") / steps
    figures = {"steps_s": steps / found.seconds, "cpu_us_step": found.cpu / steps * 1e6, "bytes_step": bytes_step}
    job.report(f"AsyncSqliteSaver, {durability}, a node", figures)


async def growth(folder: Path) -> None:
    async def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(SAID)]}

    graph = StateGraph(MessagesState)
    graph.add_node("say", say)
    graph.add_edge(START, "say")
    async with opened(folder) as saver:
        app = graph.compile(checkpointer=saver)

        async def turn(number: int) -> None:
            await app.ainvoke({"messages": [("user", BODY)]}, CHAT)

        figures = await job.grow(turn)
        assert len((await app.aget_state(CHAT)).values["messages"]) == 2 * figures["turns"]
    job.report("AsyncSqliteSaver, async", {**figures, "mb": job.size(folder / "a.db") / 1e6})


class Wide(TypedDict):
    results: Annotated[list[int], operator.add]


async def fanout(folder: Path, count: int) -> None:
    async def work(state: dict[str, int]) -> dict[str, list[int]]:
        return {"results": [state["number"]]}

    async def join(state: Wide) -> dict[str, Any]:
        return {}

    graph = StateGraph(Wide)
    graph.add_node("work", work)
    graph.add_node("join", join)
    graph.add_conditional_edges(START, lambda state: [Send("work", {"number": n}) for n in range(count)], ["work"])
    graph.add_edge("work", "join")
    async with opened(folder) as saver:
        app = graph.compile(checkpointer=saver)
        with job.measured() as found:
            state = await app.ainvoke({"results": []}, CHAT)
        assert sum(state["results"]) == sum(range(count))
    figures = {"ms": found.seconds * 1e3, "cpu_us_each": found.cpu / count * 1e6}
    job.report("Send, AsyncSqliteSaver", figures)


async def stream(folder: Path) -> None:
    model = Caller(pieces=PIECES)

    async def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("say", say)
    graph.add_edge(START, "say")
    app = graph.compile()
    began, first, seen = now(), 0.0, 0
    async for piece, _ in app.astream({"messages": [("user", "hi")]}, stream_mode="messages"):
        if piece.content == "abcde":
            first, seen = first or now() - began, seen + 1
    assert seen == PIECES, seen
    figures = {"deltas_s": PIECES / (now() - began), "first_ms": first * 1e3, "seen": seen}
    job.report("stream_mode=messages, nothing stored", figures)


def seeded() -> list[tuple[str, str]]:
    said = [(("user", "ai")[number % 2], question(number)) for number in range(SEEDED)]
    return [*said, ("user", question(1))]


async def build(folder: Path) -> None:
    job.SEEN.kill_request = 1
    async with opened(folder) as saver:
        graph = create_react_agent(Caller(), [t], checkpointer=saver)
        await graph.ainvoke({"messages": seeded()}, CHAT, durability="sync")


async def _warm(folder: Path) -> None:
    """What is loaded on first use is loaded: a short run in a store of its own."""
    (folder / "warm").mkdir()
    async with opened(folder / "warm") as saver:
        graph = create_react_agent(Caller(rounds=1), [t], checkpointer=saver)
        await graph.ainvoke({"messages": [("user", question(1))]}, CHAT)
        await graph.aget_state(CHAT)
    job.SEEN.clear()


async def resume(folder: Path, warm: bool = True) -> None:
    if warm:
        await _warm(folder)
    began = now()
    async with opened(folder) as saver:
        graph = create_react_agent(Caller(rounds=2), [t], checkpointer=saver)
        opening = now()
        state = await graph.ainvoke(None, CHAT)
        assert state["messages"][-1].content == ANSWER
    job.report_first("AsyncSqliteSaver", began, opening, warm)


async def begin(folder: Path) -> None:
    async with opened(folder) as saver:
        graph = create_react_agent(Caller(rounds=0), [t], checkpointer=saver)
        await graph.ainvoke({"messages": seeded()}, CHAT)


async def follow(folder: Path, warm: bool = True) -> None:
    if warm:
        await _warm(folder)
    began = now()
    async with opened(folder) as saver:
        graph = create_react_agent(Caller(rounds=1), [t], checkpointer=saver)
        opening = now()
        state = await graph.ainvoke({"messages": [("user", question(1))]}, CHAT)
        assert state["messages"][-1].content == ANSWER
    job.report_first("AsyncSqliteSaver", began, opening, warm)


async def fill(folder: Path) -> None:
    async def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(SAID)]}

    graph = StateGraph(MessagesState)
    graph.add_node("say", say)
    graph.add_edge(START, "say")
    async with opened(folder) as saver:
        await saver.conn.execute("PRAGMA synchronous = OFF")
        app = graph.compile(checkpointer=saver)
        for number in range(STORED):
            await app.ainvoke({"messages": [("user", BODY)]}, thread(f"c{number}"), durability="exit")


async def many(folder: Path) -> None:
    await _warm(folder)
    began = now()
    async with opened(folder) as saver:
        found = await saver.aget_tuple({"configurable": {"thread_id": "c5000", "checkpoint_ns": ""}})
        loaded = now()
        newest = [each async for each in saver.alist(None, limit=20)]
        listed = now()
        assert found is not None
        assert len(found.checkpoint["channel_values"]["messages"]) == 2
        assert len(newest) == 20
    figures = {"open_ms": (loaded - began) * 1e3, "list_ms": (listed - loaded) * 1e3}
    job.report("lists checkpoints", {**figures, "mb": job.size(folder / "a.db") / 1e6})


async def memory(folder: Path, count: int) -> None:
    release, waiting = asyncio.Event(), []

    async def wait(state: MessagesState) -> dict[str, Any]:
        waiting.append(1)
        await release.wait()
        return {"messages": [AIMessage(ANSWER)]}

    graph = StateGraph(MessagesState)
    graph.add_node("wait", wait)
    graph.add_edge(START, "wait")
    app = graph.compile()
    before = job.resident()
    running = [asyncio.create_task(app.ainvoke({"messages": [("user", question(n))]})) for n in range(count)]
    await job.until(lambda: len(waiting) == count)
    each = (job.resident() - before) / count / 1e3
    job.report("nothing stored, waits in a node", {"kb_each": each, "base_mb": before / 1e6})
    release.set()
    await asyncio.gather(*running)


async def crash(folder: Path, durability: str = "async") -> None:
    job.crashing(folder)
    async with opened(folder) as saver:
        graph = create_react_agent(Caller(), [t], checkpointer=saver)
        await graph.ainvoke({"messages": [("user", question(1))]}, CHAT, durability=durability)


async def look(folder: Path, durability: str = "async") -> None:
    job.SEEN.effects = folder / "effects"
    async with opened(folder) as saver:
        graph = create_react_agent(Caller(), [t], checkpointer=saver)
        messages = (await graph.aget_state(CHAT)).values.get("messages", [])
        kept = sum(message.type == "tool" for message in messages)
        state = await graph.ainvoke(None, CHAT)
        answered = state["messages"][-1].content == ANSWER
    figures = job.crashed(folder, kept=kept, answered=answered, alone="when the program invokes the thread with None")
    job.report(f"AsyncSqliteSaver, {durability}", {**figures, "model_is_told": False})


if __name__ == "__main__":
    job.main(
        (agent, cold, durable, growth, fanout, stream, build, resume, begin, follow, fill, many, memory, crash, look)
    )
