"""Burr: actions written by hand, and its asynchronous SQLite persister, which stores the whole state after each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import job
from burr.core import ApplicationBuilder, State, action, default, expr, when
from burr.core.action import streaming_action
from burr.core.application import Application
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister
from job import ANSWER, BODY, PIECES, ROUNDS, SAID, SEEDED, STORED, asked, now, question, worked

#: Rounds that the model asks for before it answers.
LOOP = {"rounds": ROUNDS}


@action(reads=["history"], writes=["history", "done"])
async def model(state: State) -> State:
    history = state["history"]
    results = sum(message["role"] == "tool" for message in history)
    asked(len(history), results)
    if results >= LOOP["rounds"]:
        return state.append(history={"role": "assistant", "content": ANSWER}).update(done=True)
    call = {"name": "t", "arguments": {"run": int(state["run"]), "i": results}}
    return state.append(history={"role": "assistant", "call": call}).update(done=False)


@action(reads=["history"], writes=["history"])
async def tool(state: State) -> State:
    arguments = state["history"][-1]["call"]["arguments"]
    return state.append(history={"role": "tool", "content": worked(arguments["run"], arguments["i"])})


@action(reads=[], writes=[])
async def end(state: State) -> State:
    return state


async def opened(folder: Path) -> AsyncSQLitePersister:
    persister = await AsyncSQLitePersister.from_values(db_path=str(folder / "a.db"))
    await persister.initialize()
    return persister


async def loop(persister: Any, key: str, history: list[Any], run: int = 1, *, known: bool = False) -> Application:
    """The agent's application: new, or (`known`) as the persister has it, at the action after the last one."""
    state = {"history": history, "run": run, "done": False}
    builder = (
        ApplicationBuilder()
        .with_actions(model=model, tool=tool, end=end)
        .with_transitions(
            ("model", "end", when(done=True)), ("model", "tool", default), ("tool", "model"), ("end", "model")
        )
        .with_identifiers(app_id=key)
    )
    if known:
        builder = builder.initialize_from(
            persister, resume_at_next_action=True, default_state=state, default_entrypoint="model"
        )
    else:
        builder = builder.with_state(**state).with_entrypoint("model")
    return await builder.with_state_persister(persister).abuild()


async def settings(persister: AsyncSQLitePersister) -> dict[str, Any]:
    found = {}
    for name in ("journal_mode", "synchronous"):
        cursor = await persister.connection.execute(f"PRAGMA {name}")
        found[name.partition("_")[0]] = (await cursor.fetchone())[0]
    return found


async def agent(folder: Path, conversations: int) -> None:
    persister = await opened(folder)

    async def run(number: int) -> str:
        chat = await loop(persister, f"c{number}", [{"role": "user", "content": question(number)}], number)
        _, _, state = await chat.arun(halt_before=["end"])
        assert len(state["history"]) == 2 * ROUNDS + 2
        return str(state["history"][-1]["content"])

    figures = await job.drive(run, conversations)
    facts = await settings(persister)
    await persister.connection.close()
    stored = job.count(folder / "a.db", "SELECT count(*) FROM burr_state WHERE app_id = 'c7'")
    assert stored == 2 * ROUNDS + 1, stored
    job.report("AsyncSQLitePersister", figures, states=stored, **facts)


async def cold(folder: Path) -> None:
    LOOP["rounds"] = 0
    persister = await opened(folder)
    await (await loop(persister, "c", [{"role": "user", "content": question(1)}])).arun(halt_before=["end"])
    await persister.connection.close()
    job.report("AsyncSQLitePersister", {})


@action(reads=["x"], writes=["x"])
async def step(state: State) -> State:
    return state.update(x=state["x"] + 1)


async def durable(folder: Path, steps: int, size: int) -> None:
    persister = await opened(folder)
    app = await (
        ApplicationBuilder()
        .with_actions(step=step, end=end)
        .with_transitions(("step", "end", expr(f"x >= {steps}")), ("step", "step", default))
        .with_state(x=0, blob=job.noise(size))
        .with_entrypoint("step")
        .with_identifiers(app_id="c")
        .with_state_persister(persister)
        .abuild()
    )
    with job.measured() as found:
        _, _, state = await app.arun(halt_before=["end"])
    assert state["x"] == steps
    await persister.connection.close()
    bytes_step = job.size(folder / "a.db") / steps
    figures = {"steps_s": steps / found.seconds, "cpu_us_step": found.cpu / steps * 1e6, "bytes_step": bytes_step}
    job.report("AsyncSQLitePersister, an action", figures)


