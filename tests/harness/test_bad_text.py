"""Characters that some storage or provider cannot take are cleaned once, where they enter (I57, I58)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryStorage
from perdure.errors import InvalidValue
from perdure.harness.hooks import Block
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import Image, Text, UserMessage, calls_of, text_of
from perdure.sandboxes.local import LocalSandbox
from perdure.session.documents import document
from perdure.testing.scripted import ScriptedModel, answer, by_round, call, fail, say
from perdure.tools.builtins import BUILTINS

pytestmark = pytest.mark.anyio

#: A NUL, lone surrogates, bytes that surrogateescape made, and text that only spells a NUL out.
BAD = "h\0i \ud835 \udc97\udcff \\u0000"
GOOD = "h\u2400i \ufffd \ufffd\ufffd \\u0000"


@tool
async def echo(text: str = "") -> str:
    """Say it back."""
    return text


@tool
async def bad_text() -> str:
    """Bad text."""
    return BAD


@tool
async def bad_value() -> dict[str, Any]:
    """Bad text in a value, and as a key."""
    return {BAD: [BAD]}


@tool
async def bad_error() -> str:
    """Fail badly."""
    raise ValueError(BAD)


@tool
async def bad_notes(call: Any) -> str:
    """Bad text in everything beside the result."""
    call.output(BAD)
    call.details({BAD: BAD})
    call.diagnostic(BAD)
    return "done"


TOOLS = (echo, bad_text, bad_value, bad_error, bad_notes)


async def conversation_of(world: Any, *script: Any, registry: Registry | None = None) -> Any:
    session = await world.open(by_round(*script), *TOOLS, registry=registry)
    chat = await session.conversation("a")
    assert (await world.running((await chat.submit("go")).wait())).text == "ok"
    return chat


async def restarted(world: Any) -> tuple[Any, list[Any]]:
    """The conversation and its messages after a restart."""
    session = await world.restart(model=ScriptedModel(say("fine")))
    chat = await session.conversation("a")
    return chat, [message for entry in [entry async for entry in chat.history()][::-1] for message in entry.messages]


async def test_a_user_message_is_cleaned_where_it_enters(world: Any):
    session = await world.open(say("ok"))
    await (await (await session.conversation("a")).submit(BAD)).wait()
    chat, found = await restarted(world)
    assert text_of(found[0]) == GOOD
    assert (await (await chat.submit("two")).wait()).text == "fine"


async def test_a_model_s_text_and_arguments_are_cleaned_before_anything_is_made_of_them(world: Any):
    await conversation_of(world, answer(say(BAD, pieces=1), call("echo", {"text": "x\0"}, pieces=1)), say("ok"))
    _, found = await restarted(world)
    assert text_of(found[1]) == GOOD
    assert [part.arguments for part in calls_of(found[1])] == [{"text": "x\u2400"}]
    assert found[2].text == "x\u2400"


async def test_arguments_that_spell_a_nul_out_twice_are_left_as_they_are(world: Any):
    await conversation_of(world, call("echo", '{"text": "\\\\u0000 and \\ud835"}'), say("ok"))
    _, found = await restarted(world)
    assert found[2].text == "\\u0000 and \ufffd"


@pytest.mark.parametrize(
    "name, told",
    [
        ("bad_text", lambda text: text == GOOD),
        ("bad_value", lambda text: text.count("h\u2400i \ufffd") == 2),
        ("bad_error", lambda text: f"ValueError: {GOOD}" in text),
        ("bad_notes", lambda text: text == "done"),
    ],
)
async def test_whatever_a_tool_gives_is_stored_clean_and_the_run_goes_on(
    world: Any, name: str, told: Callable[[str], bool]
):
    await conversation_of(world, call(name), say("ok"))
    chat, found = await restarted(world)
    assert told(found[2].text), found[2].text
    assert (await (await chat.submit("two")).wait()).text == "fine"


async def deny(seen: Any) -> Block:
    return Block(BAD)


async def burst(seen: Any) -> Block:
    raise RuntimeError(BAD)


@pytest.mark.parametrize("hook", [deny, burst])
async def test_what_a_hook_says_is_cleaned(world: Any, hook: Callable[[Any], Awaitable[Block]]):
    registry = Registry([Extension(name="x", tools=TOOLS, before_tool=[hook])])
    await conversation_of(world, call("echo"), say("ok"), registry=registry)
    _, found = await restarted(world)
    assert (found[2].error, GOOD in found[2].text) == ("blocked", True)


async def test_the_message_of_a_provider_s_error_is_cleaned_and_does_not_break_the_next_run(memory_world: Any):
    world = memory_world
    session = await world.open(answer(say("some"), fail("auth", message=BAD)))
    chat = await session.conversation("a")
    ended = await world.running((await chat.submit("go")).wait())
    assert GOOD in ended.detail
    chat, _ = await restarted(world)
    assert (await world.running((await chat.submit("two")).wait())).text == "fine"


async def test_an_abort_s_reason_is_cleaned(world: Any):
    session = await world.open(fail("rate_limited", after=60.0))
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    await world.running(chat.abort(reason=BAD))
    assert GOOD in (await sent.wait()).detail


async def test_keys_are_cleaned_as_values_are_and_found_by_what_they_were(world: Any):
    """Of conversations, of documents, and inside of them."""
    notes, shared = document("test.notes"), document("test.shared", scope="session")
    session = await world.open(say("ok"))
    chat = await session.conversation(BAD)
    async with chat.commit() as tx:
        (await tx.doc(notes, key=BAD))[BAD] = [BAD]
        (await tx.doc(shared, key=BAD))[BAD] = BAD
        assert await tx.snapshot(shared, key=BAD) == {GOOD: GOOD}

    session = await world.restart()

    assert (await session.conversation(BAD)).id == chat.id
    chat = await session.conversation(BAD)
    assert await chat.snapshot(notes, key=BAD) == {GOOD: [GOOD]}
    assert await session.snapshot(shared, key=BAD) == {GOOD: GOOD}
    followed = await session.attach(shared, key=BAD)
    async with session.commit() as tx:
        (await tx.doc(shared, key=BAD))["more"] = 1
    assert followed.value == {GOOD: GOOD, "more": 1}


async def test_a_session_key_with_bad_characters_names_one_session_to_owners_and_readers(world: Any, tmp_path: Path):
    url = MemoryStorage() if world.url == "memory:" else str(tmp_path / "other.db")
    async with perdure.open(url, session=BAD) as session:
        assert session.key == GOOD
        async with perdure.open(url, session=BAD, mode="read") as reader:
            assert await reader.conversations() == await session.conversations() == []


@pytest.mark.slow
async def test_bytes_that_a_command_prints_and_file_names_that_are_no_text_are_told_and_kept(
    memory_world: Any, tmp_path: Path
):
    world = memory_world
    os.close(os.open(os.fsencode(tmp_path) + b"/odd\x97\xff", os.O_CREAT))
    script = by_round(call("bash", {"command": "printf 'h\\0i\\0'; ls"}), call("read", {"path": "."}), say("ok"))
    registry = Registry([Extension(name="tools", tools=BUILTINS)])
    sandbox = LocalSandbox(str(tmp_path))
    session = await world.open(script, registry=registry, sandbox=sandbox)
    chat = await session.conversation("a")
    sent = await chat.submit("go")
    assert (await sent.wait()).text == "ok"
    printed, listed = [message.text for _, message in await results(chat)]
    assert printed.startswith("h\u2400i\u2400")
    assert "odd" in printed
    assert "odd" in listed


async def results(chat: Any) -> list[Any]:
    found = [entry async for entry in chat.history() if entry.kind == "perdure.tool_result"]
    return [(entry.id, entry.messages[0]) for entry in found][::-1]


# I16, as far as there are pictures yet: what a provider would refuse for being empty never gets in or never gets out
@pytest.mark.parametrize(
    "parts",
    [(), (Text(text=""),), (Text(text=" \n"),), (Image(media_type="image/png", base64=""),)],
    ids=["nothing", "empty", "blank", "picture"],
)
async def test_an_empty_input_never_makes_a_conversation_unusable(world: Any, parts: Any):
    session = await world.open(say("fine"))
    chat = await session.conversation("a")
    try:
        sent = await chat.submit(UserMessage(parts=parts))
    except InvalidValue:
        assert [entry async for entry in chat.history()] == []
    else:
        assert (await sent.wait()).text == "fine"
    assert (await (await chat.submit("two")).wait()).text == "fine"
