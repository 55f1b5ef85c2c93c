"""A process that runs one command in a local sandbox, tells what happens as lines of JSON, and may be killed.

Its argument is a JSON object: `root`, `command`, `timeout`, and if wanted `grace`, `uid` to become first, and `cancel` to
end the call as soon as the command printed anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import msgspec

from perdure.sandboxes.local import LocalSandbox


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


async def main(root: str, command: str, timeout: float, grace: float = 2.0, cancel: bool = False) -> None:
    sandbox = LocalSandbox(root, grace=grace, on_start=lambda record: tell(started=msgspec.to_builtins(record)))
    spoke = asyncio.Event()

    def output(chunk: bytes) -> None:
        tell(output=chunk.decode("utf-8", "replace"))
        spoke.set()

    running = asyncio.ensure_future(sandbox.run(command, timeout=timeout, output=output))
    if cancel:
        await asyncio.wait_for(spoke.wait(), 20)
        running.cancel()
    try:
        tell(exit=msgspec.to_builtins(await running))
    except asyncio.CancelledError:
        tell(cancelled=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if "uid" in given:
        become(given.pop("uid"))
    asyncio.run(main(**given))
