"""The agent: a process that works for a client, and is killed. `python -m perdure.commands.demo.agent`.

It knows nothing of the demo's end: it opens a store, takes errands, and does them with `write`, `bash` and `pay`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import msgspec

from perdure.app.opening import open, run
from perdure.app.session import Session
from perdure.clock import SystemClock
from perdure.commands.demo import talk
from perdure.commands.demo.places import Places, append_line, places
from perdure.commands.demo.points import ABANDONED, Points, Voice, wait_for_the_end
from perdure.commands.text import one_line
from perdure.harness.call import Call
from perdure.harness.registry import Extension, Registry, tool
from perdure.messages import AssistantMessage, ToolMessage, calls_of, text_of
from perdure.model import Model, ModelEvent, Request
from perdure.providers.demo import DemoModel
from perdure.records import Done, Entry, Unanswered
from perdure.sandboxes.local import LocalSandbox, Started
from perdure.schemas.pydantic import PydanticSchema
from perdure.session.change import Change
from perdure.telemetry import Telemetry
from perdure.tools.bash import bash
from perdure.tools.write import write

#: Seconds between two parts of an answer: slow enough to be seen, and to be killed in between.
SLOW = 0.015
#: So often may the process die in one step of a task; at the third time, work that had begun would be parked (H44).
MOST_DEATHS = 2


def shop(files: Places, points: Points, voice: Voice) -> Registry:
    """What the agent can do. Payments are the effect that cannot be taken back."""

    @tool  # unsafe, which is the default: never repeated behind anybody's back
    def pay(call: Call, amount: int, to: str) -> str:
        """Pay an amount to someone. It cannot be taken back.

        Args:
            amount: Whole euros.
            to: Who gets it.
        """
        points.reach("in_effect", f"pay {amount} to {to} had started, nothing was paid yet", "pay")
        line = msgspec.json.encode({"key": call.idempotency_key, "amount": amount, "to": to})
        append_line(files.ledger, line)
        voice.tell(talk.Effect(text=f"paid {amount} to {to}"))
        points.reach("in_effect", f"{amount} were paid to {to}, pay had not returned", "pay")
        return f"Paid {amount} euros to {to}."

    return Registry([Extension(name="shop", tools=[write, bash, pay])])


class Watched:
    """The demo model; each event of its stream is a point."""

    def __init__(self, inner: Model, points: Points) -> None:
        self._inner = inner
        self._points = points
        self.name = inner.name
        self.context_window = inner.context_window

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        async for event in self._inner.stream(request):
            self._points.reach("model_stream", "part of an answer had arrived")
            yield event


class Agent:
    """One life of the agent."""

    def __init__(self, reader: asyncio.StreamReader, voice: Voice) -> None:
        self._reader = reader
        self._voice = voice
        self._points = Points(voice)

    async def live(self) -> int:
        """The exit code: 0 when it was told to finish, and did."""
        self._voice.tell(talk.Ready())
        match await self._order():
            case talk.Open() as order:
                return await self._work(order)
            case _:
                return ABANDONED

    async def _order(self) -> talk.Order | None:
        """What the client wants next; None when it is gone."""
        line = await self._reader.readline()
        return talk.read_order(line) if line else None

    async def _work(self, order: talk.Open) -> int:
        files, points, clock, telemetry = places(order.directory, order.store), self._points, SystemClock(), Telemetry()
        points.arm(order.kill)
        points.attach(telemetry)

        def command_started(_: Started) -> None:
            points.reach("in_effect", "a command of bash was running", "bash")

        async with open(
            order.store,
            clock=clock,
            telemetry=telemetry,
            registry=shop(files, points, self._voice),
            sandbox=LocalSandbox(files.work, clock=clock, on_start=command_started),
            schema=PydanticSchema(),
            model=Watched(DemoModel(clock, slow=SLOW), points),
        ) as session:
            session.observe(self._tell)
            self._voice.tell(self._opened(session))
            finished = await self._serve(session)
        if finished:
            self._voice.tell(talk.Closed())
        return 0 if finished else ABANDONED

    async def _serve(self, session: Session) -> bool:
        """Whether everything is finished; False when the client is gone."""
        while True:
            match await self._order():
                case talk.Proceed():
                    await session.resume()
                case talk.Submit() as order:
                    await self._submit(session, order)
                case talk.Finish():
                    await session.wait_idle()
                    return True
                case _:
                    return False

    async def _submit(self, session: Session, order: talk.Submit) -> None:
        """Accept a task: durable first, said second. A kill between the two is the client's to sort out."""
        ends_here = self._points.due("admission", f"{order.request} was being handed in")
        chat = await session.conversation(order.conversation)
        sent = await chat.submit(
            order.text, request_id=order.request, when_busy="steer" if order.when_busy == "steer" else "follow_up"
        )
        if ends_here:
            wait_for_the_end()
        settled = (await sent.status()).startswith(("done", "unanswered"))
        self._voice.tell(talk.Accepted(request=order.request, submission=sent.id, settled=settled))

    # -- what the client is told of the work --------------------------------------------------

    def _opened(self, session: Session) -> talk.Opened:
        found = session.inspect()
        suspects = [task.id for task in found.tasks if task.state == "pending" and task.attempt >= MOST_DEATHS]
        self._points.spared.update(suspects)
        return talk.Opened(
            commit=found.seq,
            live=tuple(item.id for item in found.submissions),
            tasks=len(found.tasks),
            suspects=tuple(suspects),
        )

    def _tell(self, change: Change) -> None:
        """Told of each commit after it is durable."""
        for entry in change.entries:
            self._voice.tell(_wrote(entry))
        for item in change.submissions.values():
            match item.state:
                case Done():
                    self._voice.tell(talk.Settled(submission=item.id, answered=True))
                case Unanswered(reason=reason, detail=detail):
                    self._voice.tell(
                        talk.Settled(submission=item.id, answered=False, why=one_line(f"{reason}: {detail}"))
                    )
                case _:
                    pass
        for task in change.tasks.values():
            if task.id in self._points.spared and (not task.live or task.attempt < MOST_DEATHS):
                self._points.spared.discard(task.id)
                self._voice.tell(talk.Moved(task=task.id))


def _wrote(entry: Entry) -> talk.Wrote:
    message = entry.messages[0] if entry.messages else None
    return talk.Wrote(
        entry=entry.id,
        conversation=entry.conversation,
        kind=entry.kind.removeprefix("perdure."),
        text="" if message is None else one_line(text_of(message), 200),
        calls=() if message is None else tuple(call.name for call in calls_of(message)),
        tool=message.name if isinstance(message, ToolMessage) else None,
        error=message.error if isinstance(message, ToolMessage) else None,
        stop=message.stop if isinstance(message, AssistantMessage) else None,
    )


async def live() -> int:
    """Talk over standard input and what was standard output; whatever is printed goes to standard error."""
    voice = Voice(os.dup(1))
    os.dup2(2, 1)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return await Agent(reader, voice).live()


if __name__ == "__main__":
    sys.exit(run(live))
