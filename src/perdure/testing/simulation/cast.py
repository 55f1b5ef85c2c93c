"""The model, the tools and the tasks of the simulation: they answer by what they are asked, with delays and failures
by chance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import TYPE_CHECKING, Any

from perdure.clock import Clock
from perdure.errors import ModelError
from perdure.harness.call import Call
from perdure.harness.decisions import Ask
from perdure.harness.handover import WaitFor
from perdure.harness.hooks import AnswerReceived, Block, CallToJudge
from perdure.harness.registry import Extension, Registry, Tool, section, tool
from perdure.harness.valid import valid
from perdure.messages import AssistantMessage, UserMessage, calls_of, text_of
from perdure.model import CallDelta, CallStart, Finished, Heartbeat, ModelEvent, Request, TextDelta, Usage
from perdure.schema import Described
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.testing.simulation.ledger import Ledger, plan_of

if TYPE_CHECKING:
    from perdure.testing.simulation.world import Life


class SimulatedModel:
    """Calls the tools that the last input asks for, round by round, then answers. Refuses an invalid transcript as a
    violation."""

    name: str
    context_window: int | None

    def __init__(
        self, ledger: Ledger, clock: Clock, random: Random, *, trouble: float, window: int | None = None
    ) -> None:
        self.name = "simulated"
        self.context_window = window
        self._ledger = ledger
        self._clock = clock
        self._random = random
        self._trouble = trouble

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        wrong = valid(request.messages, model=self.name)
        if wrong:
            self._ledger.violated(f"the model was sent an invalid transcript: {wrong[0]}")
        self._ledger.count("requests")
        await self._clock.sleep(self._random.random() * 0.4)
        trouble = self._random.random()
        if trouble < self._trouble:
            raise ModelError(
                "the provider is overloaded", kind=self._random.choice(["retryable", "rate_limited"]), after=0.3
            )
        summary = request.options.get("purpose") == "compaction"
        if not summary and self._random.random() < self._trouble / 4:
            self._ledger.count("overflows")
            raise ModelError("this is too long", kind="overflow")
        for event in self._summary() if summary else self._answer(request.messages):
            if self._random.random() < 0.3:
                yield Heartbeat()
            await self._clock.sleep(self._random.random() * 0.1)
            if self._random.random() < self._trouble / 8:
                return  # the stream is cut
            yield event

    def _summary(self) -> list[ModelEvent]:
        self._ledger.count("summaries")
        return [TextDelta("They talked."), Finished("stop", Usage(input=20, output=2))]

    def _answer(self, messages: Any) -> list[ModelEvent]:
        plan, done = _progress(messages)
        if done >= plan["rounds"] or not plan["calls"]:
            return [TextDelta("It is "), TextDelta("done."), Finished("stop", Usage(input=10, output=2))]
        events: list[ModelEvent] = [TextDelta(f"Round {done + 1}. ")]
        for index, letter in enumerate(plan["calls"]):
            events.append(CallStart(index, TOOL_NAMES.get(letter, "unknown_tool"), "call_1"))
            events.append(CallDelta(index, '{"n": '))
            events.append(CallDelta(index, "oops" if letter == "g" else f"{index}}}"))
        return [*events, Finished("tool_calls", Usage(input=10, output=5))]


TOOL_NAMES = {
    "s": "look",
    "u": "pay",
    "f": "fail",
    "q": "queue",
    "g": "look",
    "t": "stubborn",
    "d": "delegate",
    "b": "spawn",
}


def _progress(messages: Any) -> tuple[dict[str, Any], int]:
    """The newest plan, and the rounds of calls since then."""
    rounds = 0
    for message in reversed(messages):
        if isinstance(message, UserMessage) and "rounds=" in text_of(message):
            return plan_of(text_of(message)), rounds
        if isinstance(message, AssistantMessage) and calls_of(message):
            rounds += 1
    return {"rounds": 0, "calls": ""}, rounds


class PlainSchema:
    """Describes every tool as taking a number, without any library."""

    def describe(self, function: Any, *, skip: tuple[str, ...] = ()) -> Described:
        def validate(arguments: dict[str, Any]) -> dict[str, Any]:
            return {"n": int(arguments.get("n", 0))}

        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        return Described(name=function.__name__, description="", parameters=parameters, validate=validate)


def registry_of(life: Life) -> Registry:
    """The tools and tasks of one simulated process: their effects stop counting when it is dead."""
    hooks = [ask_about_payments, ask_about_everything] if life.asks else []
    tasks = [Checkout(), Payment(life), Asking()]
    told = section("process", f"Process {life.number}.")  # another text in each process: it is told in a note
    simulated = Extension(name="simulated", tools=_tools(life), tasks=tasks, before_tool=hooks)
    return Registry([simulated, Extension(name="told", sections=[told], on_yield=[once_more])])


async def once_more(seen: AnswerReceived) -> str | None:
    """Runs that answer at once go on once."""
    return "Is it?" if seen.round == 0 else None


async def ask_about_payments(seen: CallToJudge) -> Ask | None:
    """Payments are asked about until they are allowed for good; what nobody decides is allowed or denied in time."""
    if seen.name != "pay" or "pay" in seen.allowed:
        return None
    return Ask("pay?", deadline=8.0, default=seen.arguments["n"] % 2 == 0, remember=("pay",))


async def ask_about_everything(seen: CallToJudge) -> Ask | Block | None:
    """Asks once more about some calls, for as long as it takes; edited calls go through the gate again."""
    if seen.arguments["n"] > 1000:
        return Block("too much")
    return Ask("really?") if seen.name in ("pay", "queue") and seen.arguments["n"] else None


def _tools(life: Life) -> list[Tool]:
    async def act(call: Call, *, safe: bool) -> str:
        call.output("on it\n")
        await life.pause(0.3)
        life.effect(call.idempotency_key, safe=safe)
        await life.pause(0.3)
        return "well done"

    @tool(replay="safe")
    async def look(call: Call, n: int) -> str:
        return await act(call, safe=True)

    @tool
    async def pay(call: Call, n: int) -> str:
        return await act(call, safe=False)

    @tool
    async def fail(call: Call, n: int) -> str:
        await act(call, safe=False)
        raise ValueError("it went wrong")

    @tool(sequential=True)
    async def queue(call: Call, n: int) -> str:
        return await act(call, safe=False)

    @tool(timeout=2.0)
    async def stubborn(call: Call, n: int) -> str:
        """Takes no for an answer: it swallows the first cancellation."""
        try:
            return await act(call, safe=False)
        except asyncio.CancelledError:
            await life.pause(1.0)
            return "went on"

    return [look, pay, fail, queue, stubborn, *_handing_on(life)]


def _handing_on(life: Life) -> list[Tool]:
    @tool(replay="safe")
    async def delegate(call: Call, n: int) -> WaitFor:
        """To a sub-agent that delegates, too: as deep as it may."""
        return await call.delegate("rounds=1 calls=ud")

    @tool(replay="safe")
    async def spawn(call: Call, n: int) -> str:
        life.ledger.count("spawned")
        return f"agent {(await call.agents.start('rounds=1 calls=us')).id}"

    return [delegate, spawn]


class Checkout(TaskDefinition):
    """Four payments, fail fast."""

    kind = "simulated.checkout"

    @phase(first=True)
    async def pay(self, invocation: Invocation) -> None:
        async with invocation.commit() as tx:
            payments = [tx.create_task(Payment, {"ok": ok}, owner=invocation) for ok in invocation.input["payments"]]
            timer = tx.timer(tx.now + 1.0, owner=invocation)
            await tx.wait(
                [*payments, timer], policy="fail_fast", then=self.decide, payments=[task.id for task in payments]
            )

    @phase
    async def decide(self, invocation: Invocation, payments: list[Any]) -> None:
        outcomes = await invocation.outcomes(payments)

        async def body(tx: Any) -> None:
            tx.complete({"outcomes": [type(outcome).__name__ for outcome in outcomes]})

        await invocation.record(body)


class Payment(TaskDefinition):
    """One unsafe effect between its intent and its outcome."""

    kind = "simulated.payment"

    def __init__(self, life: Life | None = None) -> None:
        self._life = life

    @phase(first=True)
    async def pay(self, invocation: Invocation) -> None:
        assert self._life is not None
        if invocation.uncertain:
            await self._end(invocation, "nobody knows whether it was paid")
            return
        await invocation.begin()
        await self._life.pause(0.3)
        self._life.effect(f"payment {invocation.idempotency_key}", safe=False)
        await self._life.pause(0.3)
        await self._end(invocation, None if invocation.input["ok"] else "no money")

    async def _end(self, invocation: Invocation, error: str | None) -> None:
        async def body(tx: Any) -> None:
            if error is None:
                tx.complete()
            else:
                tx.fail(error)

        await invocation.record(body)


class Asking(TaskDefinition):
    """Asks a question and ends with its answer."""

    kind = "simulated.asking"

    @phase(first=True)
    async def ask(self, invocation: Invocation) -> None:
        async with invocation.commit() as tx:
            question = tx.ask({"may": "I"}, owner=invocation, deadline=tx.now + 20, default="no")
            await tx.wait([question], then=self.done)

    @phase
    async def done(self, invocation: Invocation) -> None:
        async def body(tx: Any) -> None:
            tx.complete()

        await invocation.record(body)