@action(reads=["history"], writes=["history"])
async def turn(state: State, text: str) -> State:
    return state.append(history={"role": "user", "content": text}).append(
        history={"role": "assistant", "content": SAID}
    )


async def growth(folder: Path) -> None:
    persister = await opened(folder)
    app = await (
        ApplicationBuilder()
        .with_actions(turn=turn)
        .with_transitions(("turn", "turn"))
        .with_state(history=[])
        .with_entrypoint("turn")
        .with_identifiers(app_id="c")
        .with_state_persister(persister)
        .abuild()
    )

    async def one(number: int) -> None:
        await app.arun(halt_after=["turn"], inputs={"text": BODY})

    figures = await job.grow(one)
    assert len(app.state["history"]) == 2 * figures["turns"]
    await persister.connection.close()
    job.report("AsyncSQLitePersister", {**figures, "mb": job.size(folder / "a.db") / 1e6})


@action(reads=["number"], writes=["result"])
async def part(state: State) -> State:
    return state.update(result=state["number"])


async def fanout(folder: Path, count: int) -> None:
    from burr.core.parallelism import MapStates  # noqa: PLC0415  needs an extra that the other cases do without

    class Wide(MapStates):
        @property
        def reads(self) -> list[str]:
            return []

        @property
        def writes(self) -> list[str]:
            return ["total"]

        def is_async(self) -> bool:
            return True

        def action(self, state: State, inputs: dict[str, Any]) -> Any:
            return part

        async def states(self, state: State, context: Any, inputs: dict[str, Any]) -> AsyncIterator[State]:
            for number in range(count):
                yield state.update(number=number)

        async def reduce(self, state: State, states: Any) -> State:
            return state.update(total=sum([each["result"] async for each in states]))

    persister = await opened(folder)
    app = await (
        ApplicationBuilder()
        .with_actions(wide=Wide())
        .with_state(number=0)
        .with_entrypoint("wide")
        .with_state_persister(persister)
        .with_identifiers(app_id="c")
        .abuild()
    )
    with job.measured() as found:
        _, _, state = await app.arun(halt_after=["wide"])
    assert state["total"] == sum(range(count))
    await persister.connection.close()
    figures = {"ms": found.seconds * 1e3, "cpu_us_each": found.cpu / count * 1e6}
    job.report("MapStates, AsyncSQLitePersister", figures)


@streaming_action(reads=[], writes=["answer"])
async def speak(state: State) -> AsyncIterator[tuple[dict[str, str], State | None]]:
    for _ in range(PIECES):
        yield {"answer": "abcde"}, None
        await asyncio.sleep(0)
    yield {"answer": "abcde" * PIECES}, state.update(answer="abcde" * PIECES)


async def stream(folder: Path) -> None:
    app = await ApplicationBuilder().with_actions(speak=speak).with_state(answer="").with_entrypoint("speak").abuild()
    began, first, seen = now(), 0.0, 0
    _, pieces = await app.astream_result(halt_after=["speak"])
    async for _ in pieces:
        first, seen = first or now() - began, seen + 1
    assert seen == PIECES, seen
    figures = {"deltas_s": PIECES / (now() - began), "first_ms": first * 1e3, "seen": seen}
    job.report("streaming action, nothing stored", figures)


def seeded() -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": SAID} for number in range(SEEDED)]


async def build(folder: Path) -> None:
    job.SEEN.kill_request = 1
    persister = await opened(folder)
    chat = await loop(persister, "c", [*seeded(), {"role": "user", "content": question(1)}])
    await chat.arun(halt_before=["end"])


async def _warm(folder: Path) -> None:
    """What is loaded on first use is loaded: a short run in a store of its own."""
    LOOP["rounds"] = 1
    (folder / "warm").mkdir()
    persister = await opened(folder / "warm")
    chat = await loop(persister, "c", [{"role": "user", "content": question(1)}], known=True)
    await chat.arun(halt_before=["end"])
    await persister.connection.close()
    job.SEEN.clear()


