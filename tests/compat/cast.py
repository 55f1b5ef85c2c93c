"""The tools, tasks and documents of the stores of older versions. It runs under those versions, too."""

from __future__ import annotations

import asyncio
from typing import Any

import perdure
from perdure.tasks.definition import TaskDefinition, phase

NOTE = perdure.entry_kind("shop.note")
PLAN = perdure.document("shop.plan", history="rewindable", fork="as_of", initial=lambda: {"steps": []})
CART = perdure.document("shop.cart", fork="current", initial=lambda: {"lines": []})
LOST = perdure.document("shop.lost", initial=lambda: {"whose": "nobody's"})
#: Far away: nothing of it passes while a test runs.
LATER = 4_000_000_000.0

ran: list[str] = []
hanging = {"look", "pay"}


async def look(call: Any, n: int) -> str:
    """Look at something."""
    return await _act(call, "look", n)


async def pay(call: Any, n: int) -> str:
    """Pay something."""
    return await _act(call, "pay", n)


async def _act(call: Any, name: str, n: int) -> str:
    ran.append(f"{name} {n}")
    call.output(f"{name}ing {n}\n")
    if name in hanging:
        await asyncio.Event().wait()
    return f"{name} {n} is done"


def tools() -> list[Any]:
    return [perdure.tool(look, replay="safe"), perdure.tool(pay)]


class Order(TaskDefinition):
    """Asks whether to send an order, and ends with the answer and what it is worth."""

    kind = "shop.order"

    @phase(first=True)
    async def ask(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            question = tx.ask({"send": invocation.input["amount"]}, owner=invocation, deadline=LATER, default="no")
            await tx.wait([question], then=self.send, question=question.id, amount=invocation.input["amount"])

    @phase
    async def send(self, invocation: Any, question: int, amount: int) -> None:
        async with invocation.commit() as tx:
            tx.complete({"amount": amount})


class Gone(TaskDefinition):
    """Its code is in no later version."""

    kind = "shop.gone"

    @phase(first=True)
    async def work(self, invocation: Any) -> None:
        await asyncio.Event().wait()
