"""A checkout with four payments, as the sketch of the interface writes it, with a restart between every two commits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure

pytestmark = pytest.mark.anyio


class Bank:
    """The world outside: it survives crashes and counts what is done to it."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.undone: list[str] = []

    @property
    def kept(self) -> set[str]:
        return set(self.paid) - set(self.undone)


def definitions(bank: Bank) -> tuple[Any, Any]:
    class Payment(perdure.Task):
        kind = "shop.payment"

        @perdure.phase(first=True)
        async def pay(self, invocation: perdure.Invocation) -> None:
            key, card = invocation.idempotency_key, invocation.input["card"]
            if not invocation.uncertain:
                await invocation.begin()
                if card == "slow":
                    await asyncio.Event().wait()
                if card != "stolen":
                    bank.paid.append(key)
            async with invocation.commit() as tx:
                if key in bank.paid:
                    tx.complete({"paid": card})
                else:
                    tx.fail("the bank said no")

        async def abort(self, invocation: perdure.Invocation) -> None:
            if invocation.idempotency_key in bank.paid:
                bank.undone.append(invocation.idempotency_key)
            async with invocation.commit() as tx:
                tx.aborted()

    class Checkout(perdure.Task):
        kind, version = "shop.checkout", 1

        @perdure.phase(first=True)
        async def pay(self, invocation: perdure.Invocation) -> None:
            async with invocation.commit() as tx:
                payments = [
                    tx.create_task(Payment, {"card": card}, owner=invocation) for card in invocation.input["cards"]
                ]
                tx.wait(payments, policy="fail_fast", then=self.decide, payments=[p.id for p in payments])

        @perdure.phase
        async def decide(self, invocation: perdure.Invocation, payments: list[int]) -> None:
            outcomes = await invocation.outcomes(payments)
            async with invocation.commit() as tx:
                tx.complete({"paid": all(o.completed for o in outcomes), "each": [o.completed for o in outcomes]})

        async def abort(self, invocation: perdure.Invocation) -> None:
            async with invocation.commit() as tx:
                tx.aborted({"undone": len(bank.undone)})

    return Checkout, Payment


async def started(kernel: Any, bank: Bank, cards: list[str]) -> tuple[Any, int]:
    checkout, payment = definitions(bank)
    session = await kernel.open(checkout, payment)
    shop = await session.conversation("shop")
    async with shop.commit() as tx:
        task = tx.create_task(checkout, {"cards": cards})
    await session.resume()
    return session, task.id


async def with_a_restart_after_every_commit(kernel: Any, cards: list[str]) -> list[tuple[Any, Bank]]:
    """The same checkout again and again, each time with the process gone after one commit more."""
    found: list[tuple[Any, Bank]] = []
    for commits in range(1, 30):
        bank = Bank()
        session, id = await started(kernel, bank, cards)
        seen: list[int] = []
        session.observe(lambda change, seen=seen: seen.append(change.seq))
        await kernel.until(lambda n=commits, seen=seen, it=session: len(seen) >= n or not it.inspect().tasks)
        finished = len(seen) < commits
        session = await kernel.restart()
        found.append((await session.wait_task(id), bank))
        assert session.inspect().tasks == []
        await kernel.close()
        if finished:
            break
    return found


@pytest.mark.invariant("T-6")
async def test_four_payments_are_one_outcome(kernel: Any):
    bank = Bank()
    session, id = await started(kernel, bank, ["ann", "ben", "eve", "kim"])

    assert (await session.wait_task(id)).result == {"paid": True, "each": [True] * 4}
    assert len(bank.kept) == 4


@pytest.mark.invariant("T-13")
async def test_with_a_restart_between_every_two_commits_no_card_is_charged_twice(memory_kernel: Any):
    found = await with_a_restart_after_every_commit(memory_kernel, ["ann", "ben", "eve", "kim"])

    assert len(found) > 5
    for outcome, bank in found:  # a payment that began and was cut off asks the bank, and never pays again
        assert len(bank.paid) == len(set(bank.paid))
        assert outcome.result["each"].count(True) == len(bank.kept)
        assert outcome.result["paid"] == (len(bank.kept) == 4)


@pytest.mark.invariant("T-6")
async def test_the_first_bad_payment_stops_the_others_and_all_have_ended_when_the_checkout_decides(kernel: Any):
    bank = Bank()
    session, id = await started(kernel, bank, ["slow", "stolen", "slow", "slow"])

    assert (await session.wait_task(id)).result == {"paid": False, "each": [False] * 4}
    assert bank.kept == set()


@pytest.mark.invariant("T-10")
async def test_with_a_restart_between_every_two_commits_a_failed_checkout_keeps_no_payment_that_was_stopped(
    memory_kernel: Any,
):
    found = await with_a_restart_after_every_commit(memory_kernel, ["ann", "stolen", "ben", "eve"])

    assert len(found) > 4
    for outcome, bank in found:
        assert outcome.result["paid"] is False
        assert outcome.result["each"].count(True) == len(bank.kept)


@pytest.mark.invariant("T-10")
async def test_an_abort_undoes_from_the_bottom_up(kernel: Any):
    bank = Bank()
    session, id = await started(kernel, bank, ["slow", "slow"])
    await kernel.until(lambda: [task.begun for task in session.inspect().tasks].count(True) == 2)
    bank.paid += [f"main/{task.id}" for task in session.inspect().tasks if task.kind == "shop.payment"]
    order: list[str] = []
    session.observe(lambda change: order.extend(task.kind for task in change.tasks.values() if not task.live))
    outcome = await session.abort_task(id, "the customer left")

    assert order == ["shop.payment", "shop.payment", "shop.checkout"]
    assert outcome.result == {"undone": 2}
    assert bank.kept == set()
