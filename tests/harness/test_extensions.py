"""Extensions: what is installed, what a conversation uses of it, wrappers, setup, and results that ask for more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.errors import UsageError
from perdure.harness.hooks import Block
from perdure.harness.registry import Extension, Registry, ToolResult, section, tool
from perdure.harness.stored import AGENT
from perdure.messages import text_of, user
from perdure.records import Inbound
from perdure.sandboxes.local import LocalSandbox
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.scripted import answer, by_prompt, by_round, call, say

pytestmark = pytest.mark.anyio
STARTED = document("test.started")
STARTED_KIND = entry_kind("test.started")


class Waits(TaskDefinition):
    """Stays until it is told to stop."""

    kind = "test.waits"

    @phase(first=True)
    async def wait(self, invocation: Any) -> None:
        await asyncio.Event().wait()


@tool
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


@tool
async def push(n: int = 0) -> str:
    """Push."""
    return "pushed"


@tool
def count(n: int = 0) -> str:
    """Count, in a thread."""
    return f"counted {n}"


def requests(world: Any) -> list[Any]:
    return world.strict[-1].inner.requests


def offered(request: Any) -> list[str]:
    return [spec.name for spec in request.tools]


async def ask(chat: Any, text: str = "go") -> Any:
    return await (await chat.submit(text)).wait()


async def results(chat: Any) -> list[Any]:
    return [entry.messages[0] async for entry in chat.history() if entry.kind == "perdure.tool_result"][::-1]


# -- what is installed --------------------------------------------------------------------------


@pytest.mark.invariant("HX-1")
def test_a_registry_does_not_change_when_what_it_was_made_of_does():
    tools = [look]
    registry = Registry([Extension(name="x", tools=tools)])
    tools.append(push)
    assert list(registry.tools) == ["look"]
    assert list(registry.extensions[0].tools) == [look]


@pytest.mark.parametrize(
    "extensions, says",
    [
        ([Extension(name="x"), Extension(name="x")], "extension named 'x'"),
        ([Extension(name="")], "name that is not empty"),
        ([Extension(name="x", sections=[section("a", "1"), section("a", "2")])], "section named 'a'"),
        ([Extension(name="x", sections=[section("instructions", "1")])], "cannot be named 'instructions'"),
        ([Extension(name="x", on_yield=lambda seen: None)], r"on_yield=\[…\]"),  # type: ignore[arg-type]
        ([Extension(name="x", wrappers=["no"])], "no function"),  # type: ignore[list-item]
        ([Extension(name="x", hook_seconds=0)], "hook_seconds"),
    ],
)
def test_what_cannot_be_installed_is_refused_with_the_remedy(extensions: Any, says: str):
    with pytest.raises(UsageError, match=says):
        Registry(extensions)


@pytest.mark.invariant("HX-1")
async def test_running_work_keeps_what_it_took_and_new_work_uses_what_is_published(world: Any):
    gate, begun = asyncio.Event(), asyncio.Event()

    @tool(name="look")
    async def old(n: int = 0) -> str:
        """Look."""
        begun.set()
        await gate.wait()
        return "old"

    script = by_round(answer(call("look")), answer(call("look")), say("ok"))
    session = await world.open(script, registry=Registry([Extension(name="x", tools=[old])]))
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await begun.wait()
    await session.install(Registry([Extension(name="x", tools=[look])]))
    gate.set()
    await sent.wait()
    assert [found.text for found in await results(chat)] == ["old", "saw 0"]


# -- what a conversation uses -------------------------------------------------------------------


@pytest.mark.invariant("HX-2")
async def test_a_conversation_uses_extensions_by_name_and_names_without_code_come_back(world: Any):
    async def guard(seen: Any) -> Any:
        return Block("guarded")

    shop = Extension(name="shop", tools=[look], sections=[section("role", "You sell.")])
    careful = Extension(name="careful", tools=[push], sections=[section("care", "Be careful.")], before_tool=[guard])
    other = Extension(name="other", tools=[count], default=False)
    session = await world.open(by_prompt({"": [call("look"), say("ok")]}), registry=Registry([shop, careful, other]))
    plain, chat = await session.conversation("plain"), await session.conversation("a")
    await chat.configure(extensions=("shop", "gone", "other"))
    await ask(chat)
    await ask(plain)

    assert (requests(world)[0].system, offered(requests(world)[0])) == ("You sell.", ["look", "count"])
    assert (requests(world)[2].system, offered(requests(world)[2])) == ("You sell.\n\nBe careful.", ["look", "push"])
    assert [found.error for found in await results(chat)] == [None]
    assert [found.error for found in await results(plain)] == ["blocked"]

    back = Extension(name="gone", tools=[push], before_tool=[guard], default=False)
    session = await world.restart(registry=Registry([shop, other, back]))
    chat = await session.conversation("a")
    await ask(chat, "again")
    assert "push" in offered(requests(world)[-1])
    assert [found.error for found in await results(chat)] == [None, "blocked"]


@pytest.mark.invariant("HX-3")
async def test_subtree_hooks_apply_in_every_conversation_that_tasks_below_own(world: Any):
    judged: list[int] = []

    async def watch(seen: Any) -> None:
        judged.append(seen.conversation)

    @tool(timeout=600)
    async def delegate(call: Any, depth: int) -> str:
        """Hand the work to a conversation of its own."""
        async with call.commit() as tx:
            child = tx.create_conversation(owner=call._invocation.id)
        chat = await world.session.find(child.id)
        return (await ask(chat, "leaf" if depth == 0 else "deeper")).text

    script = by_prompt(
        {
            "top": [call("delegate", {"depth": 1}), say("ok")],
            "deeper": [call("delegate", {"depth": 0}), say("ok")],
            "leaf": [call("look"), say("ok")],
            "plain": [call("look"), say("ok")],
        }
    )
    watching = Extension(name="watching", before_tool=[watch], default=False)
    session = await world.open(script, registry=Registry([Extension(name="x", tools=[look, delegate]), watching]))
    chat, plain = await session.conversation("a"), await session.conversation("plain")
    await chat.configure(subtree=("watching",))
    await ask(plain, "plain")
    assert judged == []
    await ask(chat, "top")

    owned = [found.id for found in await session.conversations() if found.owner is not None]
    assert judged == [chat.id, *sorted(owned)]


@pytest.mark.invariant("HX-1")
async def test_a_round_keeps_the_selection_with_which_it_was_asked(world: Any):
    gate, begun, judged = asyncio.Event(), asyncio.Event(), []

    async def watch(seen: Any) -> None:
        judged.append(seen.name)

    @tool(sequential=True)
    async def slow() -> str:
        """Slow."""
        begun.set()
        await gate.wait()
        return "done"

    script = by_round(answer(call("slow"), call("slow")), say("ok"))
    registry = Registry([Extension(name="x", tools=[slow]), Extension(name="watching", before_tool=[watch])])
    session = await world.open(script, registry=registry)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await begun.wait()
    await chat.configure(extensions=("x",))
    gate.set()
    await sent.wait()
    assert judged == ["slow", "slow"]


async def test_a_conversation_works_in_a_directory_of_the_sessions(world: Any, tmp_path: Path):
    @tool
    async def write_note(call: Any, text: str) -> str:
        """Write a note."""
        await call.sandbox.write("note.txt", text.encode())
        return call.sandbox.root

    (tmp_path / "web").mkdir()
    sandbox = LocalSandbox(str(tmp_path), clock=world.clock)
    try:
        script = by_prompt({"": [call("write_note", {"text": "hi"}), say("ok")]})
        session = await world.open(script, write_note, sandbox=sandbox)
        chat = await session.conversation("a")
        await chat.configure(directory="web")
        await ask(chat)
        assert [found.text for found in await results(chat)] == [str(tmp_path / "web")]
        assert (tmp_path / "web" / "note.txt").read_text() == "hi"
        with pytest.raises(UsageError, match="below the session's own"):
            await chat.configure(directory="../elsewhere")
    finally:
        await world.close()
        await sandbox.close()


# -- setup --------------------------------------------------------------------------------------


def started(key: str = "fresh") -> Any:
    async def setup(tx: Any, conversation: Any, parent: Any) -> None:
        (await tx.doc(STARTED))["from"] = [conversation.id, None if parent is None else parent.id]

    return Registry([Extension(name=key, tools=[look], tasks=[Waits], setup=[setup])])


@pytest.mark.invariant("HX-4")
async def test_setup_runs_in_each_commit_that_makes_a_conversation_whoever_makes_it(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=started())
    root, chat = await session.root(), await session.conversation("a")
    await ask(chat)
    child = await chat.fork((await chat.entries(limit=1))[0].id)
    async with chat.commit() as tx:
        owner = tx.create_task(Waits, owner=await tx.use(chat.id))
    async with chat.commit() as tx:
        owned = tx.create_conversation(owner=owner.id)
    message = msgspec.to_builtins(user("handed in"))
    item = Inbound(id=world.clock.uuid7(), kind="input", body={"key": "handed", "message": message}, at=1.0)
    await world.storage.hand_in("main", item)
    session = await world.restart()
    others = [await session.find(owned.id), await session.conversation("handed")]

    root, chat, child = [await session.find(each.id) for each in (root, chat, child)]
    for each, parent in ((root, None), (chat, None), (child, chat.id), *((other, None) for other in others)):
        assert (await each.snapshot(STARTED))["from"] == [each.id, parent]


@pytest.mark.invariant("HX-4")
async def test_setup_that_raises_fails_the_commit_and_nothing_is_written(world: Any):
    async def setup(tx: Any, conversation: Any, parent: Any) -> None:
        tx.append(conversation.id, STARTED_KIND)
        raise ValueError("not today")

    session = await world.open(by_prompt({"": say("ok")}), registry=Registry([Extension(name="x", setup=[setup])]))
    with pytest.raises(ValueError, match="not today"):
        await session.conversation("a")
    assert await session.conversations() == []
    await session.install(Registry())
    assert (await ask(await session.conversation("a"))).text == "ok"


async def test_setup_sees_the_settings_with_which_a_conversation_is_made(world: Any):
    session = await world.open(by_prompt({"": say("ok")}), registry=started())
    async with session.commit() as tx:
        made = tx.create_conversation()
        (await tx.doc(AGENT, made.id))["extensions"] = []
    assert await (await session.find(made.id)).snapshot(STARTED) is None


# -- wrappers -----------------------------------------------------------------------------------


@pytest.mark.invariant("HX-20")
async def test_wrappers_stand_around_a_call_in_the_order_of_the_registry(world: Any):
    told: list[str] = []

    def wrapper(name: str) -> Any:
        async def around(call: Any, run: Any) -> Any:
            told.append(f"{name} before {call.name} {call.arguments}")
            value = await run()
            told.append(f"{name} after")
            return f"{name}({value})"

        return around

    registry = Registry(
        [
            Extension(name="x", tools=[look, count], wrappers=[wrapper("a"), wrapper("b")]),
            Extension(name="y", wrappers=[wrapper("c")]),
        ]
    )
    session = await world.open(
        by_round(answer(call("look", {"n": 1})), answer(call("count")), say("ok")), registry=registry
    )
    chat = await session.conversation("a")
    await world.running(ask(chat))
    assert [found.text for found in await results(chat)] == ["a(b(c(saw 1)))", "a(b(c(counted 0)))"]
    n = {"n": 1}
    assert told[:6] == [
        f"a before look {n}",
        f"b before look {n}",
        f"c before look {n}",
        "c after",
        "b after",
        "a after",
    ]


@pytest.mark.invariant("HX-20")
async def test_a_wrapper_that_raises_makes_a_tool_error_and_none_repeats_an_unsafe_effect(world: Any):
    ran: list[int] = []

    @tool
    async def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    async def twice(call: Any, run: Any) -> Any:
        await run()
        return await run()

    async def breaks(call: Any, run: Any) -> Any:
        raise LookupError("no cache")

    for wrapper, says in ((twice, "twice"), (breaks, "LookupError: no cache")):
        if world.session is not None:
            await world.close()
        registry = Registry([Extension(name="x", tools=[pay], wrappers=[wrapper])])
        session = await world.open(by_prompt({"": [call("pay"), say("ok")]}), registry=registry)
        chat = await session.conversation(says)
        await ask(chat)
        (found,) = await results(chat)
        assert (found.error, says in found.text) == ("tool_error", True)
    assert ran == [1]


async def test_a_wrapper_may_answer_from_a_cache_without_running_the_tool(world: Any):
    kept: dict[str, Any] = {}

    async def cache(call: Any, run: Any) -> Any:
        key = f"{call.name}{call.arguments}"
        if key not in kept:
            kept[key] = await run()
            return kept[key]
        return f"again: {kept[key]}"

    registry = Registry([Extension(name="x", tools=[look], wrappers=[cache])])
    session = await world.open(by_round(answer(call("look")), answer(call("look")), say("ok")), registry=registry)
    chat = await session.conversation("a")
    await ask(chat)
    assert [found.text for found in await results(chat)] == ["saw 0", "again: saw 0"]


# -- results that ask for more ------------------------------------------------------------------


def asking(**wants: Any) -> Any:
    @tool(name="asking")
    async def function(n: int = 0) -> Any:
        """Ask for more."""
        return ToolResult(value="here", **wants)

    return function


@pytest.mark.invariant("HX-21")
async def test_a_result_may_add_installed_tools_to_its_conversation(world: Any):
    more = Extension(name="more", tools=[push], default=False)
    registry = Registry([Extension(name="x", tools=[asking(add_tools=["push", "nothing"])]), more])
    session = await world.open(by_round(answer(call("asking")), answer(call("push")), say("ok")), registry=registry)
    chat, other = await session.conversation("a"), await session.conversation("other")
    await ask(chat)
    assert [(found.name, found.error) for found in await results(chat)] == [("asking", None), ("push", None)]
    assert "nothing" in (await results(chat))[0].text
    session = await world.restart()
    await ask(await session.conversation("a"), "again")
    assert offered(requests(world)[-1]) == ["asking", "push"]
    assert (await other.settings()).added_tools == ()


@pytest.mark.invariant("HX-21")
async def test_a_run_ends_early_only_when_every_result_of_a_round_asks(world: Any):
    script = by_round(
        answer(say("first"), call("asking"), call("look")),
        answer(say("second"), call("asking"), call("nothing")),
        answer(say("third"), call("asking"), call("asking")),
        say("never"),
    )
    session = await world.open(script, registry=Registry([Extension(name="x", tools=[asking(terminate=True), look])]))
    chat = await session.conversation("a")
    assert (await ask(chat)).text == "third"
    assert not chat.busy
    assert len(requests(world)) == 3


@pytest.mark.invariant("HX-21")
async def test_a_handoff_resets_the_conversation_and_what_waited_goes_on_from_there(world: Any):
    script = by_prompt({"go": [call("asking"), say("never")], "next": say("fresh")})
    registry = Registry([Extension(name="x", tools=[asking(handoff="We fixed the login test.")])])
    session = await world.open(script, registry=registry)
    chat = await session.conversation("a")
    first, second = await chat.submit("go"), await chat.submit("next")
    settled = await first.wait()
    assert (settled.reason, (await second.wait()).text) == ("reset", "fresh")
    assert [text_of(message) for message in requests(world)[-1].messages] == ["We fixed the login test.", "next"]


@pytest.mark.parametrize("wants", [{"add_tools": "push"}, {"add_tools": [1]}, {"handoff": " "}, {"handoff": 7}])
async def test_a_result_that_asks_for_nonsense_is_an_error_of_the_tool(world: Any, wants: Any):
    session = await world.open(by_prompt({"": [call("asking"), say("ok")]}), asking(**wants))
    chat = await session.conversation("a")
    assert (await ask(chat)).text == "ok"
    assert (await results(chat))[0].error == "tool_error"
