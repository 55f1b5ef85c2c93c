"""Pydantic AI with DBOS on SQLite, which records its model requests (not its tools) as steps; and DBOS's own steps."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import job
from dbos import DBOS, SetWorkflowID
from job import ANSWER, ROUNDS, question
from peer_pydantic_ai import LOOP, made
from pydantic_ai.durable_exec.dbos import DBOSDurability


def configure(folder: Path) -> None:
    url = f"sqlite:///{folder / 'a.db'}"
    DBOS(config={"name": "bench", "system_database_url": url, "application_version": "1", "log_level": "ERROR"})


class Workflows:
    """DBOS on a file, with the agent's run as its one workflow; `wal` before it opens the file, if wanted."""

    def __init__(self, folder: Path, wal: bool = False) -> None:
        if wal:
            connection = sqlite3.connect(folder / "a.db")
            connection.execute("PRAGMA journal_mode = wal")
            connection.close()
        configure(folder)
        agent = made(capabilities=[DBOSDurability()])

        @DBOS.workflow(name="chat")
        async def chat(text: str) -> str:
            return (await agent.run(text)).output

        self.chat = chat
        DBOS.launch()


async def agent(folder: Path, conversations: int, wal: bool = False) -> None:
    flows = Workflows(folder, wal)

    async def run(number: int) -> str:
        return str(await flows.chat(question(number)))

    figures = await job.drive(run, conversations)
    DBOS.destroy()
    runs = max(conversations, job.ALONE) + 1
    steps = job.count(folder / "a.db", "SELECT count(*) FROM operation_outputs")
    assert steps == runs * (ROUNDS + 1), steps
    facts = job.modes(sqlite3.connect(folder / "a.db"))
    job.report("DBOS, " + facts["journal"], figures, steps=steps // runs, **facts)


async def cold(folder: Path) -> None:
    LOOP["rounds"] = 0
    assert await Workflows(folder).chat(question(1)) == ANSWER
    DBOS.destroy()
    job.report("DBOS", {})


async def durable(folder: Path, steps: int, size: int) -> None:
    """DBOS without Pydantic AI: the state is each step's result."""
    configure(folder)

    @DBOS.step()
    async def step(x: int, blob: str) -> dict[str, Any]:
        return {"x": x + 1, "blob": blob}

    @DBOS.workflow()
    async def chain() -> int:
        state = {"x": 0, "blob": job.noise(size)}
        for _ in range(steps):
            state = await step(**state)
        return state["x"]

    DBOS.launch()
    with job.measured() as found:
        assert await chain() == steps
    DBOS.destroy()
    assert job.count(folder / "a.db", "SELECT count(*) FROM operation_outputs") == steps
    bytes_step = job.size(folder / "a.db") / steps
    figures = {"steps_s": steps / found.seconds, "cpu_us_step": found.cpu / steps * 1e6, "bytes_step": bytes_step}
    job.report("DBOS, a step", figures)


async def fanout(folder: Path, count: int) -> None:
    configure(folder)

    @DBOS.step()
    async def work(number: int) -> int:
        return number

    @DBOS.workflow()
    async def wide() -> int:
        return sum(await asyncio.gather(*(work(number) for number in range(count))))

    DBOS.launch()
    with job.measured() as found:
        assert await wide() == sum(range(count))
    DBOS.destroy()
    figures = {"ms": found.seconds * 1e3, "cpu_us_each": found.cpu / count * 1e6}
    job.report("DBOS, steps", figures)


async def crash(folder: Path) -> None:
    job.crashing(folder)
    flows = Workflows(folder)
    with SetWorkflowID("c"):
        await flows.chat(question(1))


async def look(folder: Path) -> None:
    """DBOS goes on with it when it is launched."""
    steps = job.count(folder / "a.db", "SELECT count(*) FROM operation_outputs")
    job.SEEN.effects = folder / "effects"
    Workflows(folder)
    handle = await DBOS.retrieve_workflow_async("c")
    answered = await handle.get_result() == ANSWER
    figures = job.crashed(folder, kept=0, answered=answered, alone="when it is launched")
    DBOS.destroy()
    job.report("DBOS", {**figures, "model_is_told": False}, recorded_requests=steps)


if __name__ == "__main__":
    job.main((agent, cold, durable, fanout, crash, look))
