"""Model, tools and tasks of the scripted run. Each does what the records say, so every life of a run does the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.clock import Clock
from perdure.harness.call import Call
from perdure.harness.decisions import Ask
from perdure.harness.handover import WaitFor
from perdure.harness.hooks import CallToJudge
from perdure.harness.registry import Extension, Registry, Tool, tool
from perdure.messages import AssistantMessage, UserMessage, calls_of, text_of
from perdure.model import Request
from perdure.schema import Described
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.tasks.questions import answered
from perdure.telemetry import Telemetry
from perdure.testing import scripted
from perdure.testing.scenario.notes import Effect, Notes
from perdure.testing.scripted import Answer, ScriptedModel, answer, call, fail, pause, say
from perdure.testing.strict import StrictModel

#: Kill points around and inside each effect.
BEFORE_EFFECT = "scenario.effect.before"
AFTER_EFFECT = "scenario.effect.after"
#: The model is about to say its n-th word; a commit was shown; a caller was told that something is durable.
MODEL_SPEAKS = "scenario.model.speaks"
SHOWN = "scenario.shown"
ACCEPTED = "scenario.accepted"

#: The events of the product and of the run at which it is killed.
EVENTS = (
    BEFORE_EFFECT,
    AFTER_EFFECT,
    "perdure.tool.begun",
    "perdure.tool.returned",
    MODEL_SPEAKS,
    SHOWN,
    ACCEPTED,
)

#: What the model does for an input that contains the key: the calls of each round. It answers when they are used up.
PLANS: dict[str, Sequence[Sequence[str]]] = {
    "task: three rounds": (
        ("look", "pay", "send", "stamp"),
        ("look", "pay", "send", "stamp", "stamp"),
        ("look", "pay", "send", "stamp"),
    ),
    "task: linger": (("look", "pay"), ("look", "linger"), ("pay",)),
    "task: approvals": (("look", "pay", "send", "stamp"), ("send", "pay")),
    "task: look": (("look",),),
    "task: agents": (("delegate", "spawn"), ("pay",)),
    "task: below": (("pay", "deeper"),),
    "task: bottom": (("look", "pay"),),
    "task: shell": (("look", "shell"), ("shell",)),
    "task: answer": (),
    "task: odd": (("unknown", "list", "text", "null"), ("nan", "deep", "control", "characters"), ("strange",) * 7),
}
#: What fills a context, a window of it, and what the model finds too much in more than so many messages.
FILLING = "word " * 120
WINDOW = 2000
TOO_MUCH, MOST_MESSAGES = "too much", 13
_DEEP = f"{'[' * 200}{']' * 200}"
#: Calls that no tool was made for, by their name in a plan. Their ids repeat, as those of all calls do.
ODD_CALLS: dict[str, scripted.Call] = {
    "unknown": call("summon \0\ud835", {"n": 1}),
    "list": call("look", "[1, 2]"),
    "text": call("look", "oops"),
    "null": call("look", "null"),
    "nan": call("look", '{"n": NaN}'),
    "deep": call("look", f'{{"n": 1, "more": {_DEEP}}}'),
    "characters": call("look", '{"n": 1, "more": "\\u0000 \\ud835 \ud835"}'),
    "control": call("look", '{"n": 1, "more": "\0"}'),
}


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What model, tools and tasks of one life work on. Tools wait for `ready`: by then everything was handed in."""

    notes: Notes
    telemetry: Telemetry
    clock: Clock
    life: int
    ready: asyncio.Event
    #: An effect happened that goes on until it is stopped.
    lingering: asyncio.Event
    #: Told of each effect that starts, before it does anything.
    starting: Callable[[str], None] = lambda _: None
    #: Hooks ask about calls.
    asks: bool = False

    def effect(self, key: str, tool: str, *, safe: bool = False) -> None:
        """Something happens in the world that no crash takes back."""
        self.telemetry.emit(BEFORE_EFFECT)
        self.notes.add(Effect(key=key, tool=tool, safe=safe, life=self.life))
        self.telemetry.emit(AFTER_EFFECT)


class Numbers:
    """Describes every tool as taking one number, without any library."""

    def describe(self, function: Callable[..., Any], *, skip: tuple[str, ...] = ()) -> Described:
        def validate(arguments: dict[str, Any]) -> dict[str, Any]:
            return {"n": int(arguments["n"])}

        return Described(
            name=function.__name__,
            description="",
            parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
            validate=validate,
        )


