"""Makes the stores that older versions wrote: `python -m tests.compat.make`, from the root of a clone with its history.

For each version in VERSIONS it checks that commit out beside the clone, lets that code write one store with a session
for each situation, and packs the store as `<name>.db.gz` beside this file. Each session is written by a process of its
own, which closes it, or is killed by SIGKILL where the situation says so. What is packed is the file as it was left,
with its log folded in; nothing of it is written by the present code.

Make them once, when a version is published, and keep them: they stand for stores that are out there.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
from tests.compat import cast
from tests.compat.cast import CART, LATER, LOST, NOTE, PLAN, Gone, Order, tools

import perdure
from perdure.model import Usage
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, call, fail, hang, say

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: By name: the commit whose code writes the store.
VERSIONS = {"core": "3d50b77409d40a7d9b7f063db28dea648ecdbc25"}

Situation = Callable[[Any], Awaitable[None]]


def main() -> None:
    for name, commit in VERSIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            tree, store = Path(folder, "tree"), Path(folder, "store.db")
            subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(tree), commit], check=True)
            try:
                _write(tree, store)
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)
            (HERE / f"{name}.db.gz").write_bytes(gzip.compress(_folded(store), mtime=0))


def _write(tree: Path, store: Path) -> None:
    """Each session by a process of its own, under the code of that tree."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(ROOT)])}
    for situation in SITUATIONS:
        done = subprocess.run(
            [sys.executable, "-m", "tests.compat.make", str(store), situation], env=env, check=False, cwd=ROOT
        )
        expected = -signal.SIGKILL if situation in KILLED else 0
        if done.returncode != expected:
            raise SystemExit(f"{situation} ended with {done.returncode}, not {expected}")


def _folded(store: Path) -> bytes:
    """The file with its log in it, as the next opening would find it."""
    connection = apsw.Connection(str(store))
    connection.pragma("wal_checkpoint(TRUNCATE)")
    connection.close()
    return store.read_bytes()


# -- in the processes of the older version ----------------------------------------------------------


async def write(store: str, situation: str) -> None:
    socket.gethostname = lambda: "elsewhere"  # a store says who wrote it
    extension = perdure.Extension(name="shop", tools=tools(), tasks=[Order(), Gone()], **_hooks(situation))
    registry = perdure.Registry([extension])
    async with perdure.open(store, session=situation, registry=registry, model=_model(situation)) as session:
        await SITUATIONS[situation](session)
        if situation in KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
    if situation == "handed in":
        async with perdure.open(store, session=situation, mode="hand-in") as session:
            await (await session.conversation("till")).submit("from elsewhere", request_id="once")


def _model(situation: str) -> Any:
    used = Usage(input=10, output=2, cost=0.5)
    both = answer(say("I pay."), call("look", {"n": 1}), call("pay", {"n": 2}), usage=used)
    script: dict[str, Any] = {
        "pay": [both, answer(say("paid"), usage=used)],
        "stream": [answer(say("half an answer"), hang())],
        "storm": [fail("rate_limited", after=30.0)],
        "": answer(say("well"), usage=used),
    }
    return ScriptedModel(by_prompt(script))


def _hooks(situation: str) -> dict[str, Any]:
    async def wait(seen: Any) -> None:
        await asyncio.Event().wait()

    return {"before_tool": [wait]} if situation == "gated" else {}


async def _until(condition: Callable[[], Awaitable[object]]) -> None:
    while not await condition():  # noqa: ASYNC110 - older versions tell nobody
        await asyncio.sleep(0)


async def finished(session: Any) -> None:
    cast.hanging.clear()
    root, chat = await session.root(), await session.conversation("till")
    await (await root.submit("hello")).wait()
    await chat.configure(max_rounds=7)
    await (await chat.submit("pay", request_id="once")).wait()


async def killed(session: Any) -> None:
    """Both calls of a round have begun, and shown something."""
    chat = await session.conversation("till")
    await chat.submit("pay")

    async def shown() -> bool:
        live = await chat.live()
        slots = list(live["tools"].values()) if live else []
        return len(slots) == 2 and all(slot["output"] for slot in slots)

    await _until(shown)


async def queued(session: Any) -> None:
    """An answer is half there; behind it wait an input of each mode and a write."""
    chat = await session.conversation("till")
    await chat.submit("stream")
    await chat.submit("follow up", request_id="later")
    await chat.submit("steer", when_busy="steer")
    await chat.write(NOTE, {"n": 1})

    async def said() -> bool:
        live = await chat.live()
        return bool(live and live["text"])

    await _until(said)


async def retrying(session: Any) -> None:
    """A rate limit is waited for."""
    chat = await session.conversation("till")
    await chat.submit("storm")

    async def waits() -> bool:
        live = await chat.live()
        return bool(live and live["retry"])

    await _until(waits)


async def gated(session: Any) -> None:
    """The calls of a round are before their intents."""
    chat = await session.conversation("till")
    await chat.submit("pay")

    async def judged() -> bool:
        return sum(task.kind == "perdure.tool" and task.state == "running" for task in session.inspect().tasks) == 2

    await _until(judged)


async def asking(session: Any) -> None:
    """A question is open, and a timer runs."""
    chat = await session.conversation("till")
    async with chat.commit() as tx:
        tx.create_task(Order, {"amount": 5})
        tx.timer(LATER, owner=await tx.use(chat.id))
    await session.resume()

    async def asks() -> bool:
        return bool(session.inspect().questions)

    await _until(asks)


async def held(session: Any) -> None:
    """Work whose code is in no later version, with a document."""
    chat = await session.conversation("till")
    async with chat.commit() as tx:
        tx.create_task(Gone, {"n": 1}, background=True)
        (await tx.doc(LOST, chat.id))["whose"] = "mine"
    await session.resume()

    async def runs() -> bool:
        return any(task.state == "running" for task in session.inspect().tasks)

    await _until(runs)


async def forked(session: Any) -> None:
    """A deleted parent, a fork of it, a fork of that; heads; documents by each rule, and a family."""
    chat = await session.conversation("parent")
    entries = []
    for number in range(6):
        async with chat.commit() as tx:
            entries.append(tx.append(chat.id, NOTE, data=number))
            (await tx.doc(PLAN))["steps"].append(number)
            (await tx.doc(PLAN, key="odd" if number % 2 else "even"))["steps"].append(number)
            (await tx.doc(CART))["lines"].append(number)
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data="summary", head=entries[4].id)
    fork = await chat.fork(entries[3].id, key="fork")
    async with fork.commit() as tx:
        tx.append(fork.id, NOTE, data="own")
        (await tx.doc(PLAN))["steps"].append("own")
    await fork.fork(entries[2].id, key="leaf")
    await session.delete(chat)


async def handed_in(session: Any) -> None:
    """Somebody hands in an input when nobody works."""
    await session.conversation("till")


SITUATIONS: dict[str, Situation] = {
    "finished": finished,
    "killed": killed,
    "queued": queued,
    "retrying": retrying,
    "gated": gated,
    "asking": asking,
    "held": held,
    "forked": forked,
    "handed in": handed_in,
}
KILLED = ("killed", "queued", "retrying", "gated", "held")

if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(write(sys.argv[1], sys.argv[2]))
    else:
        main()
