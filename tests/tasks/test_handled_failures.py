"""What was done about a failure is a step like any other: once it is recorded, it is not done again (I02)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.records import Completed, Failed
from perdure.tasks.definition import TaskDefinition, phase

pytestmark = pytest.mark.anyio


class World:
    """What the steps did to the world outside."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.repaired = asyncio.Event()


def definitions(world: World) -> list[TaskDefinition]:
    class A(TaskDefinition):
        kind = "test.a"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                tx.fail("A does not work")

    class B(TaskDefinition):
        kind = "test.b"
        replay = "safe"

        @phase(first=True)
        async def run(self, invocation: Any) -> None:
            world.effects.append("B")
            if world.effects.count("B") == 1:
                raise RuntimeError("B is broken")
            await world.repaired.wait()
            async with invocation.commit() as tx:
                tx.complete("B")

    class Parent(TaskDefinition):
        kind = "test.parent"

        @phase(first=True)
        async def start(self, invocation: Any) -> None:
            async with invocation.commit() as tx:
                a = tx.create_task(A)
                await tx.wait([a], then=self.handle, a=a.id)

        @phase
        async def handle(self, invocation: Any, a: int) -> None:
            (outcome,) = await invocation.outcomes([a])
            assert isinstance(outcome, Failed)
            await invocation.begin()
            world.effects.append("handled A")
            async with invocation.commit() as tx:
                b = tx.create_task(B)
                await tx.wait([b], then=self.finish, b=b.id, tries=1)

        @phase
        async def finish(self, invocation: Any, b: int, tries: int) -> None:
            (outcome,) = await invocation.outcomes([b])
            async with invocation.commit() as tx:
                if isinstance(outcome, Completed):
                    tx.complete({"tries": tries})
                    return
                again = tx.create_task(B)
                await tx.wait([again], then=self.finish, b=again.id, tries=tries + 1)

    return [A(), B(), Parent()]


@pytest.mark.parametrize("end", ["crash", "close"])
async def test_a_handler_that_was_recorded_does_not_run_again_when_what_came_after_it_failed(kernel: Any, end: str):
    world = World()
    made = definitions(world)
    session = await kernel.open(*made)
    chat = await session.conversation("a")
    async with chat.commit() as tx:
        parent = tx.create_task(made[-1])
    await session.resume()
    await kernel.until(lambda: world.effects.count("B") == 2)
    session = await (kernel.restart() if end == "crash" else kernel.reopen())
    world.repaired.set()

    outcome = await session.wait_task(parent.id)

    assert isinstance(outcome, Completed)
    assert world.effects == ["handled A", "B", "B", "B"]
    assert outcome.result == {"tries": 2}
