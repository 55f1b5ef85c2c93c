"""The page of docs/benchmarks, made of the recorded results. Pure."""

# ruff: noqa: E501  prose, one sentence a line

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matrix import PEERS
from summary import Row, Spread, bars, spreads

#: title, case, what a row shows: (heading, figure, digits)
Column = tuple[str, str, int]

SECTIONS: tuple[tuple[str, str, tuple[Column, ...]], ...] = (
    (
        "Agent, 100 conversations at once: an input, 10 rounds with a tool call each, an answer",
        "agent 100",
        (("runs/s", "runs_s", 1), ("round, ms", "round_ms", 1), ("p99, ms", "round_p99_ms", 0), ("CPU ms/run", "cpu_ms_run", 1)),
    ),
    (
        "Agent, one conversation after another",
        "agent 1",
        (("round, ms", "round_ms", 2), ("p99, ms", "round_p99_ms", 1), ("runs/s", "runs_s", 1), ("CPU ms/run", "cpu_ms_run", 1)),
    ),
    (
        "First request to the model after opening, 1,000 messages, the process before was killed inside a request",
        "first after kill -9",
        (("ms", "first_ms", 1), ("of it opening, ms", "open_ms", 1)),
    ),
    (
        "The same, with a new input to a conversation at rest",
        "first at rest",
        (("ms", "first_ms", 1), ("of it opening, ms", "open_ms", 1)),
    ),
    (
        "After kill -9 in a new process: from its start, with imports and whatever is loaded on first use",
        "first after kill -9, with imports",
        (("ms", "first_ms", 0),),
    ),
    (
        "A new input in a new process: from its start",
        "first at rest, with imports",
        (("ms", "first_ms", 0),),
    ),
    (
        "Durable steps, one after another: a counter in a state of 100 bytes",
        "steps 100",
        (("steps/s", "steps_s", 0), ("CPU us/step", "cpu_us_step", 0), ("bytes/step", "bytes_step", 0)),
    ),
    (
        "The same in a state of 100 kB, of which only the counter changes",
        "steps 100000",
        (("steps/s", "steps_s", 0), ("CPU us/step", "cpu_us_step", 0), ("bytes/step", "bytes_step", 0)),
    ),
    (
        "Growth: turns of two messages of 200 characters in one conversation",
        "growth",
        (("turn 10, ms", "ms_at_10", 2), ("turn 100, ms", "ms_at_100", 2), ("turn 500, ms", "ms_at_500", 2), ("MB on disk", "mb", 2)),
    ),
    (
        "One step, 1,000 at once, one that has all results; durable",
        "fanout",
        (("ms", "ms", 0), ("CPU us each", "cpu_us_each", 0)),
    ),
    (
        "Streaming: 10,000 pieces of an answer to one consumer",
        "stream",
        (("pieces/s", "deltas_s", 0), ("first, ms", "first_ms", 1), ("times the consumer saw more", "seen", 0)),
    ),
    (
        "A store with 10,000 conversations: open it and read one, list the newest 20",
        "many",
        (("open, ms", "open_ms", 1), ("list, ms", "list_ms", 2), ("MB", "mb", 1)),
    ),
    (
        "Memory of a conversation that waits for its model",
        "memory",
        (("kB each", "kb_each", 1), ("process before, MB", "base_mb", 0)),
    ),
    (
        "A whole process: start, import, open a new store, one answer without tools, close",
        "start",
        (("ms", "wall_ms", 0), ("import alone, ms", "import_ms", 0)),
    ),
)  # fmt: skip

HEAD = """# Benchmarks

Figures of one run of `make bench` on one machine; read ratios, not figures.
This page and its plots are made from [results.json](results.json), which has every round of every figure.
"""

