"""The floor: what asyncio, the standard library's sqlite3 and JSON cost for the same job, without any framework."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import job
from job import ANSWER, BODY, PIECES, ROUNDS, SAID, SEEDED, STORED, asked, now, question, worked

INSERT = "INSERT INTO message VALUES (?, ?, ?)"


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS message"
        " (conversation INTEGER, number INTEGER, body TEXT, PRIMARY KEY (conversation, number)) WITHOUT ROWID"
    )
    return connection


class Log:
    """Rows that are durable when `add` returns: written here and now, or by a thread that groups what waits."""

    def __init__(self, path: Path, synchronous: str, grouped: bool) -> None:
        self.connection = connect(path, synchronous)
        self._queue: queue.SimpleQueue[tuple[tuple[Any, ...], asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write) if grouped else None
        if self._thread is not None:
            self._thread.start()

    async def add(self, conversation: int, number: int, message: dict[str, Any]) -> None:
        row = (conversation, number, json.dumps(message))
        if self._thread is None:
            self.connection.execute(INSERT, row)
            await asyncio.sleep(0)
        else:
            stored = self._loop.create_future()
            self._queue.put((row, stored))
            await stored

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        self.connection.close()

    def _write(self) -> None:
        while (first := self._queue.get()) is not None:
            group = [first]
            while not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    self._queue.put(None)
                    break
                group.append(following)
            self.connection.execute("BEGIN")
            self.connection.executemany(INSERT, [row for row, _ in group])
            self.connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(lambda stored=group: [future.set_result(None) for _, future in stored])


def answer(history: list[dict[str, Any]], run: int) -> dict[str, Any]:
    """The model."""
    results = sum(message["role"] == "tool" for message in history)
    asked(len(history), results)
    if results >= ROUNDS:
        return {"role": "assistant", "content": ANSWER}
    return {"role": "assistant", "call": {"name": "t", "arguments": {"run": run, "i": results}}}


async def agent(folder: Path, conversations: int, synchronous: str = "FULL", grouped: bool = False) -> None:
    log = Log(folder / "a.db", synchronous, grouped)

    async def run(number: int) -> str:
        history: list[dict[str, Any]] = [{"role": "user", "content": question(number)}]
        await log.add(number, 1, history[0])
        while True:
            said = answer(history, number)
            history.append(said)
            await log.add(number, len(history), said)
            if "call" not in said:
                return str(said["content"])
            history.append({"role": "tool", "content": worked(number, said["call"]["arguments"]["i"])})
            await log.add(number, len(history), history[-1])

    figures = await job.drive(run, conversations)
    checked = job.modes(log.connection)
    log.close()
    stored = job.count(folder / "a.db", "SELECT count(*) FROM message WHERE conversation = 7")
    assert stored == 2 * ROUNDS + 2
    job.report(synchronous + (", grouped commits" if grouped else ""), figures, stored=stored, **checked)


def cold(folder: Path) -> None:
    connection = connect(folder / "a.db", "FULL")
    connection.execute(INSERT, (1, 1, json.dumps({"role": "user", "content": question(1)})))
    connection.execute(INSERT, (1, 2, json.dumps({"role": "assistant", "content": ANSWER})))
    job.report("FULL", {})


async def durable(folder: Path, steps: int, size: int, synchronous: str = "FULL") -> None:
    connection = connect(folder / "a.db", synchronous)
    with job.measured() as found:
        for number in range(steps):
            connection.execute(INSERT, (1, number, json.dumps({"x": number + 1})))
            await asyncio.sleep(0)
    connection.close()
    assert job.count(folder / "a.db", "SELECT count(*) FROM message") == steps
    bytes_step = job.size(folder / "a.db") / steps
    figures = {"steps_s": steps / found.seconds, "cpu_us_step": found.cpu / steps * 1e6, "bytes_step": bytes_step}
    job.report(f"{synchronous}, only the change", figures)


async def growth(folder: Path, synchronous: str = "FULL") -> None:
    connection, history = connect(folder / "a.db", synchronous), []

    async def turn(number: int) -> None:
        for role, content in (("user", BODY), ("assistant", SAID)):
            history.append({"role": role, "content": content})
            connection.execute(INSERT, (1, len(history), json.dumps(history[-1])))

    figures = await job.grow(turn)
    connection.close()
    job.report(synchronous, {**figures, "mb": job.size(folder / "a.db") / 1e6})


async def fanout(folder: Path, count: int) -> None:
    connection = connect(folder / "a.db", "FULL")

    async def work(number: int) -> int:
        return number

    with job.measured() as found:
        results = await asyncio.gather(*(work(number) for number in range(count)))
        connection.execute("BEGIN")
        connection.executemany(INSERT, [(1, number, json.dumps(result)) for number, result in enumerate(results)])
        connection.execute("COMMIT")
    assert job.count(folder / "a.db", "SELECT count(*) FROM message") == count
    job.report("FULL, one commit", {"ms": found.seconds * 1e3, "cpu_us_each": found.cpu / count * 1e6})


async def stream(folder: Path) -> None:
    pieces: asyncio.Queue[str | None] = asyncio.Queue(1000)

    async def produce() -> None:
        for _ in range(PIECES):
            await pieces.put("abcde")
            await asyncio.sleep(0)
        await pieces.put(None)

    began, first, found = now(), 0.0, 0
    producer = asyncio.create_task(produce())
    while await pieces.get() is not None:
        first = first or now() - began
        found += 1
    await producer
    assert found == PIECES
    job.report("asyncio.Queue", {"deltas_s": found / (now() - began), "first_ms": first * 1e3, "seen": found})


def build(folder: Path) -> None:
    connection = connect(folder / "a.db", "FULL")
    for number in range(SEEDED + 3):
        connection.execute(INSERT, (1, number, json.dumps({"role": "user", "content": SAID})))
    os.kill(os.getpid(), signal.SIGKILL)


def resume(folder: Path, warm: bool = True) -> None:
    began = now()
    connection = connect(folder / "a.db", "FULL")
    rows = connection.execute("SELECT body FROM message WHERE conversation = 1 ORDER BY number").fetchall()
    history = [json.loads(row[0]) for row in rows]
    asked(len(history), 1)
    job.report_first("FULL", began, now(), warm)


def fill(folder: Path) -> None:
    connection = connect(folder / "a.db", "OFF")
    connection.execute("BEGIN")
    rows = (
        (chat, number, json.dumps({"role": "user", "content": SAID})) for chat in range(STORED) for number in (1, 2)
    )
    connection.executemany(INSERT, rows)
    connection.execute("COMMIT")


def many(folder: Path) -> None:
    began = now()
    connection = connect(folder / "a.db", "FULL")
    found = connection.execute("SELECT body FROM message WHERE conversation = 5000").fetchall()
    opened = now()
    newest = connection.execute("SELECT DISTINCT conversation FROM message ORDER BY 1 DESC LIMIT 20").fetchall()
    listed = now()
    assert (len(found), len(newest)) == (2, 20)
    connection.close()
    figures = {"open_ms": (opened - began) * 1e3, "list_ms": (listed - opened) * 1e3}
    job.report("FULL", {**figures, "mb": job.size(folder / "a.db") / 1e6})


async def memory(folder: Path, count: int) -> None:
    release = asyncio.Event()

    async def wait(number: int) -> list[dict[str, str]]:
        history = [{"role": "user", "content": question(number)}]
        await release.wait()
        return history

    before = job.resident()
    waiting = [asyncio.create_task(wait(number)) for number in range(count)]
    await asyncio.sleep(0.1)
    each = (job.resident() - before) / count / 1e3
    job.report("a task and a list", {"kb_each": each, "base_mb": before / 1e6})
    release.set()
    await asyncio.gather(*waiting)


if __name__ == "__main__":
    job.main((agent, cold, durable, growth, fanout, stream, build, resume, fill, many, memory))
