"""A long conversation costs what it says: each step the same bytes, each opening the same reads (I62, I63)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from perdure.records import decode_document
from perdure.session.documents import TAIL_COUNT, document
from perdure.session.transaction import entry_kind
from perdure.storage import Batch, Claim
from perdure.testing.faults import Relay

pytestmark = pytest.mark.anyio

NOTE = entry_kind("test.note")
STATE = document("test.state")
STEPS = 500
PAST = document("test.past", history="rewindable")


class Measured(Relay):
    """Counts the bytes of each commit, and the calls and bodies of reads."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.written: list[int] = []
        self.reads: Counter[str] = Counter()
        self.bodies = 0

    def commit(self, claim: Claim, batch: Batch) -> Any:
        bodies = [part for write in batch.writes for part in vars_of(write) if isinstance(part, bytes)]
        self.written.append(sum(map(len, bodies)))
        return self.inner.commit(claim, batch)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not name.startswith(("scan_", "read_", "find_", "owned_", "newest_")):
            return found

        async def counted(*args: Any, **named: Any) -> Any:
            value = await found(*args, **named)
            self.reads[name] += 1
            self.bodies += len(value) if isinstance(value, list) else value is not None
            return value

        return counted


def vars_of(write: Any) -> list[Any]:
    return [getattr(write, name) for name in write.__struct_fields__]


async def step(chat: Any, number: int) -> None:
    async with chat.commit() as tx:
        tx.append(chat.id, NOTE, data="x" * 1000)
        for token in (STATE, PAST):
            value = await tx.doc(token)
            value["last"] = number
            value.setdefault("all", []).append(number % 10)


async def test_a_late_step_writes_as_much_as_an_early_one(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = Measured
    session = await kernel.open()
    chat = await session.conversation("a")
    for number in range(STEPS):
        await step(chat, number)
    written = kernel.storage.written[-STEPS:]

    def typical(start: int) -> float:
        """The mean of one whole period of bases, whatever its phase is."""
        part = written[start : start + 2 * TAIL_COUNT]
        return sum(part) / len(part)

    assert typical(STEPS - 2 * TAIL_COUNT) < 1.15 * typical(50)
    assert sum(written) < 1.6 * 1000 * STEPS


async def test_opening_and_listing_read_the_same_however_long_the_conversations_are(memory_kernel: Any):
    kernel = memory_kernel
    kernel.wrap = Measured
    session = await kernel.open()
    for length in (10, 150):
        for key in "abcdefgh":
            chat = await session.conversation(f"{key}{length}")
            for number in range(length):
                async with chat.commit() as tx:
                    tx.append(chat.id, NOTE, data=number)
            async with chat.commit() as tx:
                tx.append(chat.id, NOTE, data="head", heads_itself=True)

    session = await kernel.reopen()
    opened = kernel.storage.bodies
    assert opened == 0  # nothing is live: nothing is read
    assert len(await session.conversations(limit=8)) == 8
    assert kernel.storage.bodies <= 10

    costs: list[tuple[int, int]] = []
    for key in ("a10", "a150"):
        before, calls = kernel.storage.bodies, kernel.storage.reads.total()
        chat = await session.conversation(key)
        await chat.entries(limit=5)
        costs.append((kernel.storage.bodies - before, kernel.storage.reads.total() - calls))
    assert costs[0] == costs[1]


async def test_a_chain_of_deltas_is_never_longer_than_its_limit(memory_kernel: Any):
    kernel = memory_kernel
    session = await kernel.open()
    chat = await session.conversation("a")
    longest = 0
    for number in range(5 * TAIL_COUNT):
        await step(chat, number)
        if number % 7 == 0:
            for token in (STATE, PAST):
                body = await kernel.storage.find_document("main", "conversation", chat.id, token.kind, "")
                value = await kernel.storage.read_document("main", decode_document(body).id)
                longest = max(longest, len(value.deltas))
    assert 1 < longest <= TAIL_COUNT


async def test_a_fork_costs_the_same_however_long_the_conversation_is(memory_kernel: Any):
    """K15: bytes and reads of a fork, and of the first look of it at what it sees."""
    kernel = memory_kernel
    kernel.wrap = Measured
    session = await kernel.open()
    for length in (10, 2000):
        chat = await session.conversation(f"of {length}")
        for start in range(0, length, 100):
            async with chat.commit() as tx:
                for number in range(start, min(start + 100, length)):
                    tx.append(chat.id, NOTE, data=number)
                (await tx.doc(PAST))["at"] = start
        async with chat.commit() as tx:
            tx.append(chat.id, NOTE, data="head", heads_itself=True)

    session = await kernel.reopen()
    costs: list[tuple[int, int, Counter[str]]] = []
    for length in (10, 2000):
        chat = await session.conversation(f"of {length}")
        newest = (await chat.entries(limit=1))[0].id
        kernel.storage.written.clear()
        kernel.storage.reads.clear()
        before = kernel.storage.bodies
        await chat.fork(newest)
        costs.append((sum(kernel.storage.written), kernel.storage.bodies - before, kernel.storage.reads.copy()))

    (short, read_short, calls_short), (long, read_long, calls_long) = costs
    assert long - short <= 10  # ids have more digits
    assert (read_long, calls_long) == (read_short, calls_short)
    assert read_long <= 5
