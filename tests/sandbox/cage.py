"""A process that does as it is told with commands in a local sandbox, and tells, as lines of JSON. It may be killed.

Its argument: `root`, and if wanted `isolation`, `grace`, `uid` to become first, `forbid` to be put under a filter that
forbids namespaces. Orders: `run` (`commands` by name, `timeout`) starts commands and tells each end; `cancel` cancels
those that run; `close` closes the sandbox; `probe` tries every strategy; `python` evaluates something with `sandbox`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from typing import Any

import msgspec
from tests.sandbox.seccomp import forbid_namespaces

from perdure.sandboxes import threads
from perdure.sandboxes.local import LocalSandbox
from perdure.sandboxes.probing import probe


def tell(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Cage:
    def __init__(self, root: str, isolation: str | None = None, grace: float = 2.0) -> None:
        self.sandbox = LocalSandbox(root, isolation=isolation, grace=grace)
        self.running: set[asyncio.Task[None]] = set()

    async def run(self, commands: dict[str, str], timeout: float) -> None:
        for name, command in commands.items():
            task = asyncio.ensure_future(self.one(name, command, timeout))
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def one(self, name: str, command: str, timeout: float) -> None:
        printed = bytearray()
        try:
            ended = await self.sandbox.run(command, timeout=timeout, output=lambda piece: printed.extend(piece[:2000]))
        except asyncio.CancelledError:
            tell(name=name, cancelled=True)
        except Exception:
            tell(name=name, error=traceback.format_exc())
        else:
            tell(name=name, exit=msgspec.to_builtins(ended), printed=printed.decode(errors="replace"))

    async def cancel(self) -> None:
        for task in self.running:
            task.cancel()

    async def close(self) -> None:
        await self.sandbox.close()
        tell(closed=True)

    async def probe(self) -> None:
        found = await threads.start(probe, "probe")
        tell(found={each.strategy.name: "" if each.works else each.reason for each in found})

    async def isolation(self) -> None:
        tell(isolation=await self.sandbox.isolation())


async def main(given: dict[str, Any]) -> None:
    cage = Cage(**given)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tell(ready=True)
    while line := await reader.readline():
        order = json.loads(line)
        await getattr(cage, order.pop("do"))(**order)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    uid = given.pop("uid", None)
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    if given.pop("forbid", False):
        forbid_namespaces()
    asyncio.run(main(given))