def model_of(stage: Stage, window: int | None = None) -> StrictModel:
    """Calls what the plan of the newest task says, round by round; refuses whatever any provider would refuse.

    Where it is told that something is too much, it takes no more than a few messages.
    """

    def script(request: Request) -> Answer:
        stage.telemetry.emit(MODEL_SPEAKS)
        if request.options.get("purpose") == "compaction":
            return answer(say("They talked. "), pause(0.004), say("Much."))
        if len(request.messages) > MOST_MESSAGES and TOO_MUCH in text_of(request.messages[-1]):
            return answer(fail("overflow"))
        plan, done, steered = progress_of(request.messages)
        if done >= len(plan):
            return answer(say(f"That is all, after {done} rounds{', as you wished' if steered else ''}.", pieces=3))
        calls = [ODD_CALLS.get(name) or call(name, {"n": index}) for index, name in enumerate(plan[done])]
        # A pause in the middle, for a part of the answer to be committed before the rest comes.
        return answer(say(f"Round {done + 1}. "), pause(0.004), say("I begin."), *calls)

    return StrictModel(ScriptedModel(script, clock=stage.clock, context_window=window))


def progress_of(messages: Sequence[Any]) -> tuple[Sequence[Sequence[str]], int, bool]:
    """The plan of the newest input that names one, the rounds of calls since, and whether more was said meanwhile."""
    done, steered = 0, False
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and calls_of(message):
            done += 1
        elif isinstance(message, UserMessage):
            text = text_of(message)
            for key, plan in PLANS.items():
                if key in text:
                    return plan, done, steered
            steered = True
    return (), done, steered


def registry_of(stage: Stage) -> Registry:
    """Everything that the run may call or create."""
    tasks = [Checkout(), Payment(stage), Report(stage)]
    hooks = [ask_first, ask_again] if stage.asks else []
    return Registry([Extension(name="scenario", tools=[*tools_of(stage), *HANDING_ON], tasks=tasks, before_tool=hooks)])


async def ask_first(seen: CallToJudge) -> Ask | None:
    return Ask({"may": seen.name}) if seen.name in ("pay", "send", "stamp") else None


async def ask_again(seen: CallToJudge) -> Ask | None:
    return Ask("really?", deadline=3600) if seen.name == "pay" else None


@tool(replay="safe")
async def delegate(call: Call, n: int) -> WaitFor:
    """To a sub-agent that delegates in turn."""
    return await call.delegate("task: below")


@tool(replay="safe")
async def deeper(call: Call, n: int) -> WaitFor:
    """To the last one."""
    return await call.delegate("task: bottom")


@tool(replay="safe")
async def spawn(call: Call, n: int) -> str:
    """An agent in the background."""
    return str((await call.agents.start("task: bottom")).id)


#: They have no effect but what their sub-agents do.
HANDING_ON = (delegate, deeper, spawn)


def tools_of(stage: Stage) -> list[Tool]:
    """One that may be repeated, unsafe ones of every sort."""

    async def act(call: Call, *, safe: bool = False) -> str:
        if call.name != "send":
            stage.starting(call.name)
        await stage.ready.wait()
        call.output(f"{call.name} is on it\n")
        stage.effect(call.idempotency_key, call.name, safe=safe)
        return f"{call.name} is done"

    @tool(replay="safe")
    async def look(call: Call, n: int) -> str:
        return await act(call, safe=True)

    @tool
    async def pay(call: Call, n: int) -> str:
        """Takes its time between its effect and its end."""
        said = await act(call)
        await stage.clock.sleep(0.004)
        return said

    @tool
    async def send(call: Call, n: int) -> str:
        """Shows progress before its effect."""
        stage.starting(call.name)
        call.output("soon\n")
        await stage.clock.sleep(0.004)
        return await act(call)

    @tool(sequential=True)
    async def stamp(call: Call, n: int) -> str:
        return await act(call)

    @tool(timeout=3600)
    async def linger(call: Call, n: int) -> str:
        """Its effect happens, and then it goes on until it is stopped."""
        await act(call)
        stage.lingering.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    @tool(timeout=60)
    async def shell(call: Call, n: int) -> str:
        """A command whose effect happens in its middle, with a process that would outlive it."""
        await stage.ready.wait()
        note = Effect(key=call.idempotency_key, tool=call.name, safe=False, life=stage.life)
        goes_on = f"go-{call.id}-{stage.life}"

        def shown(_: bytes) -> None:
            stage.telemetry.emit(AFTER_EFFECT)
            Path(call.sandbox.root, goes_on).touch()

        stage.telemetry.emit(BEFORE_EFFECT)
        line = msgspec.json.encode(note).decode()
        command = (
            f"sleep 600 & echo '{line}' >> {stage.notes.path}; echo did; until [ -e {goes_on} ]; do sleep 0.01; done"
        )
        exit = await call.sandbox.run(command, timeout=30, output=shown)
        return f"exit {exit.code}"

    @tool
    async def strange(call: Call, n: int) -> Any:
        """Gives back what is hard to keep, the n-th of it."""
        await act(call)
        call.output(b"h\0i\0 \xff")
        if n == len(ODD_RESULTS):
            raise ValueError("bad \0 \ud835 words" * 10_000)
        return ODD_RESULTS[n]

    return [look, pay, send, stamp, linger, shell, strange]


