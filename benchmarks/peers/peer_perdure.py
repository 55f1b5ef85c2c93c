"""perdure itself, through its public names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import apsw
import job
from job import ANSWER, BODY, PIECES, ROUNDS, SAID, SEEDED, STORED, asked, now, question, run_of, worked

import perdure
from perdure.messages import ToolMessage, text_of
from perdure.model import CallDelta, CallStart, Finished, ModelEvent, Request, TextDelta, Usage

USED = Usage(input=1, output=1)
NAMES = {"power": "FULL", "process": "process durability"}
STATE = perdure.document("bench.state", scope="conversation", initial=lambda: {"x": 0, "blob": ""})

Connections = list[apsw.Connection]


class Caller:
    """The model of the agent: one call a round, so many rounds for each input, then the answer."""

    name = "bench"
    context_window = None

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.rounds = rounds

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        results = sum(isinstance(message, ToolMessage) for message in request.messages)
        asked(len(request.messages), results)
        if results >= self.rounds:
            yield TextDelta(ANSWER)
            yield Finished("stop", USED)
        else:
            run = run_of(text_of(request.messages[0]))
            yield CallStart(0, "t")
            yield CallDelta(0, f'{{"run": {run}, "i": {results}}}')
            yield Finished("tool_calls", USED)


class Sayer:
    """A model that answers with 200 characters, or with many pieces."""

    name = "bench"
    context_window = None

    def __init__(self, pieces: int = 0) -> None:
        self.pieces = pieces

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        for _ in range(self.pieces):
            yield TextDelta("abcde")
            await asyncio.sleep(0)
        if not self.pieces:
            yield TextDelta(SAID)
        yield Finished("stop", USED)


class Silent:
    """A model that waits."""

    name = "bench"
    context_window = None
    release: asyncio.Event

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        asked(len(request.messages), 0)
        await self.release.wait()
        yield TextDelta(ANSWER)
        yield Finished("stop", USED)


@perdure.tool  # unsafe, the default: its intent is durable before it starts
async def t(run: int, i: int) -> str:
    """A tool."""
    return worked(run, i)


TOOLS = perdure.Registry([perdure.Extension(name="bench", tools=[t])])


async def ask(chat: perdure.Conversation, text: str) -> str:
    done = await (await chat.submit(text)).wait()
    assert isinstance(done, perdure.Answered), done
    return done.text


def watched() -> Connections:
    """The connections that are opened from now on: what they are set to can be asked at the end."""
    found: Connections = []
    apsw.connection_hooks.append(found.append)
    return found


async def checked(connections: Connections, durability: str) -> dict[str, Any]:
    """Journal and synchronous of the connection that writes, asserted."""
    apsw.connection_hooks.clear()
    for _ in range(1000):
        await asyncio.sleep(0.005)  # a connection answers in one thread at a time
        with suppress(apsw.ThreadingViolationError):
            [writer] = [each for each in connections if not each.pragma("query_only")]
            journal, synchronous = (writer.pragma(name) for name in ("journal_mode", "synchronous"))
            assert journal == "wal"
            assert synchronous == {"power": 2, "process": 1}[durability], f"synchronous = {synchronous}"
            return {"journal": journal, "synchronous": synchronous}
    raise AssertionError("the connection that writes never rests")


async def agent(folder: Path, conversations: int, durability: str = "power", sessions: bool = False) -> None:
    connections = watched()
    async with AsyncExitStack() as stack:
        path = str(folder / "a.db")
        options: dict[str, Any] = {"model": Caller(), "registry": TOOLS, "durability": durability}
        store = await stack.enter_async_context(perdure.store(path, **options))
        shared = await stack.enter_async_context(store.session())

        async def run(number: int) -> str:
            session = shared
            if sessions:
                session = await stack.enter_async_context(store.session(f"s{number}"))
            return await ask(await session.conversation(f"c{number}"), question(number))

        figures = await job.drive(run, conversations)
        facts = await checked(connections, durability)
    total = max(conversations, job.ALONE) + 1
    stored = job.count(folder / "a.db", "SELECT count(*) FROM entry")
    assert stored == total * (2 * ROUNDS + 2), stored
    variant = NAMES[durability] + (", a session each" if sessions else "")
    job.report(variant, figures, stored=stored // total, **facts)


async def cold(folder: Path) -> None:
    async with perdure.open(str(folder / "a.db"), model=Caller(0)) as session:
        assert await ask(await session.conversation("c"), question(1)) == ANSWER
    job.report("FULL", {})


async def durable(folder: Path, steps: int, size: int, durability: str = "power") -> None:
    async with perdure.open(str(folder / "a.db"), model=None, durability=durability) as session:
        chat = await session.conversation("c")
        async with chat.commit() as tx:
            (await tx.doc(STATE))["blob"] = job.noise(size)
        with job.measured() as found:
            for _ in range(steps):
                async with chat.commit() as tx:
                    state = await tx.doc(STATE)
                    state["x"] = state["x"] + 1
        assert (await chat.snapshot(STATE))["x"] == steps
    bytes_step = job.size(folder / "a.db") / steps
    figures = {"steps_s": steps / found.seconds, "cpu_us_step": found.cpu / steps * 1e6, "bytes_step": bytes_step}
    job.report(f"{NAMES[durability]}, a commit", figures)


class Chain(perdure.Task):
    """A task of many phases: each is a checkpoint."""

    kind = "bench.chain"

    @perdure.phase(first=True)
    async def step(self, invocation: perdure.Invocation, x: int = 0) -> None:
        async with invocation.commit() as tx:
            if x < invocation.input["steps"]:
                tx.next(self.step, x=x + 1)
            else:
                tx.complete({"x": x})


async def phases(folder: Path, steps: int, durability: str = "power") -> None:
    """`durable` for a task: a phase is a durable step with scheduling."""
    registry = perdure.Registry([perdure.Extension(name="bench", tasks=[Chain])])
    async with perdure.open(str(folder / "a.db"), model=None, registry=registry, durability=durability) as session:
        chat = await session.conversation("c")
        with job.measured() as found:
            async with chat.commit() as tx:
                chain = tx.create_task(Chain, {"steps": steps})
            outcome: Any = await session.wait_task(chain.id)
        assert outcome.result == {"x": steps}, outcome
    bytes_step = job.size(folder / "a.db") / steps
    figures = {"steps_s": steps / found.seconds, "cpu_us_step": found.cpu / steps * 1e6, "bytes_step": bytes_step}
    job.report(f"{NAMES[durability]}, a phase of a task", figures)


async def growth(folder: Path, durability: str = "power") -> None:
    async with perdure.open(str(folder / "a.db"), model=Sayer(), durability=durability) as session:
        chat = await session.conversation("c")

        async def turn(number: int) -> None:
            assert await ask(chat, BODY) == SAID

        figures = await job.grow(turn)
    job.report(NAMES[durability], {**figures, "mb": job.size(folder / "a.db") / 1e6})


class Part(perdure.Task):
    kind = "bench.part"

    @perdure.phase(first=True)
    async def work(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            tx.complete(invocation.input)


class Wide(perdure.Task):
    """One step, many at once, one that has all results."""

    kind = "bench.wide"

    @perdure.phase(first=True)
    async def start(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            parts = [tx.create_task(Part, number, owner=invocation) for number in range(invocation.input)]
            await tx.wait(parts, then=self.join, parts=[part.id for part in parts])

    @perdure.phase
    async def join(self, invocation: perdure.Invocation, parts: list[Any]) -> None:
        outcomes: list[Any] = await invocation.outcomes(parts)
        async with invocation.commit() as tx:
            tx.complete(sum(outcome.result for outcome in outcomes))


async def fanout(folder: Path, count: int, durability: str = "power") -> None:
    registry = perdure.Registry([perdure.Extension(name="bench", tasks=[Wide, Part])])
    async with perdure.open(str(folder / "a.db"), model=None, registry=registry, durability=durability) as session:
        chat = await session.conversation("c")
        with job.measured() as found:
            async with chat.commit() as tx:
                wide = tx.create_task(Wide, count)
            outcome: Any = await session.wait_task(wide.id)
        assert outcome.result == sum(range(count)), outcome
    job.report(f"{NAMES[durability]}, tasks", {"ms": found.seconds * 1e3, "cpu_us_each": found.cpu / count * 1e6})


async def stream(folder: Path, durability: str = "power") -> None:
    """One consumer that follows the live document: what it sees is committed before, so pieces come together."""
    async with perdure.open(str(folder / "a.db"), model=Sayer(PIECES), durability=durability) as session:
        chat = await session.conversation("c")
        changed = asyncio.Event()
        stop = session.observe(lambda change: changed.set())
        began, first, seen, updates = now(), 0.0, 0, 0
        done = asyncio.create_task((await chat.submit("hi")).wait())
        while not done.done():
            changed.clear()
            live = await chat.live()
            text = "" if live is None else live["text"]
            if len(text) > seen:
                first, seen, updates = first or now() - began, len(text), updates + 1
            waiting = asyncio.create_task(changed.wait())
            await asyncio.wait((waiting, done), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        settled = await done
        taken = now() - began
        stop()
        assert isinstance(settled, perdure.Answered)
        assert len(settled.text) == 5 * PIECES
    figures = {"deltas_s": PIECES / taken, "first_ms": first * 1e3, "seen": updates}
    job.report(f"{NAMES[durability]}, committed before shown", figures)


async def _seed(folder: Path) -> None:
    async with perdure.open(str(folder / "a.db"), model=Sayer(), durability="process") as session:
        chat = await session.conversation("c")
        for number in range(SEEDED // 2):
            await ask(chat, question(number))


async def build(folder: Path) -> None:
    await _seed(folder)
    job.SEEN.kill_request = 1
    async with perdure.open(str(folder / "a.db"), model=Caller(2), registry=TOOLS) as session:
        await ask(await session.conversation("c"), question(1))


async def _warm(folder: Path) -> None:
    """What is loaded on first use is loaded: a short run in a store of its own."""
    (folder / "warm").mkdir()
    async with perdure.open(str(folder / "warm" / "a.db"), model=Caller(1), registry=TOOLS) as session:
        assert await ask(await session.conversation("c"), question(1)) == ANSWER
    job.SEEN.clear()


async def resume(folder: Path, warm: bool = True) -> None:
    if warm:
        await _warm(folder)
    connections = watched()
    began = now()
    async with perdure.open(str(folder / "a.db"), model=Caller(2), registry=TOOLS) as session:
        opened = now()
        await session.resume()
        await session.wait_idle()
        facts = await checked(connections, "power")
        chat = await session.conversation("c")
        [last] = await chat.entries(limit=1)
        assert text_of(last.messages[0]) == ANSWER
    job.report_first("FULL", began, opened, warm, **facts)


async def begin(folder: Path) -> None:
    await _seed(folder)


async def follow(folder: Path, warm: bool = True) -> None:
    if warm:
        await _warm(folder)
    connections = watched()
    began = now()
    async with perdure.open(str(folder / "a.db"), model=Caller(1), registry=TOOLS) as session:
        opened = now()
        chat = await session.conversation("c")
        assert await ask(chat, question(1)) == ANSWER
        facts = await checked(connections, "power")
    job.report_first("FULL", began, opened, warm, **facts)


async def fill(folder: Path) -> None:
    """10,000 conversations of two messages each: an input and its answer."""
    async with perdure.open(str(folder / "a.db"), model=Sayer(), durability="process") as session:
        for start in range(0, STORED, 200):
            chats = await asyncio.gather(*(session.conversation(f"c{start + each}") for each in range(200)))
            await asyncio.gather(*(ask(chat, question(1)) for chat in chats))


async def many(folder: Path) -> None:
    await _warm(folder)
    began = now()
    async with perdure.open(str(folder / "a.db"), model=None) as session:
        found = await (await session.conversation("c5000")).entries()
        opened = now()
        newest = await session.conversations(limit=20)
        listed = now()
    assert (len(found), len(newest)) == (2, 20)
    figures = {"open_ms": (opened - began) * 1e3, "list_ms": (listed - opened) * 1e3}
    job.report("FULL", {**figures, "mb": job.size(folder / "a.db") / 1e6})


async def memory(folder: Path, count: int) -> None:
    model = Silent()
    model.release = asyncio.Event()
    async with perdure.open(str(folder / "a.db"), model=model, durability="process") as session:
        before = job.resident()
        for number in range(count):
            await (await session.conversation(f"c{number}")).submit(question(number))
        await job.until(lambda: job.SEEN.requests == count)
        each = (job.resident() - before) / count / 1e3
        job.report("process durability, waits for the model", {"kb_each": each, "base_mb": before / 1e6})
        model.release.set()
        await session.wait_idle()


async def crash(folder: Path, replay: str = "unsafe") -> None:
    job.crashing(folder)
    async with perdure.open(str(folder / "a.db"), model=Caller(), registry=_replayed(replay)) as session:
        await ask(await session.conversation("c"), question(1))


async def look(folder: Path, replay: str = "unsafe") -> None:
    kept = job.count(folder / "a.db", "SELECT count(*) FROM entry WHERE instr(body, 'perdure.tool_result')")
    job.SEEN.effects = folder / "effects"
    async with perdure.open(str(folder / "a.db"), model=Caller(), registry=_replayed(replay)) as session:
        await session.resume()
        await session.wait_idle()
        chat = await session.conversation("c")
        entries = await chat.entries()
    told = sum(
        isinstance(message, ToolMessage) and message.error == "interrupted"
        for entry in entries
        for message in entry.messages
    )
    answered = text_of(entries[0].messages[-1]) == ANSWER
    figures = job.crashed(folder, kept=kept, answered=answered, alone="when it is opened")
    job.report(f"FULL, {replay} tool", {**figures, "model_is_told": bool(told)})


def _replayed(replay: str) -> perdure.Registry:
    if replay == "unsafe":
        return TOOLS

    @perdure.tool(replay="safe", name="t")
    async def again(run: int, i: int) -> str:
        """A tool that may run again."""
        return worked(run, i)

    return perdure.Registry([perdure.Extension(name="bench", tools=[again])])


if __name__ == "__main__":
    job.main((
        agent, cold, durable, phases, growth, fanout, stream, build, resume, begin, follow, fill, many, memory,
        crash, look,
    ))  # fmt: skip
