"""Several processes at work in one file, each in its own session, beside a reader that is slow (I49)."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.testing.processes import Child

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PROCESSES, CONVERSATIONS, ROUNDS = 4, 10, 3

#: Talks in many conversations of its own session at once, as fast as it can, and says how many were answered.
WORKS = """
import asyncio, sys
import perdure
from perdure.messages import UserMessage
from perdure.testing.scripted import ScriptedModel, call, say

@perdure.tool
async def look(n: int) -> str:
    "Look."
    return "x" * 500

async def talk(session, number, rounds):
    chat = await session.conversation(f"c{number}")
    answered = 0
    for round in range(rounds):
        answered += (await (await chat.submit(f"{number} {round}")).wait()).text == "done"
    return answered

async def main(path, key, conversations, rounds):
    registry = perdure.Registry([perdure.Extension(name="x", tools=[look])])
    def script(request):
        return call("look", {"n": 1}) if isinstance(request.messages[-1], UserMessage) else say("done")

    sys.stdin.readline()
    async with perdure.open(path, session=key, model=ScriptedModel(script), registry=registry) as session:
        done = await asyncio.gather(*(talk(session, number, rounds) for number in range(conversations)))
    print(sum(done), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""

#: Holds an old snapshot of the file all the time, and reads through it row by row.
READS_SLOWLY = """
import apsw, sys
connection = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
sys.stdin.readline()
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM session").fetchall()
print("reading", flush=True)
sys.stdin.readline()
print("read", len(connection.execute("SELECT body FROM entry").fetchall()), flush=True)
"""


def child_of(code: str, *arguments: object) -> Child:
    return Child([sys.executable, "-c", code, *map(str, arguments)])


async def test_processes_that_work_in_one_file_beside_a_slow_reader_are_never_told_that_it_is_locked(tmp_path: Path):
    path = tmp_path / "store.db"
    async with perdure.open(str(path), session="seed"):
        pass
    with ExitStack() as children:
        workers = [
            children.enter_context(child_of(WORKS, path, f"s{number}", CONVERSATIONS, ROUNDS))
            for number in range(PROCESSES)
        ]
        reader = children.enter_context(child_of(READS_SLOWLY, path))
        reader.write_line("go")
        assert reader.read_line() == "reading"
        for worker in workers:
            worker.write_line("go")
        for worker in workers:
            assert worker.read_line() == str(CONVERSATIONS * ROUNDS), worker.stderr
            assert worker.wait().code == 0
        reader.write_line("finish")
        assert reader.read_line() == "read 0"

    for number in range(PROCESSES):
        async with perdure.open(str(path), session=f"s{number}", mode="read") as session:
            listed = await session.conversations(limit=100)
            assert len(listed) == CONVERSATIONS
            for each in listed:
                chat = await session.find(each.id)
                assert len([entry async for entry in chat.history()]) == 4 * ROUNDS
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
