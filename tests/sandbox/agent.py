"""A process with a session in which a model runs one command of bash. It says "running" once output is committed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import perdure
from perdure.sandboxes.local import LocalSandbox
from perdure.testing.scripted import ScriptedModel, by_round, call, say
from perdure.tools.builtins import BUILTINS


def opened(directory: Path, strategy: str | None, command: str) -> tuple[LocalSandbox, Any]:
    """The sandbox, and the session to be entered."""
    sandbox = LocalSandbox(directory, isolation=strategy)
    return sandbox, perdure.open(
        str(directory / "store.db"),
        model=ScriptedModel(by_round(call("bash", {"command": command}), say("ok"))),
        registry=perdure.Registry([perdure.Extension(name="tools", tools=BUILTINS)]),
        sandbox=sandbox,
    )


async def committed(session: Any, chat: Any) -> None:
    """Until output of the command is in the store."""
    changed = asyncio.Event()
    session.observe(lambda _: changed.set())
    while not any("ready" in slot["output"] for slot in ((await chat.live()) or {"tools": {}})["tools"].values()):
        changed.clear()
        await changed.wait()


async def main(directory: Path, strategy: str, command: str) -> None:
    _, entering = opened(directory, strategy, command)
    async with entering as session:
        chat = await session.root()
        await chat.submit("go")
        await committed(session, chat)
        print("running", flush=True)  # noqa: T201
        await session.wait_idle()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
