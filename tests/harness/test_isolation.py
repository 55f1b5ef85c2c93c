"""The isolation of commands is recorded with the intent of a call, and an interrupted call says what it proves (R9)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.conftest import results

from perdure.errors import SandboxError
from perdure.harness.registry import tool
from perdure.testing.scripted import answer, by_round, call, say

pytestmark = pytest.mark.anyio


class Place:
    """Stands in for a sandbox, one for each process."""

    id = "place"

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[str] = []

    async def isolation(self) -> str:
        if not self.name:
            raise SandboxError("nothing can be run here")
        return f"place:{self.name}"

    async def interrupted(self, isolation: str) -> str:
        self.asked.append(isolation)
        return f"Nothing of {isolation} runs."


def tools(world: Any) -> list[Any]:
    @tool(runs_commands=True, sequential=True, timeout=1000)
    async def shell(call: Any) -> None:
        """Run something."""
        await world.clock.sleep(100)

    @tool(timeout=1000)
    async def pay(call: Any) -> None:
        """Run nothing."""
        await world.clock.sleep(100)

    return [shell, pay]


async def begun(world: Any, sandbox: Place, *names: str) -> Any:
    """The calls run."""
    script = by_round(answer(*(call(name) for name in names)), say("ok"))
    session = await world.open(script, *tools(world), sandbox=sandbox)
    chat = await session.conversation("a")
    await chat.submit("go")
    await world.clock.advance(1)
    return session


async def told(world: Any, session: Any) -> list[str]:
    chat = await session.conversation("a")
    await session.resume()
    await world.running(session.wait_idle())
    return [message.text for message in await results(chat)]


async def test_an_interrupted_call_says_what_the_recorded_isolation_proves(memory_world: Any) -> None:
    await begun(memory_world, Place("A"), "shell")

    (text,) = await told(memory_world, await memory_world.restart(sandbox=Place("B")))

    assert text == (
        "shell was interrupted: the process ended while it ran. Its outcome is unknown: it may have happened. "
        "Nothing of place:A runs. Check before you repeat it."
    )


async def test_of_a_tool_that_runs_no_commands_nothing_is_said_about_them(memory_world: Any) -> None:
    await begun(memory_world, Place("A"), "pay")
    later = Place("B")

    (text,) = await told(memory_world, await memory_world.restart(sandbox=later))

    assert text.endswith("it may have happened. Check before you repeat it.")
    assert later.asked == []


async def test_the_process_that_ran_it_counts_and_not_the_one_that_meant_to(memory_world: Any) -> None:
    world = memory_world
    await begun(world, Place("A"), "shell", "shell")
    session = await world.restart(sandbox=Place("B"))
    await session.resume()
    await world.clock.advance(1)  # the first was interrupted, the second begins

    texts = await told(world, await world.restart(sandbox=Place("C")))

    assert ["place:A" in texts[0], "place:B" in texts[1]] == [True, True]


async def test_without_a_sandbox_that_works_the_call_runs_and_its_record_says_so(memory_world: Any) -> None:
    await begun(memory_world, Place(""), "shell")
    later = Place("B")

    await told(memory_world, await memory_world.restart(sandbox=later))

    assert later.asked == ["place"]