BENEATH = """## How it is measured

- Every peer does the same job: the same input of 200 characters, a model in the process that asks for the same tool ten times and then answers,
  the same tool, which returns ten words. Nothing is sent anywhere. `benchmarks/peers/job.py` has the job, `peer_*.py` what each peer is given.
- Each peer has its own environment with pinned versions, and each figure a process of its own.
  Within a round the peers take turns; figures are medians over the rounds, and a bar's ratio is taken round by round, both sides close together in time.
- A *round* is the time from one execution of the tool to the next in one conversation: result stored, model asked, answer stored, tool called.
- Every case checks what it did: how often tools and models were asked, what lies in the database afterwards, and how the connection that writes is set.
  `FULL` is `PRAGMA synchronous = FULL`: what is acknowledged survives a power loss. `process durability` survives the process, not the power.
- Peers run as they come: LangGraph's saver with WAL and FULL, its default `async` durability and `sync`; Burr's and DBOS's files with a rollback journal and FULL
  (DBOS also with WAL); the Agents SDK's session with WAL and FULL.
- "First request" leaves out imports and what a first use loads: each process makes a short run in another store before. The tables "in a new process" leave out nothing.
- "First request" is over in milliseconds, so each round measures it three times, by turns.
- The stores of "first request" and of 10,000 conversations are made once and copied for each run.

## Where perdure is weak, and what is not fair

- The floor is far away: asyncio, sqlite3 and JSON by hand need a small part of the processor time. What is between is scheduling, ownership, validation and typed records.
- Burr's actions are written by hand for this job and know nothing but a dictionary; perdure's tool is described by a schema and its arguments are validated.
- Where the disk syncs quickly, processor time decides at 100 conversations; where it is slow, grouped commits do. So a slower disk flatters perdure against Burr.
- perdure shows streamed text when it is committed, at most every 100 ms; the peers here show each piece at once and store none of them.
  So its first piece comes later, and its pieces/s is the rate of the whole, in few updates.
- perdure has no graphs yet: steps are compared by commits and by phases of a task, the fan-out by tasks.
- Pydantic AI and the Agents SDK have no durable steps and no fan-out of their own; Pydantic AI alone has no store, the Agents SDK no list of sessions: those cells are left out.
  DBOS's steps and fan-out stand under "Pydantic AI with DBOS".
- Two cores shared with the load that is named above; one process a peer. Nothing is said here about many machines, PostgreSQL or real models.

## Run it

```bash
make bench                        # everything, three rounds
make bench CASES=agent ROUNDS=1   # some cases: agent first steps growth fanout stream many memory start crash
make bench-bars                   # only what the bars need
make bench RECORD=1               # everything, and this page anew
```

It exits 1 when a bar is missed or a case fails. Rows go to `.bench/rows.jsonl` while it runs. The first time it makes the environments.
"""


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def cell(found: Spread, digits: int) -> str:
    """The median, and in brackets from where to where the rounds went."""
    middle = number(found.middle, digits)
    if found.rounds == 1:
        return middle
    return f"{middle} ({number(found.least, digits)} to {number(found.most, digits)})"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    heads = list(head)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def section(rows: list[Row], title: str, case: str, columns: tuple[Column, ...]) -> list[str]:
    found = spreads(rows, case)
    if not found:
        return []
    order = sorted(found, key=lambda key: (list(PEERS).index(key[0]), key[1]))
    body = [
        [
            PEERS[peer],
            variant,
            *(cell(found[peer, variant][name], digits) if name in found[peer, variant] else "-" for _, name, digits in columns),
        ]
        for peer, variant in order
    ]  # fmt: skip
    return [f"### {title}", "", *table(["", "", *(heading for heading, _, _ in columns)], body), ""]


def crashes(rows: list[Row]) -> list[str]:
    """What survives, by trying: the process is killed inside the fifth call of the tool, after its effect."""
    body: list[list[str]] = []
    for row in rows:
        if row["case"] == "crash":
            found = row["figures"]
            body.append([
                PEERS[row["peer"]],
                row["variant"],
                f"{found['results_kept']} of 4",
                found["goes_on"],
                str(found["killed_call_ran"]),
                f"{found['finished_calls_ran_again']} of 4",
                "yes" if found["model_is_told"] else "no",
            ])  # fmt: skip
    if not body:
        return []
    heads = ["", "", "results kept", "goes on", "the killed call ran", "finished calls that ran again", "model is told"]
    return [
        "## What survives kill -9",
        "",
        "Tried, not read: the process is killed inside the fifth call of a tool, after its effect; then the next process does what the peer's pages say.",
        "Results kept are those that a reader finds before anything goes on; with DBOS they are in no store, its recorded requests lead through the run again.",
        "",
        *table(heads, body),
        "",
        "An effect that ran twice was repeated without anybody knowing; perdure's default (*unsafe*) does not repeat it and tells the model that nobody knows how it ended.",
        "A tool declared *safe* runs again. How much LangGraph's `async` had written when it was killed differs from try to try.",
        "",
    ]


def sizes(results: dict[str, Any]) -> list[str]:
    body = [
        [PEERS[peer], results["versions"].get(peer, "-"), str(found["distributions"]), number(found["mb"], 0)]
        for peer, found in results["sizes"].items()
        if peer != "floor"
    ]
    return ["### What is installed", "", *table(["", "version", "distributions", "MB"], body), ""]


def bar_table(rows: list[Row]) -> list[str]:
    body = [
        [
            bar.name + (f" ({PEERS.get(bar.note, bar.note)})" if bar.note else ""),
            f"{'at least' if bar.at_least else 'at most'} {bar.limit:.3g}",
            cell(bar.ratio, 2),
            "kept" if bar.kept else "**missed**",
        ]
        for bar in bars(rows)
    ]
    return ["## Bars", "", "Ratios within the run: median, and the least and the most of its rounds.", "", *table(["", "bar", "measured", ""], body), ""]  # fmt: skip


def machine(facts: dict[str, Any]) -> list[str]:
    return [
        f"Measured on {facts['date']} at commit `{facts['commit']}`, rounds: {facts['rounds']}, minutes: {facts['seconds'] / 60:.0f}.",
        f"Machine: {facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}, Python {facts['python']};"
        f" a small write with fdatasync takes {facts['sync_ms']} ms.",
        f"Load of the machine before {facts['load_before']}, after {facts['load_after']}: on {facts['cores']} cores, what is above 1 is the work of others.",
        "",
    ]


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    rows: list[Row] = results["rows"]
    lines = [HEAD, *machine(results["machine"]), *bar_table(rows)]
    lines += [
        "![Runs a second at 100 conversations](agent-100.svg)",
        "![Milliseconds of a round, one conversation](agent-1.svg)",
        "![Milliseconds to the first request](first.svg)",
        "",
    ]
    lines += crashes(rows)
    lines += ["## Tables", "", "Medians, with the least and the most of the rounds in brackets.", ""]
    for title, case, columns in SECTIONS:
        lines += section(rows, title, case, columns)
    lines += sizes(results)
    for failure in results["failed"]:
        lines += [f"Not measured: {failure['what']} ({failure['error'][:80]}).", ""]
    return "\n".join([*lines, BENEATH])