#: What `strange` gives back; after these it raises.
ODD_RESULTS: tuple[Any, ...] = (
    "bad \0 \ud835 words",
    float("nan"),
    b"\x97\xff\0",
    {"a set": {1, 2}, "\0 key \ud835": float("inf")},
    json.loads(_DEEP),
    "word " * 100_000,
)


class Checkout(TaskDefinition):
    """Payments that fail fast, a timer, then a question, and what was answered."""

    kind = "scenario.checkout"

    @phase(first=True)
    async def pay(self, invocation: Invocation) -> None:
        async with invocation.commit() as tx:
            receipt = tx.memo("receipt", "first")
            payments = [tx.create_task(Payment, {"how": how}, owner=invocation) for how in ("good", "bad", "long")]
            timer = tx.timer(tx.now + 0.01, owner=invocation)
            ids = [task.id for task in payments]
            await tx.wait([*payments, timer], policy="fail_fast", then=self.ask, payments=ids, receipt=receipt)

    @phase
    async def ask(self, invocation: Invocation, payments: list[Any], receipt: str) -> None:
        outcomes = [type(each).__name__ for each in await invocation.outcomes(payments)]
        async with invocation.commit() as tx:
            question = tx.ask({"try": "again?"}, owner=invocation)
            more: dict[str, Any] = {"outcomes": outcomes, "receipt": tx.memo("receipt", "second"), "same": receipt}
            await tx.wait([question], then=self.decide, question=question.id, **more)

    @phase
    async def decide(self, invocation: Invocation, question: Any, **found: Any) -> None:
        [outcome] = await invocation.outcomes([question])
        _, value, by = answered(outcome)

        async def body(tx: Any) -> None:
            tx.complete({**found, "answer": value, "by": by})

        await invocation.record(body)


class Payment(TaskDefinition):
    """One unsafe effect between its intent and its outcome."""

    kind = "scenario.payment"

    def __init__(self, stage: Stage | None = None) -> None:
        self._stage = stage

    @phase(first=True)
    async def pay(self, invocation: Invocation) -> None:
        stage, how = self._stage, invocation.input["how"]
        assert stage is not None
        if invocation.uncertain:
            await self._end(invocation, "nobody knows whether it was paid")
            return
        await stage.ready.wait()
        await invocation.begin()
        stage.starting("payment")
        stage.effect(invocation.idempotency_key, f"payment, {how}")
        if how == "long":
            await asyncio.get_running_loop().create_future()
        await self._end(invocation, None if how == "good" else "no money")

    async def _end(self, invocation: Invocation, error: str | None) -> None:
        async def body(tx: Any) -> None:
            if error is None:
                tx.complete()
            else:
                tx.fail(error)

        await invocation.record(body)


class Report(TaskDefinition):
    """A background task with an effect that may be repeated."""

    kind = "scenario.report"
    replay = "safe"

    def __init__(self, stage: Stage | None = None) -> None:
        self._stage = stage

    @phase(first=True)
    async def report(self, invocation: Invocation) -> None:
        assert self._stage is not None
        await invocation.begin()
        self._stage.starting("report")
        self._stage.effect(invocation.idempotency_key, "report", safe=True)
        async with invocation.commit() as tx:
            tx.complete("reported")
