"""Durable work outlives the code that started it: a task of version 1 is held until code that can take it is there."""

from typing import Any

import perdure


class Order(perdure.Task):
    """As it was when the order came in."""

    kind = "shop.order"
    version = 1

    @perdure.phase(first=True)
    async def take(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            tx.wait([tx.ask("Is it packed?", owner=invocation)], then=self.send)

    @perdure.phase
    async def send(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            tx.complete({"sent": invocation.input["item"]})


class OrderOfMany(perdure.Task):
    """As it is today: orders have several items, and are checked before they go."""

    kind = "shop.order"
    version = 2

    def migrate(self, version: int, input: Any, checkpoint: Any) -> tuple[Any, str, Any]:
        return {"items": [input["item"]]}, "check" if checkpoint.phase == "send" else checkpoint.phase, None

    @perdure.phase(first=True)
    async def take(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            tx.wait([tx.ask("Is it packed?", owner=invocation)], then=self.check)

    @perdure.phase
    async def check(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            tx.complete({"sent": invocation.input["items"], "checked": True})


async def main() -> None:
    first = perdure.Registry([perdure.Extension(name="shop", tasks=[Order])])
    async with perdure.open("orders.db", model=None, registry=first) as session:
        shop = await session.conversation("shop")
        async with shop.commit() as tx:
            order = tx.create_task(Order, {"item": "lamp"})
        await session.until(lambda: bool(session.inspect().questions))

    async with perdure.open("orders.db", model=None) as session:  # deployed without the shop by mistake
        (question,) = session.inspect().questions
        await session.answer(question.id, True, by="ann")
        await session.resume()
        await session.until(lambda: bool(session.inspect().held))
        (held,) = session.inspect().held
        print("held:", held.reason, held.detail)

        today = perdure.Registry([perdure.Extension(name="shop", tasks=[OrderOfMany])])
        await session.install(today)  # while it runs: held work that the code fits goes on
        outcome = await session.wait_task(order.id)
        print(outcome)
        assert outcome.result == {"sent": ["lamp"], "checked": True}


perdure.run(main)
