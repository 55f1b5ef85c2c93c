"""Kill a checkout with SIGKILL in the middle of its payments; the next start goes on where each of them was."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import perdure

BANK = Path("bank.txt")


def paid() -> list[str]:
    return BANK.read_text().split() if BANK.exists() else []


def charge(card: str) -> None:
    with BANK.open("a") as bank:
        bank.write(f"{card}\n")


class Payment(perdure.Task):
    kind = "shop.payment"

    @perdure.phase(first=True)
    async def pay(self, invocation: perdure.Invocation) -> None:
        card = invocation.input["card"]
        if card not in paid():  # also where an earlier attempt began: the bank knows, so ask it rather than pay again
            if not invocation.uncertain:
                await invocation.begin()  # durable before the effect
            charge(card)
            if os.environ.get("DIE") and len(paid()) == 2:
                os.kill(os.getpid(), signal.SIGKILL)  # two cards are charged, and no outcome of the second is known
        async with invocation.commit() as tx:
            tx.complete({"paid": card})


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
        async with invocation.commit() as tx:
            tx.complete({"paid": sum(outcome.completed for outcome in outcomes)})


async def shop() -> None:
    registry = perdure.Registry([perdure.Extension(name="shop", tasks=[Checkout, Payment])])
    async with perdure.open("shop.db", model=None, registry=registry) as session:
        till = await session.conversation("till")
        if not session.inspect().tasks:
            async with till.commit() as tx:
                tx.create_task(Checkout, {"cards": ["ann", "ben", "eve", "kim"]})
        checkout = min(task.id for task in session.inspect().tasks)
        print("outcome:", await asyncio.wait_for(session.wait_task(checkout), 60))


def main() -> None:
    if sys.argv[1:] == ["shop"]:
        perdure.run(shop)
        return
    first = subprocess.run([sys.executable, __file__, "shop"], env={**os.environ, "DIE": "1"}, check=False)
    assert first.returncode == -signal.SIGKILL
    second = subprocess.run([sys.executable, __file__, "shop"], capture_output=True, text=True, check=True)
    print(second.stdout)
    print("charged:", sorted(paid()))
    assert sorted(paid()) == ["ann", "ben", "eve", "kim"]  # each card once


main()
