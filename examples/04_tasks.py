"""Durable work of your own: a checkout with four payments. One fails, the others are stopped, the outcome is one
commit."""

import perdure


class Payment(perdure.Task):
    kind = "shop.payment"

    @perdure.phase(first=True)
    async def pay(self, invocation: perdure.Invocation) -> None:
        if invocation.uncertain:  # an earlier attempt began, and nobody knows how it ended
            async with invocation.commit() as tx:
                tx.fail("look at the bank's books before paying again")
            return
        await invocation.begin()  # durable before the effect
        # bank.pay(invocation.input["card"], key=invocation.idempotency_key)
        async with invocation.commit() as tx:
            if invocation.input["card"] == "stolen":
                tx.fail("the bank said no")
            else:
                tx.complete({"paid": invocation.input["card"]})


class Checkout(perdure.Task):
    kind = "shop.checkout"

    @perdure.phase(first=True)
    async def pay(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            payments = [tx.create_task(Payment, {"card": card}, owner=invocation) for card in invocation.input["cards"]]
            ids = [payment.id for payment in payments]
            await tx.wait(payments, policy="fail_fast", then=self.decide, payments=ids)

    @perdure.phase
    async def decide(self, invocation: perdure.Invocation, payments: list[int]) -> None:
        outcomes = await invocation.outcomes(payments)
        async with invocation.commit() as tx:
            tx.complete({"outcomes": [type(outcome).__name__ for outcome in outcomes]})


async def main() -> None:
    registry = perdure.Registry([perdure.Extension(name="shop", tasks=[Checkout, Payment])])
    async with perdure.open("memory:", model=None, registry=registry) as session:
        shop = await session.conversation("shop")
        async with shop.commit() as tx:
            checkout = tx.create_task(Checkout, {"cards": ["ann", "stolen", "ben", "eve"]})
        print(await session.wait_task(checkout.id))


perdure.run(main)
