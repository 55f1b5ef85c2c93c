"""No public call can freeze an event loop: what is not awaited answers at once, here and in a thread (I50)."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import perdure
from perdure.errors import UsageError
from perdure.testing.scripted import ScriptedModel, hang

pytestmark = pytest.mark.anyio

HANDLES = (perdure.Session, perdure.Conversation, perdure.Submission, perdure.Store)


def plain_calls(session: Any, chat: Any, sent: Any, store: Any) -> dict[str, Callable[[], Any]]:
    """Every public call of the handles that is not awaited, and the functions beside them."""
    return {
        "Session.submission": lambda: session.submission(sent.id).id,
        "Session.inspect": session.inspect,
        "Session.subtree": lambda: session.subtree(session.inspect().tasks[0].id),
        "Session.commit": session.commit,
        "Session.observe": lambda: session.observe(lambda change: None)(),
        "Session.key": lambda: session.key,
        "Session.owner": lambda: session.owner,
        "Conversation.commit": chat.commit,
        "Conversation.busy": lambda: chat.busy,
        "Conversation.inbox": chat.inbox,
        "Conversation.jobs": lambda: chat.jobs,
        "Conversation.agents": lambda: chat.agents,
        "Store.look": store.look,
        "Store.hand_in": store.hand_in,
        "Store.session": store.session,
        "document": lambda: perdure.document("test.other"),
        "entry_kind": lambda: perdure.entry_kind("test.other"),
        "permissions": lambda: perdure.permissions(deny=["bash rm"]),
        "section": lambda: perdure.section("a", "b"),
        "tool": lambda: perdure.tool(work),
        "phase": lambda: perdure.phase(_phase),
        "open": lambda: perdure.open("memory:"),
        "store": lambda: perdure.store("memory:"),
    }


async def _phase(task: Any, invocation: Any) -> None:
    """A phase."""


def work() -> str:
    """Work."""
    return "done"


def not_awaited() -> Iterator[str]:
    """The names of all of these, from the classes themselves."""
    for handle in HANDLES:
        name = next(name for name in perdure.__all__ if getattr(perdure, name) is handle)
        for member, value in vars(handle).items():
            if member.startswith("_") or inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value):
                continue
            yield f"{name}.{member}"
    for name in perdure.__all__:
        value = getattr(perdure, name)
        if inspect.isfunction(value) and not inspect.iscoroutinefunction(value) and name != "run":
            yield name


async def test_every_public_call_that_is_not_awaited_answers_at_once_on_the_loop_and_in_a_thread():
    async with perdure.store("memory:", model=ScriptedModel(hang())) as store, store.session() as session:
        chat = await session.conversation("a")
        sent = await chat.submit("go")
        calls = plain_calls(session, chat, sent, store)
        assert sorted(set(not_awaited()) - set(calls)) == [], "call them here too"
        here = {name: call() for name, call in calls.items()}

        there: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: there.update({name: call() for name, call in calls.items()}))
        thread.start()
        thread.join(10)  # the loop stands still meanwhile: nothing may need it

        assert not thread.is_alive()
        assert set(there) == set(here)


async def test_running_a_script_inside_a_loop_is_refused_with_the_remedy():
    async def main() -> str:
        return "never"

    with pytest.raises(UsageError, match="await the coroutine"):
        perdure.run(main)
    with pytest.raises(UsageError, match="await the coroutine"):
        perdure.run(main())


async def test_running_a_script_in_a_worker_thread_works_beside_the_loop():
    async def main() -> str:
        async with perdure.open("memory:") as session:
            await session.conversation("a")
        return "done"

    assert await asyncio.to_thread(perdure.run, main) == "done"


# what is awaited on another loop than the session's must not wait for ever for it either
async def test_a_synchronous_tool_that_blocks_its_thread_does_not_hold_the_loop():
    free, begun = threading.Event(), threading.Event()

    @perdure.tool
    def block() -> str:
        """Block."""
        begun.set()
        free.wait(30)
        return "done"

    registry = perdure.Registry([perdure.Extension(name="x", tools=[block])])
    async with perdure.open("memory:", registry=registry) as session:
        chat = await session.conversation("a")
        sent = await chat.submit("call block")
        await session.until(lambda: any(task.begun for task in session.inspect().tasks))
        await asyncio.to_thread(begun.wait, 30)
        other = await session.conversation("b")
        assert isinstance(await (await other.submit("hello")).wait(), perdure.Answered)
        free.set()
        assert isinstance(await sent.wait(), perdure.Answered)
