"""What is measured: which peer does which case, with what. Data only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

#: The order of tables, and the names in them.
PEERS = {
    "floor": "floor",
    "perdure": "perdure",
    "burr": "Burr",
    "langgraph": "LangGraph",
    "pydantic_dbos": "Pydantic AI with DBOS",
    "pydantic_ai": "Pydantic AI",
    "openai_agents": "OpenAI Agents SDK",
}

#: What each imports to do its work, and whose versions are named.
IMPORTS = {
    "floor": "asyncio, sqlite3, json",
    "perdure": "perdure",
    "burr": "burr.core, burr.integrations.persisters.b_aiosqlite",
    "langgraph": "langgraph.prebuilt, langgraph.checkpoint.sqlite.aio",
    "pydantic_dbos": "pydantic_ai, pydantic_ai.durable_exec.dbos",
    "pydantic_ai": "pydantic_ai",
    "openai_agents": "agents",
}
PACKAGES = {
    "burr": ("apache-burr", "aiosqlite"),
    "langgraph": ("langgraph", "langgraph-checkpoint-sqlite"),
    "pydantic_dbos": ("pydantic-ai-slim", "dbos"),
    "pydantic_ai": ("pydantic-ai-slim",),
    "openai_agents": ("openai-agents",),
}

#: Settings of the child processes: no peer reports to its makers from a benchmark, and none needs a key.
CHILD = {
    "BURR_TELEMETRY_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "none",
    "PYTHONWARNINGS": "ignore",
    "PYTHONHASHSEED": "0",
}


@dataclass(frozen=True)
class Figure:
    """One run of one case by one peer. `store` names the function that fills the store it starts from."""

    case: str
    peer: str
    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    store: str = ""
    environment: str = ""  #: another than the peer's own
    bar: bool = False  #: a bar is made of it
    rounds: int = 99
    again: int = 0  #: a short case is measured `AGAIN` times a round, by turns; this is which of them

    def __str__(self) -> str:
        words = [self.case, self.peer, *(f"{name}={value}" for name, value in self.arguments.items())]
        return " ".join(words)


#: How often the first request is measured in a round: it is over in milliseconds, and one disturbance decides it.
AGAIN = 3

CASES = ("agent", "first", "steps", "growth", "fanout", "stream", "many", "memory", "start", "crash")


def figures() -> Iterator[Figure]:
    """Everything, case by case; within a case the peers take turns."""
    yield from _agent()
    yield from _first()
    yield from _steps()
    yield from _others()


def _agent() -> Iterator[Figure]:
    for count in (1, 100):
        case = f"agent {count}"

        def of(peer: str, bar: bool = False, case: str = case, count: int = count, **more: Any) -> Figure:
            rounds = 99 if bar else 2
            return Figure(case, peer, "agent", {"conversations": count, **more}, bar=bar, rounds=rounds)

        yield of("perdure", True)
        yield of("burr", True)
        yield of("langgraph", True, durability="async")
        yield of("langgraph", True, durability="sync")
        yield of("perdure", True, durability="process")
        if count > 1:
            yield of("perdure", sessions=True)
        yield of("floor")
        yield of("floor", synchronous="NORMAL")
        if count > 1:
            yield of("floor", grouped=True)
        yield of("openai_agents")
        yield of("openai_agents", stored=False)
        yield of("pydantic_ai")
        yield of("pydantic_dbos")
        yield of("pydantic_dbos", wal=True)


def _first() -> Iterator[Figure]:
    for case, store, function, peers in (
        ("first after kill -9", "build", "resume", ("perdure", "burr", "langgraph", "floor")),
        ("first at rest", "begin", "follow", ("perdure", "burr", "langgraph", "openai_agents", "pydantic_ai")),
    ):
        for again in range(AGAIN):
            for peer in peers:
                bar = peer in ("perdure", "burr", "langgraph")
                yield Figure(case, peer, function, store=store, bar=bar, again=again)
        for peer in peers:
            yield Figure(f"{case}, with imports", peer, function, {"warm": False}, store=store, rounds=2)


def _steps() -> Iterator[Figure]:
    for size, steps in ((100, 200), (100_000, 100)):
        asked = {"steps": steps, "size": size}

        def of(peer: str, function: str = "durable", case: str = f"steps {size}", **arguments: Any) -> Figure:
            return Figure(case, peer, function, arguments, rounds=2)

        yield of("perdure", **asked)
        yield of("perdure", **asked, durability="process")
        yield of("burr", **asked)
        yield of("langgraph", **asked, durability="async")
        yield of("langgraph", **asked, durability="sync")
        yield of("pydantic_dbos", **asked)
        if size == 100:
            yield of("perdure", "phases", steps=steps)
            yield of("floor", **asked)


def _others() -> Iterator[Figure]:
    for peer in ("perdure", "burr", "langgraph", "openai_agents", "pydantic_ai", "floor"):
        yield Figure("growth", peer, "growth", rounds=1)
    for peer in ("perdure", "burr", "langgraph", "floor"):
        environment = "burr_parallel" if peer == "burr" else ""
        yield Figure("fanout", peer, "fanout", {"count": 1000}, environment=environment, rounds=2)
    yield Figure("fanout", "pydantic_dbos", "fanout", {"count": 1000}, rounds=1)
    for peer in ("perdure", "burr", "langgraph", "openai_agents", "pydantic_ai", "floor"):
        yield Figure("stream", peer, "stream", rounds=2)
    for peer in ("perdure", "burr", "langgraph", "openai_agents", "floor"):
        yield Figure("many", peer, "many", store="fill")
    for peer in ("perdure", "burr", "langgraph", "openai_agents", "pydantic_ai", "floor"):
        yield Figure("memory", peer, "memory", {"count": 1000}, rounds=1)
    for peer in PEERS:
        yield Figure("start", peer, "cold")
    for replay in ("unsafe", "safe"):
        yield Figure("crash", "perdure", "look", {"replay": replay}, store="crash", rounds=1)
    yield Figure("crash", "burr", "look", store="crash", rounds=1)
    for durability in ("async", "sync"):
        yield Figure("crash", "langgraph", "look", {"durability": durability}, store="crash", rounds=1)
    for peer in ("pydantic_dbos", "openai_agents"):
        yield Figure("crash", peer, "look", store="crash", rounds=1)


def chosen(words: list[str]) -> list[Figure]:
    """The figures of some cases; `bars` are those that the bars need; none is all. Raises ValueError."""
    for word in words:
        if word not in (*CASES, "bars"):
            raise ValueError(f"there is no case {word!r}: there are {', '.join(CASES)}, and bars")
    return [
        figure
        for figure in figures()
        if not words or figure.case.split()[0] in words or ("bars" in words and figure.bar)
    ]