async def resume(folder: Path, warm: bool = True) -> None:
    if warm:
        await _warm(folder)
    LOOP["rounds"] = 2
    began = now()
    persister = await opened(folder)
    chat = await loop(persister, "c", [], known=True)
    loaded = now()
    _, _, state = await chat.arun(halt_before=["end"])
    assert state["history"][-1]["content"] == ANSWER
    job.report_first("AsyncSQLitePersister", began, loaded, warm)
    await persister.connection.close()


async def begin(folder: Path) -> None:
    LOOP["rounds"] = 0
    persister = await opened(folder)
    chat = await loop(persister, "c", [*seeded(), {"role": "user", "content": question(1)}])
    await chat.arun(halt_after=["end"])
    await persister.connection.close()


async def follow(folder: Path, warm: bool = True) -> None:
    if warm:
        await _warm(folder)
    LOOP["rounds"] = 1
    began = now()
    persister = await opened(folder)
    chat = await loop(persister, "c", [], known=True)
    loaded = now()
    chat.update_state(chat.state.append(history={"role": "user", "content": question(1)}).update(done=False))
    _, _, state = await chat.arun(halt_before=["end"])
    assert state["history"][-1]["content"] == ANSWER
    job.report_first("AsyncSQLitePersister", began, loaded, warm)
    await persister.connection.close()


async def fill(folder: Path) -> None:
    LOOP["rounds"] = 0
    persister = await opened(folder)
    await persister.connection.execute("PRAGMA synchronous = OFF")
    for number in range(STORED):
        chat = await loop(persister, f"c{number}", [{"role": "user", "content": question(1)}])
        await chat.arun(halt_after=["model"])
    await persister.connection.close()


async def many(folder: Path) -> None:
    await _warm(folder)
    began = now()
    persister = await opened(folder)
    found = await persister.load(None, "c5000")
    loaded = now()
    keys = await persister.list_app_ids(None)
    listed = now()
    assert len(found["state"]["history"]) == 2
    assert len(keys) == STORED, len(keys)
    await persister.connection.close()
    figures = {"open_ms": (loaded - began) * 1e3, "list_ms": (listed - loaded) * 1e3}
    job.report("lists every id", {**figures, "mb": job.size(folder / "a.db") / 1e6})


async def memory(folder: Path, count: int) -> None:
    release, waiting = asyncio.Event(), []

    @action(reads=[], writes=["answer"])
    async def wait(state: State) -> State:
        waiting.append(1)
        await release.wait()
        return state.update(answer=ANSWER)

    async def one(number: int) -> None:
        history = [{"role": "user", "content": question(number)}]
        builder = ApplicationBuilder().with_actions(wait=wait).with_state(history=history).with_entrypoint("wait")
        await (await builder.abuild()).arun(halt_after=["wait"])

    before = job.resident()
    running = [asyncio.create_task(one(number)) for number in range(count)]
    await job.until(lambda: len(waiting) == count)
    each = (job.resident() - before) / count / 1e3
    job.report("nothing stored, waits in an action", {"kb_each": each, "base_mb": before / 1e6})
    release.set()
    await asyncio.gather(*running)


async def crash(folder: Path) -> None:
    job.crashing(folder)
    chat = await loop(await opened(folder), "c", [{"role": "user", "content": question(1)}])
    await chat.arun(halt_before=["end"])


async def look(folder: Path) -> None:
    job.SEEN.effects = folder / "effects"
    persister = await opened(folder)
    chat = await loop(persister, "c", [], known=True)
    kept = sum(message["role"] == "tool" for message in chat.state["history"])
    _, _, state = await chat.arun(halt_before=["end"])
    answered = state["history"][-1]["content"] == ANSWER
    figures = job.crashed(folder, kept=kept, answered=answered, alone="when the program asks for the same key")
    job.report("AsyncSQLitePersister", {**figures, "model_is_told": False})
    await persister.connection.close()


if __name__ == "__main__":
    job.main(
        (agent, cold, durable, growth, fanout, stream, build, resume, begin, follow, fill, many, memory, crash, look)
    )
