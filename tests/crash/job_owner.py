"""A process that owns a session with a background job, and tells about it, until it is told to close, or is killed.

job_owner.py DIRECTORY STRATEGY COMMAND

It says "running ID" once the job has printed "ready" and that is committed. With a line from the test it closes the
session and says "closed".

job_owner.py DIRECTORY life NUMBER

It lets one job end by itself and ends another, says "started ID" of each, and is killed where the environment says so.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import perdure
from perdure.backends.sqlite import open_sqlite
from perdure.clock import SystemClock
from perdure.sandboxes.local import LocalSandbox
from perdure.telemetry import Telemetry
from perdure.testing.crash import install_from_environment


async def line_of_input() -> None:
    loop = asyncio.get_running_loop()
    told = loop.create_future()
    loop.add_reader(0, lambda: told.done() or told.set_result(None))
    await told
    loop.remove_reader(0)


async def committed(session: Any, chat: Any, id: int) -> None:
    """Until the end of the job's output is in the store."""
    changed = asyncio.Event()
    stop = session.observe(lambda _: changed.set())
    while "ready" not in next(job for job in await chat.jobs.list() if job.id == id).tail:
        changed.clear()
        await changed.wait()
    stop()


async def life(directory: Path, number: str) -> None:
    """Each job notes that it ran, and leaves a process behind if it is let."""
    telemetry, clock = Telemetry(), SystemClock()
    vfs = install_from_environment(telemetry)
    sandbox = LocalSandbox(directory / "work", grace=0.2)
    storage = await open_sqlite(directory / "store.db", clock=clock, vfs=vfs, telemetry=telemetry)
    async with perdure.open(storage, model=None, sandbox=sandbox, telemetry=telemetry) as session:
        chat = await session.root()
        for then in ("exit 3", "wait"):
            job = await chat.jobs.start(f"echo {then} >> ran; setsid sleep {number} & echo ready; {then}")
            print("started", job.id, flush=True)  # noqa: T201
        await chat.jobs.stop(job.id)
    await sandbox.close()
    await storage.close()


async def main(directory: Path, strategy: str, command: str) -> None:
    sandbox = LocalSandbox(directory / "work", isolation=strategy, grace=0.2)
    async with perdure.open(str(directory / "store.db"), model=None, sandbox=sandbox) as session:
        chat = await session.root()
        job = await chat.jobs.start(command)
        await committed(session, chat, job.id)
        print("running", job.id, flush=True)  # noqa: T201
        await line_of_input()
    await sandbox.close()
    print("closed", flush=True)  # noqa: T201


if __name__ == "__main__":
    where = Path(sys.argv[1])
    (where / "work").mkdir(exist_ok=True)
    asyncio.run(life(where, sys.argv[3]) if sys.argv[2] == "life" else main(where, sys.argv[2], sys.argv[3]))
