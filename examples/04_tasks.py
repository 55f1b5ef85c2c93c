"""Durable work of your own: a checkout with four payments. One fails, the others are stopped, what was paid is given
back, and the outcome is one commit."""

import asyncio

import perdure

BANK: dict[str, str] = {}  #: what the bank knows, by idempotency key


class Payment(perdure.Task):
    kind = "shop.payment"

    @perdure.phase(first=True)
    async def pay(self, invocation: perdure.Invocation) -> None:
        if invocation.uncertain:  # an earlier attempt began, and nobody knows how it ended: the bank does
            async with invocation.commit() as tx:
                if invocation.idempotency_key in BANK:
                    tx.complete({"paid": invocation.input["card"]})
                else:
                    tx.fail("the bank knows nothing of it")
            return
        await invocation.begin()  # durable before the effect
        if invocation.input["card"] == "stolen":
            async with invocation.commit() as tx:
                tx.fail("the bank said no")
            return
        if invocation.input["card"] == "slow":
            await asyncio.sleep(60)
        BANK[invocation.idempotency_key] = invocation.input["card"]
        async with invocation.commit() as tx:
            tx.complete({"paid": invocation.input["card"]})

    async def abort(self, invocation: perdure.Invocation) -> None:
        BANK.pop(invocation.idempotency_key, None)  # undo: may run again after a crash, so it must not mind
        async with invocation.commit() as tx:
            tx.aborted()


class Checkout(perdure.Task):
    kind = "shop.checkout"

    @perdure.phase(first=True)
    async def pay(self, invocation: perdure.Invocation) -> None:
        async with invocation.commit() as tx:
            payments = [tx.create_task(Payment, {"card": card}, owner=invocation) for card in invocation.input["cards"]]
            tx.wait(payments, policy="fail_fast", then=self.decide, payments=[payment.id for payment in payments])

    @perdure.phase
    async def decide(self, invocation: perdure.Invocation, payments: list[int]) -> None:
        outcomes = await invocation.outcomes(payments)
        if not all(outcome.completed for outcome in outcomes):
            for payment, outcome in zip(payments, outcomes, strict=True):
                if outcome.completed:
                    BANK.pop(f"{invocation.line.session}/{payment}", None)
        async with invocation.commit() as tx:
            tx.complete({"paid": all(outcome.completed for outcome in outcomes)})


async def main() -> None:
    registry = perdure.Registry([perdure.Extension(name="shop", tasks=[Checkout, Payment])])
    async with perdure.open("memory:", model=None, registry=registry) as session:
        shop = await session.conversation("shop")
        async with shop.commit() as tx:
            checkout = tx.create_task(Checkout, {"cards": ["ann", "stolen", "slow", "ben"]})
        outcome = await session.wait_task(checkout.id)
        print(outcome, BANK)
        assert outcome.result_as(dict[str, bool]) == {"paid": False}
        assert not BANK


perdure.run(main)
