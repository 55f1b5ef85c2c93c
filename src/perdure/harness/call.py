"""What a tool function is given of its call: progress, files and processes, and its own identity (H21, H43)."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.errors import HandleExpired, InvalidValue, SandboxError
from perdure.harness.agents import Agents
from perdure.harness.children import Profile, start_child
from perdure.harness.handover import WaitFor
from perdure.harness.jobs import Jobs
from perdure.harness.output import Output, bounded, clip
from perdure.harness.registry import Tool
from perdure.harness.stored import LIVE
from perdure.harness.supervision import GRACE, Supervised
from perdure.messages import UserMessage
from perdure.records import Placed, Task, TaskId
from perdure.sandbox import Sandbox
from perdure.session.line import Commit
from perdure.settle.state import evolve
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import TaskTransaction
from perdure.values import clean_text, coerce, encode

if TYPE_CHECKING:
    from perdure.harness.harness import Harness

#: Output that is not only added to is committed whole, and no more often than this, in seconds.
REPLACE_EVERY = 1.0

#: Details are no larger than this as JSON, in bytes; diagnostics no more than so many, nor longer, in characters.
MOST_DETAILS = 256 * 1024
MOST_DIAGNOSTICS = 100
MOST_DIAGNOSTIC = 2000


#: Begins the request id of the input that a call hands to its sub-agent.
DELEGATED = "perdure.call:"
#: Begins the memo of a task that a call made once.
MADE = "perdure.made."


class Call:
    """A tool call as its function sees it (`perdure.ToolCall`). It dies with the call: later use raises HandleExpired.

    Synchronous tools run in a thread: `output`, `details`, `diagnostic`, `on_cleanup` and `extend` can be called there.
    """

    def __init__(self, harness: Harness, invocation: Invocation, tool: Tool, directory: str | None = None) -> None:
        self._harness = harness
        self._directory = directory
        self._invocation = invocation
        self._tool = tool
        self._output = Output(keep=tool.keep)
        self._lock = threading.Lock()  # over `_output`, which a thread may feed while the loop reads
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._noted = False
        self._replaced = -REPLACE_EVERY
        self._cleanups: list[Callable[[], Any]] = []
        self._running: Supervised[Any] | None = None
        self._over = False
        #: Details and diagnostics of the result, as they are stored with it.
        self.data: dict[str, Any] = {}
        self.name = tool.name
        #: The call's key: the assistant entry that asked for it and its position there.
        self.id: str = invocation.input["call"]
        self.conversation = invocation.conversation
        #: The time limit in seconds. A tool that keeps a limit of its own, as bash does, may ask for another one.
        self.timeout = tool.timeout
        #: A copy of the arguments with which it runs, as JSON.
        self.arguments: dict[str, Any] = {}
        #: The same over all attempts of this call.
        self.idempotency_key = invocation.idempotency_key
        #: Counts the attempts of this call from 1.
        self.attempt = invocation.attempt

    @property
    def sandbox(self) -> Sandbox:
        """Where files and processes are, for this conversation. Raises SandboxError where the session has none."""
        sandbox = self._harness.place(self._directory)
        if sandbox is None:
            raise SandboxError("this session has no sandbox: open it with a directory")
        return sandbox

    def output(self, chunk: str | bytes) -> None:
        """Show progress: committed at most every 100 ms, bounded, kept when the call is interrupted."""
        self._alive()
        with self._lock:
            self._output.feed(chunk)
        self._note()

    def details(self, value: Any) -> None:
        """Structured details of the result, for people and programs, not for the model. Raises InvalidValue."""
        self._alive()
        found = coerce(value)
        size = len(encode(found))
        if size > MOST_DETAILS:
            raise InvalidValue(
                f"details of {size:,} bytes: at most {MOST_DETAILS:,} are kept; put the rest into a file"
            )
        self.data["details"] = found
        self._note()

    def diagnostic(self, text: str) -> None:
        """A note about how the call went, stored with the result. The newest 100 are kept."""
        self._alive()
        self._diagnose(text)

    def on_cleanup(self, function: Callable[[], Any]) -> None:
        """Run this when the call crashes, runs out of time or is aborted; not after success (H43)."""
        self._alive()
        self._cleanups.append(function)

    def extend(self, seconds: float) -> None:
        """Give this call a time limit of `seconds` from now."""
        self._alive()
        if not seconds > 0:
            raise InvalidValue(f"a time limit is more than 0 seconds, not {seconds!r}")
        self.timeout = seconds
        if self._running is not None:
            self._on_loop(self._running.extend, seconds)

    @property
    def jobs(self) -> Jobs:
        """The background jobs of the conversation. One that is started here outlives this call and its run."""
        return Jobs(self._harness, self.conversation, self.commit)

    @property
    def agents(self) -> Agents:
        """The background agents of the conversation. One that is started here outlives this call and its run."""
        return Agents(self._harness, self.conversation, self.commit, str(self._invocation.id))

    async def delegate(
        self, content: str | UserMessage, *, profile: Profile | None = None, seconds: float | None = None
    ) -> WaitFor:
        """Have a sub-agent work on this input: `return await call.delegate(…)` ends the call with its answer.

        It works in a conversation that this call owns, made in one commit with its first input, and found there by a
        call that is repeated (H29, H42). `seconds` limit it, by default those of its profile. Raises TaskRefused beyond
        `max_depth` and `max_children`.
        """
        if seconds is None and profile is not None:
            seconds = profile.seconds
        id = self._invocation.id
        async with self.commit() as tx:
            child, item = await start_child(
                self._harness, tx, id, content, profile, request_id=f"{DELEGATED}{id}"
            )  # fmt: skip
            owner = tx.task(id)
        assert owner is not None
        self.details({"agent": {"conversation": child.id, "name": child.title or "agent"}})
        deadline = None if seconds is None else owner.at + seconds
        state = item.state
        return WaitFor([state.run] if isinstance(state, Placed) else [], deadline, item.id)

    async def once(self, name: str, make: Callable[[TaskTransaction], Task]) -> TaskId:
        """A durable task that this call makes once, under a name: a call that is repeated is given the same one.

        `return WaitFor([await call.once("ask", lambda tx: tx.ask("Sure?"))])` so ends the call with its outcome.
        """
        async with self.commit() as tx:
            own = tx.task(self._invocation.id)
            assert own is not None
            key = MADE + name
            if key not in own.memos:
                made = make(tx)
                tx.put_task(evolve(own, memos={**own.memos, key: made.id}))
                return made.id
            return TaskId(own.memos[key])

    def commit(self) -> Commit[TaskTransaction]:
        """Entries, documents and tasks of your own, in one commit; tasks are owned by this call."""
        invocation = self._invocation

        def make(line: Any) -> TaskTransaction:
            self._alive()
            tx = TaskTransaction(line, invocation.conversation, invocation.id)
            invocation.fence(tx)
            return tx

        return invocation.line.commit(make)

    # -- for the tool task ------------------------------------------------------------------

    def bound(self, running: Supervised[Any]) -> None:
        """The function runs: its time limit can be changed from now on."""
        self._running = running

    def stoppable(self, yes: bool = True) -> None:
        """Whether what runs now can be cancelled: a thread cannot."""
        if self._running is not None:
            self._running.stoppable = yes

    def shown(self) -> str:
        """What the function has shown."""
        with self._lock:
            return self._output.text()

    def final(self, value: Any) -> str:
        """The result's text: what was returned, or else what was shown. Raises InvalidValue (I60)."""
        if value is None:
            with self._lock:
                self._output.close()
            return self.shown()
        found = value if isinstance(value, str) else coerce(value)
        return self.bounded(found if isinstance(found, str) else encode(found))

    def bounded(self, text: str | bytes) -> str:
        """The text within the limits of an output."""
        return bounded(text, self._tool.keep)

    async def cleanup(self) -> None:
        """Run what was registered, newest first, in bounded time; a failing one is noted, and the others still run."""
        while self._cleanups:
            function = self._cleanups.pop()
            try:
                await Supervised(self._harness.watch, _called(function), seconds=GRACE, stoppable=False).result()
            except Exception as error:
                self._diagnose(f"cleanup failed: {type(error).__name__}")

    def over(self) -> None:
        """The call has ended: the handle is dead."""
        self._over = True
        self._harness.progress.forget(self._flush)

    # -- progress ---------------------------------------------------------------------------

    def _diagnose(self, text: str) -> None:
        notes = self.data.setdefault("diagnostics", [])
        notes.append(clip(clean_text(str(text)), MOST_DIAGNOSTIC))
        del notes[:-MOST_DIAGNOSTICS]

    def _alive(self) -> None:
        if self._over:
            raise HandleExpired(f"the call {self.id} of {self.name} has ended: this handle is dead")

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            self._on_loop(self._note_on_loop)

    def _note_on_loop(self) -> None:
        if not self._over:
            self._harness.progress.note(self._flush)

    def _on_loop(self, function: Callable[..., Any], *args: Any) -> None:
        if threading.get_ident() == self._thread:
            function(*args)
            return
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop was closed: the session is gone, and with it whoever would look

    async def _flush(self) -> None:
        self._noted = False
        invocation = self._invocation
        async with invocation.commit() as tx:
            owner = tx.own.owner
            if self._over or owner is None:
                return
            tools = (await tx.doc(LIVE, owner))["tools"]
            slot = tools.get(str(invocation.id))
            if slot is None:
                return
            shown, stored = self.shown(), slot["output"]
            if shown.startswith(stored):
                if shown != stored:
                    slot.append_text("output", shown[len(stored) :])
            elif self._harness.clock.monotonic() < self._replaced + REPLACE_EVERY:
                self._note()  # this time is too soon
            else:
                self._replaced = self._harness.clock.monotonic()
                slot["output"] = shown
            if "details" in self.data and slot.get("details") != self.data["details"]:
                slot["details"] = self.data["details"]
            tx.progress()


async def _called(function: Callable[[], Any]) -> None:
    value = function()
    if inspect.isawaitable(value):
        await value
