"""A process that owns a session with a background job, and tells about it, until it is told to close, or is killed.

job_owner.py DIRECTORY STRATEGY COMMAND

It says "running ID" once the job has printed "ready" and that is committed. With a line from the test it closes the
session and says "closed".
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import perdure
from perdure.sandboxes.local import LocalSandbox


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


async def main(directory: Path, strategy: str, command: str) -> None:
    (directory / "work").mkdir(exist_ok=True)
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
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
