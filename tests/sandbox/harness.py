"""A process that runs commands in a local sandbox, tells what happens as lines of JSON, and may be killed.

Its argument is a JSON object: `root`, `commands` by name, and if wanted `timeout`, `grace`, `isolation`, `uid` to
become first, and `cancel` to end all calls once every command said "ready".
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import msgspec

from perdure.sandboxes.local import LocalSandbox


def tell(name: str, **event: Any) -> None:
    sys.stdout.write(json.dumps({"name": name, **event}) + "\n")
    sys.stdout.flush()


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


async def one(
    name: str, command: str, root: str, timeout: float, grace: float, isolation: str | None, ready: asyncio.Event
) -> None:
    def output(chunk: bytes) -> None:
        if not ready.is_set():
            tell(name, output=chunk.decode("utf-8", "replace"))
        if b"ready" in chunk:
            ready.set()

    record = lambda started: tell(name, started=msgspec.to_builtins(started))  # noqa: E731
    sandbox = LocalSandbox(root, grace=grace, on_start=record, isolation=isolation)
    tell(name, isolation=await sandbox.isolation())
    try:
        tell(name, exit=msgspec.to_builtins(await sandbox.run(command, timeout=timeout, output=output)))
    except asyncio.CancelledError:
        tell(name, cancelled=True)


async def main(
    root: str,
    commands: dict[str, str],
    timeout: float = 30,
    grace: float = 2.0,
    isolation: str | None = None,
    cancel: bool = False,
) -> None:
    ready = {name: asyncio.Event() for name in commands}
    runs = [
        asyncio.ensure_future(one(name, commands[name], root, timeout, grace, isolation, ready[name]))
        for name in commands
    ]
    if cancel:
        for event in ready.values():
            await asyncio.wait_for(event.wait(), 30)
        for run in runs:
            run.cancel()
    await asyncio.wait(runs)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if "uid" in given:
        become(given.pop("uid"))
    asyncio.run(main(**given))
